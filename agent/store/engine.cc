#include "agent/store/engine.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::store {
namespace {

enum Opcode : std::uint8_t {
  kValidate = 0,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
  kBarrier,
  kOpcodes
};

constexpr std::string_view kMagic("\xce\xf7\x85\x3c", 4);
constexpr char kReady = 0, kNotReady = 1, kStopWaiting = 0, kWaitCanceled = 1;
constexpr std::size_t kEntryBytes = 96;  // What a key costs beside its own bytes.
constexpr std::size_t kOwnersPerConnection = 64;

void PutNumber(std::string& out, std::int64_t value) {
  out.append(reinterpret_cast<const char*>(&value), 8);
}
void PutString(std::string& out, std::string_view value) {
  PutNumber(out, static_cast<std::int64_t>(value.size()));
  out.append(value);
}

// As std::stoll, which the reference uses: leading blanks and trailing text are allowed, no digits
// are not.
bool ToNumber(const std::string& text, std::int64_t& value) {
  char* end = nullptr;
  errno = 0;
  value = std::strtoll(text.c_str(), &end, 10);
  return end != text.c_str() && errno != ERANGE;
}

// REQUIRES: `buffer` is not empty and is no part of a handshake. An old client sends a command
// right away, mostly ADD to `init/`: its first byte, and a length that a key can have.
absl::Status NotAClient(std::string_view buffer, std::size_t key_bytes) {
  constexpr unsigned char kHighestOldOpcode = 12;
  std::uint64_t length = 0;
  std::memcpy(&length, buffer.data() + 1, std::min<std::size_t>(buffer.size() - 1, sizeof length));
  if (static_cast<unsigned char>(buffer[0]) > kHighestOldOpcode || length > key_bytes) {
    return absl::InvalidArgumentError(buffer[0] == kValidate ? "sent a wrong handshake"
                                                             : "is no TCPStore client");
  }
  return absl::UnimplementedError(
      "speaks the TCPStore dialect of PyTorch 2.0 or older (no handshake); this store needs "
      "PyTorch 2.2 or newer");
}

}  // namespace

const Engine::Fields* Engine::FieldsOf(std::uint8_t opcode) {
  using F = Field;
  static constexpr Fields kFields[kOpcodes] = {
      /* validate */ {0, {}},
      /* set */ {2, {F::kKey, F::kValue}},
      /* compare_set */ {3, {F::kKey, F::kValue, F::kValue}},
      /* get */ {1, {F::kKey}},
      /* add */ {2, {F::kKey, F::kNumber}},
      /* check */ {1, {F::kKeys}},
      /* wait */ {1, {F::kKeys}},
      /* get_num_keys */ {0, {}},
      /* delete_key */ {1, {F::kKey}},
      /* append */ {2, {F::kKey, F::kValue}},
      /* multi_get */ {1, {F::kKeys}},
      /* multi_set */ {1, {F::kPairs}},
      /* cancel_wait */ {0, {}},
      /* ping */ {1, {F::kNonce}},
      /* queue_push */ {2, {F::kKey, F::kValue}},
      /* queue_pop */ {1, {F::kKey}},
      /* queue_len */ {1, {F::kKey}},
      /* list_keys */ {0, {}},
      /* barrier */ {2, {F::kKey, F::kNumber}},
  };
  return opcode > kValidate && opcode < kOpcodes ? &kFields[opcode] : nullptr;
}

void Engine::Open(ConnectionId connection) { CHECK(connections_.try_emplace(connection).second); }

void Engine::Close(ConnectionId id) {
  auto found = connections_.find(id);
  if (found == connections_.end()) return;
  ForgetWait(id, found->second);
  held_bytes_ -= found->second.charged_bytes;
  LeaveOwners(found->second);
  connections_.erase(found);
}

