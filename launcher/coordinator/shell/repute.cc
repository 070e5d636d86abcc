#include "launcher/coordinator/shell/repute.h"

#include <arpa/inet.h>

#include <algorithm>

namespace regroup::coordinator {
namespace {

constexpr Duration kIncident = std::chrono::seconds(1);

std::string Network(const std::string& ip) {
  in6_addr address{};
  const std::string literal = ip.substr(0, ip.find('%'));
  if (::inet_pton(AF_INET6, literal.c_str(), &address) != 1) return ip;
  return {reinterpret_cast<const char*>(&address), 8};
}

}  // namespace

bool Repute::Refuses(const std::string& ip, Instant now) const {
  const std::scoped_lock lock(mutex_);
  const auto debtor = debtors_.find(Network(ip));
  return debtor != debtors_.end() && debtor->second.paid_by >= now + kDebtLimit;
}

void Repute::Owes(const std::string& ip, Duration more, Instant now) {
  const std::scoped_lock lock(mutex_);
  Add(Network(ip), more, now);
}

void Repute::WasCut(const std::string& ip, Instant now) {
  const std::scoped_lock lock(mutex_);
  const std::string network = Network(ip);
  const auto debtor = debtors_.find(network);
  const bool again = debtor != debtors_.end() && debtor->second.paid_by > now &&
                     debtor->second.cut_at && now - *debtor->second.cut_at >= kIncident;
  Add(network, again ? kDebtOfAnotherCut : kDebtOfACut, now).cut_at = now;
}

Repute::Debtor& Repute::Add(const std::string& network, Duration more, Instant now) {
  if (debtors_.size() >= kMaxDebtors && !debtors_.contains(network)) {
    std::erase_if(debtors_, [now](const auto& debtor) { return debtor.second.paid_by <= now; });
    if (debtors_.size() >= kMaxDebtors) {
      debtors_.erase(std::min_element(
          debtors_.begin(), debtors_.end(),
          [](const auto& a, const auto& b) { return a.second.paid_by < b.second.paid_by; }));
    }
  }
  Debtor& debtor = debtors_[network];
  if (debtor.paid_by <= now) debtor = {now, std::nullopt};
  debtor.paid_by = std::min(debtor.paid_by + more, now + kMostDebt);
  return debtor;
}

void Repute::Pays(const std::string& ip, Instant now) {
  const std::scoped_lock lock(mutex_);
  const auto debtor = debtors_.find(Network(ip));
  if (debtor == debtors_.end()) return;
  debtor->second.paid_by -= kDebtOfNoCall;
  if (debtor->second.paid_by <= now) debtors_.erase(debtor);
}

}  // namespace regroup::coordinator
