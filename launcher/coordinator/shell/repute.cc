#include "launcher/coordinator/shell/repute.h"

#include <arpa/inet.h>

#include <algorithm>

namespace regroup::coordinator {
namespace {

std::string Network(const std::string& ip) {
  in6_addr address{};
  const std::string literal = ip.substr(0, ip.find('%'));
  if (::inet_pton(AF_INET6, literal.c_str(), &address) != 1) return ip;
  return {reinterpret_cast<const char*>(&address), 8};
}

}  // namespace

bool Repute::Refuses(const std::string& ip, Instant now) const {
  const std::scoped_lock lock(mutex_);
  const auto debtor = paid_by_.find(Network(ip));
  return debtor != paid_by_.end() && debtor->second >= now + kDebtLimit;
}

void Repute::Owes(const std::string& ip, Duration more, Instant now) {
  const std::scoped_lock lock(mutex_);
  const std::string network = Network(ip);
  if (paid_by_.size() >= kMaxDebtors && !paid_by_.contains(network)) {
    std::erase_if(paid_by_, [now](const auto& debtor) { return debtor.second <= now; });
    if (paid_by_.size() >= kMaxDebtors) {
      paid_by_.erase(
          std::min_element(paid_by_.begin(), paid_by_.end(),
                           [](const auto& a, const auto& b) { return a.second < b.second; }));
    }
  }
  Instant& paid_by = paid_by_.try_emplace(network, now).first->second;
  paid_by = std::min(std::max(paid_by, now) + more, now + kMostDebt);
}

void Repute::Pays(const std::string& ip, Instant now) {
  const std::scoped_lock lock(mutex_);
  const auto debtor = paid_by_.find(Network(ip));
  if (debtor == paid_by_.end()) return;
  debtor->second -= kDebtOfNoCall;
  if (debtor->second <= now) paid_by_.erase(debtor);
}

}  // namespace regroup::coordinator