absl::Status Engine::NoteOwners(Connection& connection) {
  if (owner_of_ == nullptr) return absl::OkStatus();
  const Request& request = connection.request;
  const Fields* fields = FieldsOf(request.opcode);
  if (fields->count == 0 || request.strings.empty()) return absl::OkStatus();
  const bool pairs = fields->at[0] == Field::kPairs, many = fields->at[0] == Field::kKeys;
  const std::size_t end = pairs || many ? request.strings.size() : 1;
  for (std::size_t i = 0; i < end; i += pairs ? 2 : 1) {
    std::string owner = owner_of_(request.strings[i]);
    if (owner.empty()) continue;
    const auto [at, first] = connection.owners.insert(std::move(owner));
    if (!first) continue;
    ++owners_[*at];
    connection.owner_bytes += at->size() + kEntryBytes;
    if (connection.owners.size() > kOwnersPerConnection) {
      return absl::InvalidArgumentError(
          absl::StrCat("named keys of more than ", kOwnersPerConnection, " jobs"));
    }
  }
  return absl::OkStatus();
}

void Engine::LeaveOwners(const Connection& connection) {
  for (const std::string& owner : connection.owners) {
    const auto found = owners_.find(owner);
    if (--found->second > 0) continue;
    owners_.erase(found);
    std::vector<std::string> keys;
    for (const auto& entry : values_)
      if (owner_of_(entry.first) == owner) keys.push_back(entry.first);
    for (const auto& entry : queues_)
      if (owner_of_(entry.first) == owner) keys.push_back(entry.first);
    for (const std::string& key : keys) Delete(key);
  }
}

absl::Status Engine::OnBytes(ConnectionId id, std::string_view bytes, std::vector<Reply>& replies) {
  Connection& connection = connections_.at(id);
  connection.buffer.append(bytes);
  RETURN_IF_ERROR(ObeyAll(id, connection, replies));
  return Charge(connection);
}

absl::Status Engine::ObeyAll(ConnectionId id, Connection& connection, std::vector<Reply>& replies) {
  std::size_t at = 0;
  if (!connection.validated) {
    RETURN_IF_ERROR(Handshake(connection, at));
    if (!connection.validated) return absl::OkStatus();
  }
  for (;;) {
    bool whole = false;
    RETURN_IF_ERROR(Parse(connection, at, whole));
    if (!whole) break;
    RETURN_IF_ERROR(NoteOwners(connection));
    RETURN_IF_ERROR(Obey(id, connection, replies));
    connection.request = Request{};
  }
  connection.buffer.erase(0, at);
  return absl::OkStatus();
}

absl::Status Engine::Charge(Connection& connection) {
  held_bytes_ -= connection.charged_bytes;
  connection.charged_bytes = connection.buffer.size() + connection.request.bytes +
                             connection.wait_bytes + connection.owner_bytes;
  held_bytes_ += connection.charged_bytes;
  if (held_bytes_ <= limits_.total_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("unfinished requests hold more than ", limits_.total_bytes, " bytes"));
}

// Five bytes, however they arrive: the reference refuses a split handshake and can be talked past a
// wrong one.
absl::Status Engine::Handshake(Connection& connection, std::size_t& at) {
  const std::string& buffer = connection.buffer;
  if (buffer.empty()) return absl::OkStatus();
  if (buffer[0] != kValidate) {
    const std::size_t known = std::min(buffer.size(), kMagic.size());
    if (buffer.compare(0, known, kMagic.substr(0, known)) != 0) {
      return NotAClient(buffer, limits_.key_bytes);
    }
    if (known < kMagic.size()) return absl::OkStatus();
    return absl::UnimplementedError(
        "speaks the TCPStore dialect of a PyTorch snapshot of August 2023 (magic before every "
        "command); this store needs "
        "PyTorch 2.2 or newer");
  }
  const std::size_t known = std::min(buffer.size() - 1, kMagic.size());
  if (buffer.compare(1, known, kMagic.substr(0, known)) != 0)
    return NotAClient(buffer, limits_.key_bytes);
  if (known < kMagic.size()) return absl::OkStatus();
  connection.validated = true;
  at = 1 + kMagic.size();
  return absl::OkStatus();
}

// ---- parsing -----------------------------------------------------------------------------------

