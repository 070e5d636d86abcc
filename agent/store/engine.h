#pragma once

// The TCPStore protocol of PyTorch (2.1 and later: VALIDATE first) as a pure state machine: bytes
// in, bytes out. No sockets, clock or threads. facts: one outstanding request per connection, no
// in-band errors (a violation closes that connection), integers little endian.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"

namespace regroup::store {

using ConnectionId = std::uint64_t;

struct Limits {
  std::size_t key_bytes = 8192;
  std::size_t value_bytes = 8u << 20;
  std::size_t keys_per_request = 131072;
  std::size_t request_bytes = 64u << 20;
  // All keys and values, with what is kept per entry; and once more this for requests that have not
  // fully arrived and for pending waits.
  std::size_t total_bytes = 512u << 20;
};

struct Reply {
  ConnectionId connection = 0;
  std::string bytes;
};

// Whose a key is; empty: nobody's. When the last connection that has named a key of some owner
// closes, every key of that owner goes: who comes later under the same name begins anew.
using OwnerOf = std::string (*)(std::string_view key);

class Engine {
 public:
  // Without `owner_of` keys stay.
  explicit Engine(Limits limits = {}, OwnerOf owner_of = nullptr)
      : limits_(limits), owner_of_(owner_of) {}

  // REQUIRES: `connection` was never opened before.
  void Open(ConnectionId connection);
  // Obeys every whole request in what has arrived; a rest waits for more. Replies, possibly to
  // other connections, are appended. Not OK: close this connection (call Close); the message says
  // why.
  absl::Status OnBytes(ConnectionId connection, std::string_view bytes,
                       std::vector<Reply>& replies);
  // Its pending waits are forgotten; keys stay.
  void Close(ConnectionId connection);

  std::size_t key_count() const { return values_.size(); }
  std::size_t total_bytes() const { return total_bytes_; }

 private:
  enum class Field : std::uint8_t { kKey, kValue, kNumber, kNonce, kKeys, kPairs };
  // A request as far as it has arrived; nothing is parsed twice, so that a slow sender costs no
  // more than a fast one.
  struct Request {
    bool open = false;  // An opcode has been read.
    std::uint8_t opcode = 0;
    std::size_t field = 0;         // Index into the opcode's fields.
    std::uint64_t items_left = 0;  // Of a list; counts keys and values.
    bool in_list = false, next_is_value = false;
    std::vector<std::string> strings;
    std::int64_t number = 0;
    std::size_t bytes = 0;
  };
  struct Connection {
    std::string buffer;
    bool validated = false;
    Request request;
    std::set<std::string> waits_for;     // Keys of a WAIT that do not exist yet.
    std::optional<std::string> barrier;  // Key of a pending BARRIER; it may be empty.
    bool pending = false;                // A WAIT or BARRIER has not been answered.
    std::size_t wait_bytes = 0;          // Of its keys.
    std::size_t owner_bytes = 0;         // Of `owners`.
    std::size_t charged_bytes = 0;       // Part of held_bytes_.
    std::set<std::string> owners;        // Of the keys that it has named.
  };

  struct Fields {
    std::size_t count = 0;
    Field at[3] = {};
  };
  static const Fields* FieldsOf(std::uint8_t opcode);
  absl::Status ObeyAll(ConnectionId id, Connection& connection, std::vector<Reply>& replies);
  absl::Status Charge(Connection& connection);
  absl::Status Handshake(Connection& connection, std::size_t& at);
  // True: `connection.request` is whole. False: more bytes are needed.
  absl::Status Parse(Connection& connection, std::size_t& at, bool& whole);
  absl::Status ParseField(Connection& connection, std::size_t& at, Field field, bool& done);
  absl::Status ParseString(Connection& connection, std::size_t& at, std::size_t limit, bool& done);
  absl::Status Obey(ConnectionId id, Connection& connection, std::vector<Reply>& replies);
  absl::Status ObeyWaiting(ConnectionId id, Connection& connection, std::vector<Reply>& replies);
  absl::Status ObeyQueue(ConnectionId id, Connection& connection, std::vector<Reply>& replies);

  bool Exists(const std::string& key) const;
  absl::Status Store(const std::string& key, std::string value, std::vector<Reply>& replies);
  absl::Status Append(const std::string& key, const std::string& value,
                      std::vector<Reply>& replies);
  absl::Status Add(const std::string& key, std::int64_t delta, std::int64_t& sum,
                   std::vector<Reply>& replies);
  absl::Status CompareSet(const Request& request, std::string& stored, std::vector<Reply>& replies);
  bool Delete(const std::string& key);
  absl::Status Reserve(std::size_t bytes);
  void Wake(const std::string& key, std::size_t at_most, std::vector<Reply>& replies);
  void ForgetWait(ConnectionId id, Connection& connection);
  absl::Status NoteOwners(Connection& connection);
  void LeaveOwners(const Connection& connection);

  const Limits limits_;
  const OwnerOf owner_of_;
  std::unordered_map<ConnectionId, Connection> connections_;
  std::unordered_map<std::string, std::string> values_;
  std::unordered_map<std::string, std::deque<std::string>> queues_;  // None is empty.
  std::unordered_map<std::string, std::deque<ConnectionId>>
      waiters_;  // By missing key, in order of arrival.
  std::unordered_map<std::string, std::vector<ConnectionId>> barriers_;
  std::size_t total_bytes_ = 0;
  std::size_t held_bytes_ = 0;         // Sum of charged_bytes.
  std::map<std::string, int> owners_;  // How many connections have named a key of each.
};

}  // namespace regroup::store
