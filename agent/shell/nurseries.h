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

  // Starts the job's nursery where there is none that is ready or may become so. True: it did.
  bool Keep(const shim::Spec& spec, const std::vector<std::string>& modules);
  Nursery* Find(const JobId& job) const;
  void End(const JobId& job);
  std::uint64_t Bytes() const;  // Resident memory of all of them.

 private:
  boost::asio::io_context& loop_;
  const std::string shim_program_;
  const std::function<void(std::string)> tell_;
  std::map<JobId, std::shared_ptr<Nursery>> nurseries_;
};

}  // namespace regroup::agent
