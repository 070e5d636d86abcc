#pragma once

// Requests as a client writes them.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace regroup::store::wire {

inline std::string Number(std::int64_t value) { return {reinterpret_cast<const char*>(&value), 8}; }
inline std::string String(std::string_view text) {
  return Number(static_cast<std::int64_t>(text.size())) + std::string(text);
}
inline std::string Op(char opcode) { return std::string(1, opcode); }
inline std::string Validate() { return std::string("\0\xce\xf7\x85\x3c", 5); }
inline std::string Ping(std::uint32_t nonce) {
  return Op(13) + std::string(reinterpret_cast<const char*>(&nonce), 4);
}
inline std::string Set(std::string_view key, std::string_view value) {
  return Op(1) + String(key) + String(value);
}
inline std::string CompareSet(std::string_view key, std::string_view expected,
                              std::string_view desired) {
  return Op(2) + String(key) + String(expected) + String(desired);
}
inline std::string Get(std::string_view key) { return Op(3) + String(key); }
inline std::string Add(std::string_view key, std::int64_t delta) {
  return Op(4) + String(key) + Number(delta);
}
inline std::string Keys(char opcode, const std::vector<std::string>& keys) {
  std::string out = Op(opcode) + Number(static_cast<std::int64_t>(keys.size()));
  for (const std::string& key : keys) out += String(key);
  return out;
}
inline std::string Check(const std::vector<std::string>& keys) { return Keys(5, keys); }
inline std::string Wait(const std::vector<std::string>& keys) { return Keys(6, keys); }
inline std::string MultiGet(const std::vector<std::string>& keys) { return Keys(10, keys); }
inline std::string Delete(std::string_view key) { return Op(8) + String(key); }
inline std::string Append(std::string_view key, std::string_view value) {
  return Op(9) + String(key) + String(value);
}
inline std::string CancelWait() { return Op(12); }
inline std::string Push(std::string_view key, std::string_view value) {
  return Op(14) + String(key) + String(value);
}
inline std::string Pop(std::string_view key) { return Op(15) + String(key); }
inline std::string QueueLength(std::string_view key) { return Op(16) + String(key); }
inline std::string Barrier(std::string_view key, std::int64_t world_size) {
  return Op(18) + String(key) + Number(world_size);
}

inline const std::string kStop(1, '\0'), kCanceled(1, '\1'), kReady(1, '\0'), kNotReady(1, '\1');

}  // namespace regroup::store::wire
