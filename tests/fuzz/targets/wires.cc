// What our own programs write and say to each other, and the frames of those that say to be ours.

#include "agent/shim/protocol.h"
#include "common/base/check.h"
#include "launcher/coordinator/shell/http2_meter.h"
#include "launcher/coordinator/shell/records.h"
#include "tests/fuzz/targets/targets.h"

namespace regroup::fuzz {
namespace {

// What was taken is said in one way, and that is taken again.
template <class Decode>
bool RoundTrip(std::string_view bytes, const Decode& decode) {
  const auto value = decode(bytes);
  if (!value.ok()) return false;
  const std::string said = shim::Encode(*value);
  const auto again = decode(said);
  CHECK(again.ok());
  CHECK(shim::Encode(*again) == said);
  return true;
}

}  // namespace

bool Shim(std::string_view bytes) {
  Input input(bytes);
  switch (input.Byte() % 4) {
    case 0: return RoundTrip(input.Rest(), shim::DecodeSpec);
    case 1: return RoundTrip(input.Rest(), shim::DecodeCommand);
    case 2: return RoundTrip(input.Rest(), shim::DecodeState);
    default: break;
  }
  std::string buffer;
  bool took = false;
  while (!input.empty()) {
    buffer += input.Piece(input.Byte());
    const auto frames = shim::TakeFrames(buffer);
    if (!frames.ok()) return took;
    took = took || !frames->empty();
    CHECK(buffer.size() <= shim::kMaxMessageBytes + 4);
  }
  return took;
}

bool Rows(std::string_view bytes) {
  using namespace coordinator;  // NOLINT: the journal's vocabulary.
  const std::string keys[] = {
      "meta",          "node/n",         "job/j-1/spec",   "job/j-1/state",
      "job/j-1/gen/1", "job/j-1/done/n", "job/j-1/commit", "job/j-1/event/000001"};
  Input input(bytes);
  const unsigned kind = input.Byte();
  JournalRow row;
  row.key = kind < 0xF0 ? keys[kind % std::size(keys)] : std::string(input.Piece(kind & 0xF));
  row.value = std::string(input.Rest());
  std::vector<std::string> left_out;
  const absl::StatusOr<std::vector<Row>> rows = DecodeRows({&row, 1}, &left_out);
  CHECK(!rows.ok() || rows->size() + left_out.size() == 1);
  if (!rows.ok() || rows->empty()) return false;
  const JournalRow said = EncodeRow(rows->front());
  CHECK(CheckReadable(rows->front(), said).ok());
  const absl::StatusOr<std::vector<Row>> again = DecodeRows({&said, 1}, &left_out);
  CHECK(again.ok() && again->size() == 1);
  CHECK(EncodeRow(again->front()) == said);
  return true;
}

// However the bytes arrive, the verdict is the same.
bool Http2(std::string_view bytes) {
  using coordinator::Http2Counts, coordinator::Http2Meter;
  Input input(bytes);
  const auto from = input.Byte() % 2 == 0 ? Http2Meter::From::kClient : Http2Meter::From::kServer;
  const unsigned times = 1 + input.Byte() % 64;
  std::string frames;
  const std::string_view once = input.Rest();
  for (unsigned i = 0; i < times; ++i) frames += once;
  Http2Counts whole_counts, counts;
  Http2Meter whole(from), pieces(from);
  const char* expected = whole.Take(frames, Instant(), whole_counts);
  const char* excess = nullptr;
  std::size_t step = 1;
  for (std::size_t at = 0; at < frames.size() && excess == nullptr;
       at += step, step = step % 17 + 1)
    excess = pieces.Take(std::string_view(frames).substr(at, step), Instant(), counts);
  CHECK((excess == nullptr) == (expected == nullptr));
  if (excess != nullptr) return false;
  CHECK(counts.streams == whole_counts.streams && counts.resets == whole_counts.resets);
  CHECK(counts.controls == whole_counts.controls && counts.windows == whole_counts.windows);
  CHECK(counts.open == whole_counts.open && counts.open.size() <= coordinator::kMaxOpenStreams + 1);
  return counts.streams + counts.resets + counts.controls + counts.windows > 0;
}

}  // namespace regroup::fuzz
