#pragma once

// Counts what the peers of one HTTP/2 connection make each other do, from the headers of its frames
// (RFC 9113 §4.1). A stream that is opened and reset at once costs its sender nothing and a gRPC
// server a whole call, of which any number may wait: so each second has a share of them. Pure; one
// object per direction, and counts that both directions share.

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string_view>

#include "common/base/time.h"

namespace regroup::coordinator {

// Of one connection, in one second. An agent opens one stream for its life and one per reader of
// its logs; a client that submits as fast as it can opens some thousands.
inline constexpr int kMaxStreamsPerSecond = 20'000;
inline constexpr int kMaxResetsPerSecond = 200;
// Settings, pings, priorities, and data of no bytes that ends nothing, which no window bounds and
// of which gRPC keeps each until it is read. gRPC's own pings are some ten.
inline constexpr int kMaxControlsPerSecond = 200;
// A reader gives one for some 32 KiB that it has taken, and one for the connection.
inline constexpr int kMaxWindowUpdatesPerSecond = 50'000;
// In a connection's life. A client says so once, and gRPC keeps something of each for good: 60 MB
// in a minute of nothing else.
inline constexpr int kMaxGoaways = 4;
// At any time. gRPC has 256, and holds only those to it that have acknowledged its settings.
inline constexpr std::size_t kMaxOpenStreams = 300;
// In one second, of data on streams that are over. Who sends when a stream is reset has a window of
// it on its way, 64 streams that are ended together have one each; gRPC takes any amount, a
// gigabyte in a second.
inline constexpr std::size_t kMaxLateBytesPerSecond = 16u << 20;

// Of both directions.
struct Http2Counts {
  Instant second{};  // When it began.
  int streams = 0, resets = 0, controls = 0, windows = 0;
  std::size_t late_bytes = 0;
  int goaways = 0;      // Since it began.
  bool called = false;  // Ever: a stream was opened.
  // Now, of kMaxOpenStreams: streams that the server has not ended, and that were not reset.
  std::set<std::uint32_t> open;
};

class Http2Meter {
 public:
  enum class From { kClient, kServer };
  explicit Http2Meter(From from);

  // What passes now. Null, or what there was too much of: then the connection is to be cut.
  const char* Take(std::string_view bytes, Instant now, Http2Counts& counts);

 private:
  const char* TakeHeader(Http2Counts& counts);
  std::size_t Payload() const;

  static constexpr std::size_t kHeaderBytes = 9, kErrorBytes = 4;
  const From from_;
  std::size_t skip_ = 0;  // Of a preface or a payload: bytes that still pass uncounted.
  // A frame's header; of RST_STREAM also its error.
  std::array<unsigned char, kHeaderBytes + kErrorBytes> header_{};
  std::size_t have_ = 0;
};

}  // namespace regroup::coordinator