absl::Status Engine::Parse(Connection& connection, std::size_t& at, bool& whole) {
  Request& request = connection.request;
  if (!request.open) {
    if (at == connection.buffer.size()) return absl::OkStatus();
    request.opcode = static_cast<std::uint8_t>(connection.buffer[at++]);
    request.open = true;
  }
  const Fields* fields = FieldsOf(request.opcode);
  if (fields == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("sent the unknown opcode ", request.opcode));
  while (request.field < fields->count) {
    bool done = false;
    RETURN_IF_ERROR(ParseField(connection, at, fields->at[request.field], done));
    if (!done) return absl::OkStatus();
    ++request.field;
  }
  whole = true;
  return absl::OkStatus();
}

absl::Status Engine::ParseField(Connection& connection, std::size_t& at, Field field, bool& done) {
  Request& request = connection.request;
  const std::string& buffer = connection.buffer;
  if (field == Field::kKey) return ParseString(connection, at, limits_.key_bytes, done);
  if (field == Field::kValue) return ParseString(connection, at, limits_.value_bytes, done);
  if (field == Field::kNumber || field == Field::kNonce) {
    const std::size_t size = field == Field::kNonce ? 4 : 8;
    if (buffer.size() - at < size) return absl::OkStatus();
    std::memcpy(&request.number, buffer.data() + at, size);
    at += size;
    done = true;
    return absl::OkStatus();
  }
  const bool pairs = field == Field::kPairs;
  if (!request.in_list) {
    if (buffer.size() - at < 8) return absl::OkStatus();
    std::uint64_t count = 0;
    std::memcpy(&count, buffer.data() + at, 8);
    at += 8;
    if (count > limits_.keys_per_request) {
      return absl::InvalidArgumentError(absl::StrCat("asked for ", count, " keys at once, at most ",
                                                     limits_.keys_per_request, " are allowed"));
    }
    request.items_left = pairs ? 2 * count : count;
    request.in_list = true;
  }
  while (request.items_left > 0) {
    bool item_done = false;
    RETURN_IF_ERROR(ParseString(connection, at,
                                request.next_is_value ? limits_.value_bytes : limits_.key_bytes,
                                item_done));
    if (!item_done) return absl::OkStatus();
    --request.items_left;
    request.next_is_value = pairs && !request.next_is_value;
  }
  done = true;
  return absl::OkStatus();
}

absl::Status Engine::ParseString(Connection& connection, std::size_t& at, std::size_t limit,
                                 bool& done) {
  Request& request = connection.request;
  const std::string& buffer = connection.buffer;
  if (buffer.size() - at < 8) return absl::OkStatus();
  std::uint64_t size = 0;
  std::memcpy(&size, buffer.data() + at, 8);
  if (size > limit) {
    return absl::InvalidArgumentError(
        absl::StrCat("sent a key or value of ", size, " bytes, at most ", limit, " are allowed"));
  }
  if (request.bytes + size > limits_.request_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("sent a request of more than ", limits_.request_bytes, " bytes"));
  }
  if (buffer.size() - at - 8 < size) return absl::OkStatus();
  request.strings.emplace_back(buffer, at + 8, size);
  request.bytes += size + kEntryBytes;
  at += 8 + size;
  done = true;
  return absl::OkStatus();
}

// ---- requests ----------------------------------------------------------------------------------

absl::Status Engine::Obey(ConnectionId id, Connection& connection, std::vector<Reply>& replies) {
  Request& request = connection.request;
  std::vector<std::string>& strings = request.strings;
  std::string reply;
  switch (request.opcode) {
    case kSet: return Store(strings[0], std::move(strings[1]), replies);
    case kAppend: return Append(strings[0], strings[1], replies);
    case kMultiSet:
      for (std::size_t i = 0; i + 1 < strings.size(); i += 2) {
        RETURN_IF_ERROR(Store(strings[i], std::move(strings[i + 1]), replies));
      }
      return absl::OkStatus();
    case kCompareSet: {
      std::string stored;
      RETURN_IF_ERROR(CompareSet(request, stored, replies));
      PutString(reply, stored);
      break;
    }
    case kGet:
    case kMultiGet:
      for (const std::string& key : strings) {
        auto found = values_.find(key);
        // Missing: empty, as the reference; clients wait for the key first.
        PutString(reply,
                  found == values_.end() ? std::string_view() : std::string_view(found->second));
        if (reply.size() > limits_.request_bytes)
          return absl::ResourceExhaustedError("asked for too many bytes at once");
      }
      break;
    case kAdd: {
      std::int64_t sum = 0;
      RETURN_IF_ERROR(Add(strings[0], request.number, sum, replies));
      PutNumber(reply, sum);
      break;
    }
    case kGetNumKeys: PutNumber(reply, static_cast<std::int64_t>(values_.size())); break;
    case kDeleteKey: PutNumber(reply, Delete(strings[0]) ? 1 : 0); break;
    case kPing: reply.assign(reinterpret_cast<const char*>(&request.number), 4); break;
    case kListKeys:
      PutNumber(reply, static_cast<std::int64_t>(values_.size()));
      for (const auto& entry : values_) PutString(reply, entry.first);
      break;
    case kQueuePush:
    case kQueuePop:
    case kQueueLen: return ObeyQueue(id, connection, replies);
    default: return ObeyWaiting(id, connection, replies);
  }
  replies.push_back({id, std::move(reply)});
  return absl::OkStatus();
}

