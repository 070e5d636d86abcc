#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/time.h"

namespace regroup::worker {

// One connection to a generation's key-value store, in the protocol of PyTorch's TCPStore. Not
// thread-safe. Keys are what callers give, behind the "/" that every TCPStore client puts before
// user keys. After a failed call all others fail, until Renew: a late answer would be taken for
// theirs. A Wait that ends with kDeadlineExceeded has not failed.
class StoreClient {
 public:
  // Dials until something answers the handshake or `deadline` has passed; `host` is a name or an IP
  // literal.
  static absl::StatusOr<StoreClient> Connect(const std::string& host, std::uint16_t port,
                                             Duration deadline);
  StoreClient(StoreClient&& other) noexcept;
  StoreClient& operator=(StoreClient&& other) noexcept;
  ~StoreClient();

  // Dials anew after a failed call, else does nothing. Patience is 30 s again.
  absl::Status Renew(Duration deadline);
  // How long later calls wait for an answer; 30 s at first.
  void SetPatience(Duration per_answer) { patience_ = per_answer; }
  absl::Status Set(std::string_view key, std::string_view value);
  // kNotFound can not be told from an empty value: Wait first.
  absl::StatusOr<std::string> Get(std::string_view key);
  absl::StatusOr<std::int64_t> Add(std::string_view key, std::int64_t delta);
  // Returns once every key exists, or kDeadlineExceeded.
  absl::Status Wait(const std::vector<std::string>& keys, Duration deadline);
  absl::StatusOr<bool> Check(const std::vector<std::string>& keys);
  // The address of this host from which the store is reached.
  absl::StatusOr<std::string> LocalIp() const;

 private:
  StoreClient(int fd, const std::string& host, std::uint16_t port);
  absl::Status Handshake(Duration deadline);
  absl::Status Send(std::string_view bytes, Duration deadline);
  absl::Status Receive(void* out, std::size_t size, Duration deadline);
  absl::Status SendQuestion(std::uint8_t opcode, const std::vector<std::string>& keys);
  absl::Status Fail(absl::Status why);

  int fd_ = -1;
  Duration patience_ = std::chrono::seconds(30);
  std::string host_;
  std::uint16_t port_ = 0;
  std::string peer_;      // Both, for messages.
  absl::Status failure_;  // Of an earlier call.
};

}  // namespace regroup::worker
