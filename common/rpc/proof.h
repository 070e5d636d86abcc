#pragma once

// How the two ends of a TCP connection prove to each other that they know the same secret, before
// its first byte of gRPC. The gate before certificates: it says who may talk, it encrypts nothing.
//
//   caller       → kProofMagic, its nonce
//   coordinator  ← kAsks or kTakesEverybody, its nonce
//   caller       → HMAC-SHA256(token, "caller", both nonces)
//   coordinator  ← kProved, HMAC-SHA256(token, "coordinator", both nonces); or kNotProved, the end
//   caller       → gRPC
//
// A proof holds for the two nonces of one connection and for one end of it only. The caller's comes
// first: who merely reaches the port gets nothing to try tokens on.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/rpc/channel.h"

namespace regroup {

// Its first byte is neither that of gRPC ("PRI") nor an opcode of a TCPStore.
inline constexpr std::string_view kProofMagic("REGROUP\x01", 8);
inline constexpr std::size_t kNonceBytes = 32, kProofBytes = 32;
inline constexpr char kAsks = 'T', kTakesEverybody = 'I';  // The latter under --insecure.
inline constexpr char kProved = 'Y', kNotProved = 'N';

struct Nonces {  // kNonceBytes each, random.
  std::string caller, coordinator;
};
std::string NewNonce();
std::string CoordinatorProof(std::string_view token, const Nonces& nonces);
std::string CallerProof(std::string_view token, const Nonces& nonces);
// kProofBytes.
std::string HmacSha256(std::string_view key, std::string_view text);
// Takes as long for any two texts of the same length.
bool SameSecret(std::string_view a, std::string_view b);

// What a coordinator that asks for a token answers to gRPC without one: a whole answer of HTTP/2
// that ends the connection and says why.
std::string TurnedAway();
bool IsTurnedAway(std::string_view answer);

// What answers a caller's first words on the connection `fd`: kAsks or kTakesEverybody. Unset: no
// coordinator, or none that answers within `limit`.
std::optional<char> AskWhoIsTaken(int fd, Duration limit);

// The caller's end of it, on the connection `fd` to what is named `where`. Errors as of DialProved.
absl::Status ProveTo(int fd, std::string_view token, const std::string& where, Instant until);

// A connection to a coordinator, both ends proved. Blocks for options.connect_limit at most; off a
// loop. Unlike Dial's it is not made again when it breaks. UNAVAILABLE: nobody answers now;
// FAILED_PRECONDITION: what answers is no coordinator, or is ending; UNAUTHENTICATED: it has
// another token. REQUIRES: address.host is an IP literal, the token is not empty.
absl::StatusOr<Connection> DialProved(const Address& address, std::string_view token,
                                      const DialOptions& options = {});

}  // namespace regroup
