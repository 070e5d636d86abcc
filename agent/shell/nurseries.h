#pragma once

// The nurseries of this node's jobs, one at most for each. Loop thread.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/shell/nursery.h"
#include "common/base/ids.h"

namespace regroup::agent {

class Nurseries {
 public:
  // `tell` hears why ranks of a job start cold.
  Nurseries(boost::asio::io_context& loop, std::string shim_program,
            std::function<void(std::string)> tell);
  ~Nurseries();

  // Starts the job's nursery where there is none that is ready or may become so. True: it did.
  bool Keep(const shim::Spec& spec, const std::vector<std::string>& modules);
  Nursery* Find(const JobId& job) const;
  // Ends it in kLingers, unless `used` says by then that a group of the job is here.
  void EndUnlessUsed(const JobId& job, std::function<bool()> used);
  static constexpr std::chrono::seconds kLingers{60};
  std::uint64_t Bytes() const;  // Resident memory of all of them.

 private:
  boost::asio::io_context& loop_;
  const std::string shim_program_;
  const std::function<void(std::string)> tell_;
  std::map<JobId, std::shared_ptr<Nursery>> nurseries_;
  std::shared_ptr<bool> alive_;  // Held by timers that may fire after this object.
};

}  // namespace regroup::agent