absl::Status Engine::ObeyWaiting(ConnectionId id, Connection& connection,
                                 std::vector<Reply>& replies) {
  Request& request = connection.request;
  if (request.opcode == kCheck) {
    const bool all = std::all_of(request.strings.begin(), request.strings.end(),
                                 [&](const auto& key) { return Exists(key); });
    replies.push_back({id, std::string(1, all ? kReady : kNotReady)});
    return absl::OkStatus();
  }
  if (request.opcode ==
      kCancelWait) {  // Answered even when nothing is pending: the other answer may be on its way.
    ForgetWait(id, connection);
    replies.push_back({id, std::string(1, kWaitCanceled)});
    return absl::OkStatus();
  }
  if (connection.pending) return absl::InvalidArgumentError("waits twice at once");
  if (request.opcode == kWait) {
    for (std::string& key : request.strings) {
      if (!Exists(key) && connection.waits_for.insert(key).second) waiters_[key].push_back(id);
    }
    connection.pending = !connection.waits_for.empty();
    connection.wait_bytes = connection.pending ? request.bytes : 0;
    if (!connection.pending) replies.push_back({id, std::string(1, kStopWaiting)});
    return absl::OkStatus();
  }
  CHECK(request.opcode == kBarrier);
  const std::string& key = request.strings[0];
  const std::int64_t world_size = request.number;
  std::int64_t count = 0;
  RETURN_IF_ERROR(Add(key, 1, count, replies));
  if (count < world_size) {
    barriers_[key].push_back(id);
    connection.barrier = key;
    connection.pending = true;
    return absl::OkStatus();
  }
  replies.push_back({id, std::string(1, kStopWaiting)});
  auto waiting = barriers_.find(key);
  if (waiting == barriers_.end()) return absl::OkStatus();
  for (ConnectionId other : std::exchange(waiting->second, {})) {
    Connection& peer = connections_.at(other);
    peer.pending = false;
    peer.barrier.reset();
    replies.push_back({other, std::string(1, kStopWaiting)});
  }
  barriers_.erase(key);
  return absl::OkStatus();
}

absl::Status Engine::ObeyQueue(ConnectionId id, Connection& connection,
                               std::vector<Reply>& replies) {
  Request& request = connection.request;
  const std::string& key = request.strings[0];
  if (request.opcode == kQueuePush) {
    RETURN_IF_ERROR(Reserve(request.strings[1].size() + kEntryBytes));
    queues_[key].push_back(std::move(request.strings[1]));
    Wake(key, 1, replies);
    return absl::OkStatus();
  }
  auto found = queues_.find(key);
  std::string reply;
  PutNumber(reply, found == queues_.end() ? 0 : static_cast<std::int64_t>(found->second.size()));
  if (request.opcode == kQueuePop && found != queues_.end()) {
    PutString(reply, found->second.front());
    total_bytes_ -= found->second.front().size() + kEntryBytes;
    found->second.pop_front();
    if (found->second.empty()) queues_.erase(found);
  }
  replies.push_back({id, std::move(reply)});
  return absl::OkStatus();
}

// ---- keys --------------------------------------------------------------------------------------

bool Engine::Exists(const std::string& key) const {
  return values_.contains(key) || queues_.contains(key);
}

