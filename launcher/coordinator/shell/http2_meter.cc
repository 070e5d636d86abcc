#include "launcher/coordinator/shell/http2_meter.h"

#include <algorithm>
#include <chrono>

namespace regroup::coordinator {
namespace {

constexpr std::size_t kPrefaceBytes = 24;  // "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
constexpr unsigned char kData = 0, kHeaders = 1, kPriority = 2, kReset = 3, kSettings = 4,
                        kPing = 6, kGoaway = 7, kWindowUpdate = 8;
constexpr unsigned char kEndsStream = 1;  // A flag of headers and data.

}  // namespace

Http2Meter::Http2Meter(From from) : from_(from), skip_(from == From::kClient ? kPrefaceBytes : 0) {}

const char* Http2Meter::Take(std::string_view bytes, Instant now, Http2Counts& counts) {
  if (now >= counts.second + std::chrono::seconds(1)) {
    counts.second = now;
    counts.streams = counts.resets = counts.controls = counts.windows = 0;
    counts.late_bytes = 0;
  }
  while (!bytes.empty()) {
    if (skip_ > 0) {
      const std::size_t passing = std::min(skip_, bytes.size());
      bytes.remove_prefix(passing);
      skip_ -= passing;
      continue;
    }
    header_[have_++] = static_cast<unsigned char>(bytes.front());
    bytes.remove_prefix(1);
    if (have_ < kHeaderBytes) continue;
    const std::size_t payload = Payload();
    const bool wants_error = header_[3] == kReset && payload >= kErrorBytes;
    if (wants_error && have_ < kHeaderBytes + kErrorBytes) continue;
    skip_ = payload - (wants_error ? kErrorBytes : 0);
    have_ = 0;
    if (const char* excess = TakeHeader(counts)) return excess;
  }
  return nullptr;
}

std::size_t Http2Meter::Payload() const {
  return std::size_t{header_[0]} << 16 | header_[1] << 8 | header_[2];
}

const char* Http2Meter::TakeHeader(Http2Counts& counts) {
  const std::uint32_t stream =
      std::uint32_t{header_[5]} << 24 | header_[6] << 16 | header_[7] << 8 | header_[8];
  switch (header_[3]) {
    case kHeaders:
      if (from_ == From::kServer) break;
      counts.called = true;
      if (++counts.streams > kMaxStreamsPerSecond) return "streams";
      counts.open.insert(stream);
      if (counts.open.size() > kMaxOpenStreams) return "streams open at once";
      return nullptr;
    case kData:
      // Nine bytes of a frame without data take eight times as many in gRPC until it is read.
      if (from_ == From::kClient && Payload() == 0 && (header_[4] & kEndsStream) == 0 &&
          ++counts.controls > kMaxControlsPerSecond)
        return "empty frames";
      if (from_ == From::kServer || counts.open.contains(stream)) break;
      counts.late_bytes += Payload();
      return counts.late_bytes > kMaxLateBytesPerSecond ? "data after its end" : nullptr;
    case kReset: {
      // A server ends a stream with NO_ERROR when it has answered before it heard all. Any other
      // reset by a server was provoked.
      const bool answered =
          from_ == From::kServer && std::all_of(header_.begin() + kHeaderBytes, header_.end(),
                                                [](unsigned char byte) { return byte == 0; });
      if (answered) return nullptr;
      counts.open.erase(stream);
      if (++counts.resets > kMaxResetsPerSecond) return "resets";
      return nullptr;
    }
    case kPriority:
    case kSettings:
    case kPing:
      if (from_ == From::kClient && ++counts.controls > kMaxControlsPerSecond)
        return "settings, pings and priorities";
      return nullptr;
    case kGoaway:
      if (from_ == From::kClient && ++counts.goaways > kMaxGoaways) return "goaways";
      return nullptr;
    case kWindowUpdate:
      if (from_ == From::kClient && ++counts.windows > kMaxWindowUpdatesPerSecond)
        return "window updates";
      return nullptr;
    default: return nullptr;
  }
  const bool ended = from_ == From::kServer && (header_[4] & kEndsStream) != 0;
  if (ended) counts.open.erase(stream);
  return nullptr;
}

}  // namespace regroup::coordinator
