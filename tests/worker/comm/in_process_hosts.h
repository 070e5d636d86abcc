#pragma once

#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/io/address.h"
#include "worker/comm/host_links.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/comm/multi_host_communicator.h"

namespace regroup::worker {

// Hosts of one process: their ranks are threads, and between them are TCP connections over
// addresses of the loopback network.
class InProcessHosts {
 public:
  // How many ranks each host has.
  explicit InProcessHosts(const std::vector<int>& counts,
                          Duration deadline = std::chrono::seconds(60))
      : deadline_(deadline) {
    int first = 0;
    for (std::size_t h = 0; h < counts.size(); ++h) {
      hosts_.push_back({first, counts[h]});
      for (auto& rank : MakeInProcessHost(first, counts[h], deadline))
        local_.push_back(std::move(rank));
      first += counts[h];
      auto listener = ListenForHosts("127.0.0." + std::to_string(h + 1));
      CHECK(listener.ok());
      addresses_.push_back(*io::LocalAddressOf(listener->get()));
      listeners_.push_back(*std::move(listener));
    }
    secret_.fill(std::byte(42));
  }

  int world() const { return static_cast<int>(local_.size()); }
  const Hosts& hosts() const { return hosts_; }

  // Each rank calls it, from its own thread.
  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank) {
    auto local = std::move(local_[static_cast<std::size_t>(rank)]);
    if (hosts_.size() == 1) return local;
    const int own = HostOf(hosts_, rank);
    const auto at = static_cast<std::size_t>(own);
    std::optional<HostLinks> links;
    if (rank == hosts_[at].first) {
      auto met =
          MeetNeighbors({.own = own, .addresses = addresses_, .secret = secret_}, listeners_[at]);
      if (!met.ok()) return met.status();
      links = *std::move(met);
    }
    return MultiHostCommunicator::Create(rank, hosts_, std::move(local), std::move(links),
                                         deadline_, deadline_);
  }

 private:
  const Duration deadline_;
  Hosts hosts_;
  std::vector<std::unique_ptr<SharedMemoryCommunicator>> local_;
  std::vector<io::UniqueFd> listeners_;
  std::vector<Address> addresses_;
  Secret secret_{};
};

// A thread for each rank, on hosts of so many ranks each.
inline void OnEveryRank(const std::vector<int>& counts,
                        const std::function<void(Communicator&)>& body) {
  InProcessHosts hosts(counts);
  std::vector<std::thread> threads;
  for (int r = 0; r < hosts.world(); ++r) {
    threads.emplace_back([&, r] {
      auto communicator = hosts.Join(r);
      CHECK(communicator.ok());
      body(**communicator);
      communicator->reset();
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace regroup::worker
