#pragma once

// What reads bytes of others, each as a function of any bytes: it must return, and what it took it
// must be able to say again. They run the product's own code; each returns whether it took the
// bytes, or some of them, so that a corpus can be told from one that is refused at its first byte.
// libFuzzer runs them for as long as it is told (`./dev fuzz`), and a unit test replays their
// corpora.

#include <span>
#include <string_view>

namespace regroup::fuzz {

struct Target {
  const char* name;  // Of its corpus, tests/fuzz/corpus/NAME.
  bool (*run)(std::string_view bytes);
};
std::span<const Target> Targets();

bool AgentSession(std::string_view bytes);  // Messages of agents, into the coordinator's core.
bool Store(std::string_view bytes);         // TCPStore frames.
bool WorkerLines(std::string_view bytes);   // JSON lines of a worker.
bool JobFile(std::string_view bytes);
bool Rows(std::string_view bytes);  // Of the journal.
bool ErrorFile(std::string_view bytes);
bool Checkpoint(std::string_view bytes);  // Safetensors header, manifest, shard report.
bool Shim(std::string_view bytes);        // What agent and shim write and say.
bool Http2(std::string_view bytes);       // Frames of a connection that is counted.
bool Proof(std::string_view bytes);       // Both ends of what comes before gRPC on TCP.

// Takes numbers and pieces off the front; zeros and nothing at the end.
class Input {
 public:
  explicit Input(std::string_view bytes) : rest_(bytes) {}
  bool empty() const { return rest_.empty(); }
  unsigned Byte() {
    if (rest_.empty()) return 0;
    const unsigned byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    return byte;
  }
  std::string_view Piece(std::size_t bytes) {
    const std::string_view piece = rest_.substr(0, bytes);
    rest_.remove_prefix(piece.size());
    return piece;
  }
  // As long as the next two bytes say.
  std::string_view Piece() {
    const std::size_t high = Byte(), low = Byte();
    return Piece(high << 8 | low);
  }
  std::string_view Rest() { return Piece(rest_.size()); }

 private:
  std::string_view rest_;
};

}  // namespace regroup::fuzz
