#include "agent/shell/nurseries.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace regroup::agent {

Nurseries::Nurseries(boost::asio::io_context& loop, std::string shim_program,
                     std::function<void(std::string)> tell)
    : loop_(loop), shim_program_(std::move(shim_program)), tell_(std::move(tell)) {}

bool Nurseries::Keep(const shim::Spec& spec, const std::vector<std::string>& modules) {
  const auto found = nurseries_.find(spec.job);
  if (found != nurseries_.end() && !found->second->worn_out()) return false;
  const auto cold = [tell = tell_, job = spec.job](const std::string& why) {
    tell(absl::StrCat("ranks of ", job.value(), " start cold: ", why));
  };
  nurseries_[spec.job] = Nursery::Start(loop_, shim_program_, spec, modules, cold);
  return true;
}

Nursery* Nurseries::Find(const JobId& job) const {
  const auto found = nurseries_.find(job);
  return found == nurseries_.end() ? nullptr : found->second.get();
}

void Nurseries::End(const JobId& job) {
  const auto found = nurseries_.find(job);
  if (found == nurseries_.end()) return;
  found->second->End();
  nurseries_.erase(found);
}

std::uint64_t Nurseries::Bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [job, nursery] : nurseries_) bytes += nursery->Bytes();
  return bytes;
}

}  // namespace regroup::agent
