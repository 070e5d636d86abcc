#include "agent/store/engine.h"

#include "common/base/check.h"
#include "tests/agent/store/wire.h"
#include "tests/fuzz/targets/targets.h"

namespace regroup::fuzz {
namespace {

constexpr store::Limits kLimits{.key_bytes = 64,
                                .value_bytes = 4'096,
                                .keys_per_request = 64,
                                .request_bytes = 16 << 10,
                                .total_bytes = 64 << 10};

std::string OwnerOf(std::string_view key) {
  const std::size_t slash = key.find('/');
  return std::string(key.substr(0, slash == std::string_view::npos ? 0 : slash));
}

// However a connection's bytes arrive, it is answered the same, or closed for the same reason.
void InPieces(std::string_view bytes) {
  store::Engine whole(kLimits), pieces(kLimits);
  whole.Open(1);
  pieces.Open(1);
  std::vector<store::Reply> expected, got;
  const absl::Status status = whole.OnBytes(1, bytes, expected);
  absl::Status last;
  std::size_t step = 1;
  for (std::size_t at = 0; at < bytes.size() && last.ok(); at += step, step = step % 13 + 1)
    last = pieces.OnBytes(1, bytes.substr(at, step), got);
  // What fits only because it never waits whole is not told apart by its code.
  if (absl::IsResourceExhausted(status) || absl::IsResourceExhausted(last)) return;
  CHECK(status.code() == last.code());
  std::string a, b;
  for (const store::Reply& reply : expected) a += reply.bytes;
  for (const store::Reply& reply : got) b += reply.bytes;
  CHECK(a == b);
}

}  // namespace

bool Store(std::string_view bytes) {
  Input input(bytes);
  const unsigned mode = input.Byte();
  if (mode % 8 == 7) InPieces(store::wire::Validate() + std::string(input.Rest()));
  store::Engine engine(kLimits, mode % 2 == 0 ? nullptr : OwnerOf);
  constexpr store::ConnectionId kConnections = 3;
  bool open[kConnections + 1] = {}, answered = false;
  std::vector<store::Reply> replies;
  for (store::ConnectionId id = 1; id <= kConnections; ++id) {
    engine.Open(id);
    // The third has yet to greet.
    open[id] = id == kConnections || engine.OnBytes(id, store::wire::Validate(), replies).ok();
    CHECK(open[id]);
  }
  while (!input.empty()) {
    const store::ConnectionId id = 1 + input.Byte() % kConnections;
    const std::string_view piece = input.Piece(input.Byte());
    if (!open[id]) continue;
    replies.clear();
    if (!engine.OnBytes(id, piece, replies).ok()) {
      engine.Close(id);
      open[id] = false;
    }
    for (const store::Reply& reply : replies) {
      CHECK(reply.connection >= 1 && reply.connection <= kConnections);
      CHECK(open[reply.connection] || reply.connection == id);
      answered = true;
    }
    CHECK(engine.total_bytes() <= kLimits.total_bytes);
  }
  for (store::ConnectionId id = 1; id <= kConnections; ++id)
    if (open[id]) engine.Close(id);
  if (mode % 2 == 0) return answered;
  engine.Open(kConnections + 1);  // What only had owners is gone with them.
  engine.Close(kConnections + 1);
  return answered;
}

}  // namespace regroup::fuzz