absl::Status Engine::Reserve(std::size_t bytes) {
  if (total_bytes_ + bytes > limits_.total_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the store is full: ", limits_.total_bytes, " bytes"));
  }
  total_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Engine::Store(const std::string& key, std::string value, std::vector<Reply>& replies) {
  auto found = values_.find(key);
  if (found != values_.end()) {
    RETURN_IF_ERROR(Reserve(value.size()));
    total_bytes_ -= found->second.size();
    found->second = std::move(value);
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Reserve(key.size() + value.size() + kEntryBytes));
  values_.emplace(key, std::move(value));
  Wake(key, SIZE_MAX, replies);
  return absl::OkStatus();
}

absl::Status Engine::Append(const std::string& key, const std::string& value,
                            std::vector<Reply>& replies) {
  auto found = values_.find(key);
  if (found == values_.end()) return Store(key, value, replies);
  if (found->second.size() + value.size() > limits_.value_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("would make a value of more than ", limits_.value_bytes, " bytes"));
  }
  RETURN_IF_ERROR(Reserve(value.size()));
  found->second += value;
  return absl::OkStatus();
}

absl::Status Engine::Add(const std::string& key, std::int64_t delta, std::int64_t& sum,
                         std::vector<Reply>& replies) {
  std::int64_t old = 0;
  auto found = values_.find(key);
  if (found != values_.end() && !ToNumber(found->second, old)) {
    return absl::InvalidArgumentError("added to a value that is no number");
  }
  sum = static_cast<std::int64_t>(static_cast<std::uint64_t>(old) +
                                  static_cast<std::uint64_t>(delta));
  return Store(key, absl::StrCat(sum), replies);
}

absl::Status Engine::CompareSet(const Request& request, std::string& stored,
                                std::vector<Reply>& replies) {
  const std::string &key = request.strings[0], &expected = request.strings[1],
                    &desired = request.strings[2];
  auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) {
    stored = expected;  // Odd, but what clients know: nothing is stored.
    return absl::OkStatus();
  }
  if (found != values_.end() && found->second != expected) {
    stored = found->second;
    return absl::OkStatus();
  }
  stored = desired;
  return Store(key, desired, replies);
}

bool Engine::Delete(const std::string& key) {
  auto value = values_.find(key);
  if (value != values_.end()) {
    total_bytes_ -= key.size() + value->second.size() + kEntryBytes;
    values_.erase(value);
    return true;
  }
  auto queue = queues_.find(key);
  if (queue == queues_.end()) return false;
  for (const std::string& entry : queue->second) total_bytes_ -= entry.size() + kEntryBytes;
  queues_.erase(queue);
  return true;
}

// ---- waits -------------------------------------------------------------------------------------

// The key has come to exist. Deleting it later wakes nobody twice: who waited for it no longer
// does.
void Engine::Wake(const std::string& key, std::size_t at_most, std::vector<Reply>& replies) {
  auto found = waiters_.find(key);
  if (found == waiters_.end()) return;
  for (; at_most > 0 && !found->second.empty(); --at_most) {
    const ConnectionId id = found->second.front();
    found->second.pop_front();
    Connection& waiter = connections_.at(id);
    waiter.waits_for.erase(key);
    if (!waiter.waits_for.empty()) continue;
    waiter.pending = false;
    waiter.wait_bytes = 0;
    replies.push_back({id, std::string(1, kStopWaiting)});
  }
  if (found->second.empty()) waiters_.erase(found);
}

void Engine::ForgetWait(ConnectionId id, Connection& connection) {
  for (const std::string& key : connection.waits_for) {
    auto found = waiters_.find(key);
    CHECK(found != waiters_.end());
    std::erase(found->second, id);
    if (found->second.empty()) waiters_.erase(found);
  }
  connection.waits_for.clear();
  if (connection.barrier) {
    auto found = barriers_.find(*connection.barrier);
    CHECK(found != barriers_.end());
    std::erase(found->second, id);
    if (found->second.empty()) barriers_.erase(found);
  }
  connection.barrier.reset();
  connection.pending = false;
  connection.wait_bytes = 0;
}

}  // namespace regroup::store
