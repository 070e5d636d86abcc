// Every line of a capture of PyTorch 2.15's client and server, against our engine.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "agent/store/engine.h"
#include "tests/agent/store/wire.h"

namespace regroup::store {
namespace {

constexpr std::size_t kCapturedBytes = 98;  // The longest answer was cut there.

struct Line {
  bool client = false;
  std::string bytes;
};
struct Call {
  std::string name, result;
  std::vector<Line> lines;
};

std::vector<Call> ReadCapture() {
  std::vector<Call> calls;
  std::ifstream file(REGROUP_CAPTURE);
  for (std::string text; std::getline(file, text);) {
    if (text.empty() || text[0] == '#') continue;
    if (text.rfind("    ", 0) != 0) {
      const std::size_t arrow = text.find(" -> ");
      Call call{text.substr(0, text.find_last_not_of(' ', arrow) + 1), text.substr(arrow + 4), {}};
      calls.push_back(call);
      continue;
    }
    Line line;
    line.client = text[4] == 'C';
    std::istringstream words(text.substr(6));
    for (std::string word; words >> word;)
      line.bytes += static_cast<char>(std::stoi(word, nullptr, 16));
    calls.back().lines.push_back(line);
  }
  return calls;
}

// Of "['m2', 'm1']".
std::multiset<std::string> Names(const std::string& list) {
  std::multiset<std::string> names;
  for (std::size_t at = list.find('\''); at != std::string::npos; at = list.find('\'', at)) {
    const std::size_t end = list.find('\'', at + 1);
    names.insert("/" + list.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return names;
}
std::multiset<std::string> NamesInReply(const std::string& reply) {
  std::multiset<std::string> names;
  for (std::size_t at = 8; at + 8 <= reply.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, reply.data() + at, 8);
    names.insert(reply.substr(at + 8, size));
    at += 8 + size;
  }
  return names;
}

class Capture : public testing::TestWithParam<std::size_t> {
 protected:
  Capture() {
    engine_.Open(1);
    engine_.Open(2);
    EXPECT_EQ(Send(2, wire::Validate()), "");
  }
  // In pieces of the parameter's size.
  std::string Send(ConnectionId id, const std::string& bytes) {
    std::vector<Reply> replies;
    for (std::size_t at = 0; at < bytes.size() && status_.ok(); at += GetParam()) {
      status_ = engine_.OnBytes(id, std::string_view(bytes).substr(at, GetParam()), replies);
    }
    std::string mine;
    for (const Reply& reply : replies) mine += reply.connection == 1 ? reply.bytes : "";
    return mine;
  }
  Engine engine_;
  absl::Status status_;
};

TEST_P(Capture, IsAnsweredByteForByte) {
  const std::vector<Call> calls = ReadCapture();
  ASSERT_EQ(calls.size(), 30u);
  std::set<int> opcodes;
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    if (call.name == "barrier(b3, world 2) met") Send(2, wire::Barrier("/b3", 2));
    std::string received;
    for (std::size_t i = 0; i < call.lines.size(); ++i) {
      const Line& line = call.lines[i];
      if (line.client) {
        opcodes.insert(line.bytes[0]);
        received += Send(1, line.bytes);
        const bool answered = i + 1 < call.lines.size() && !call.lines[i + 1].client;
        EXPECT_EQ(received.empty(), !answered);
      } else if (call.name.rfind("list_keys", 0) == 0) {  // In any order.
        EXPECT_EQ(NamesInReply(received), Names(call.result));
        EXPECT_EQ(std::min(received.size(), kCapturedBytes), line.bytes.size());
        received.clear();
      } else {
        EXPECT_EQ(received, line.bytes);
        received.clear();
      }
    }
    EXPECT_EQ(status_.ok(), call.name != "add on non-number") << status_;
  }
  EXPECT_EQ(opcodes.size(), 18u);  // 13 follows 0 in one read.
}

INSTANTIATE_TEST_SUITE_P(Pieces, Capture, testing::Values(1, 2, 3, 7, 1000));

}  // namespace
}  // namespace regroup::store
