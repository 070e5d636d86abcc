#include "launcher/coordinator/shell/agent_messages.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

namespace regroup::coordinator {
namespace {

// Shapes that are small on the wire and large once parsed.
TEST(BytesWhenParsed, IsNeverLessThanWhatParsingTakes) {
  v1::AgentMessage groups, exits, notices;
  for (int i = 0; i < 10'000; ++i) {
    groups.mutable_hello()->add_groups();
    notices.mutable_hello()->add_notices();
  }
  auto* group = exits.mutable_hello()->add_groups();
  for (int i = 0; i < 10'000; ++i) group->add_exits();
  std::string unknown, in_a_group = "\x0b";
  for (int i = 0; i < 10'000; ++i) unknown += "\x78\x01", in_a_group += "\x78\x01";
  in_a_group += "\x0c";
  for (const std::string& wire : {groups.SerializeAsString(), exits.SerializeAsString(),
                                  notices.SerializeAsString(), unknown, in_a_group}) {
    v1::AgentMessage parsed;
    ASSERT_TRUE(parsed.ParseFromString(wire));
    const std::size_t guess = BytesWhenParsed(wire);
    EXPECT_GT(parsed.SpaceUsedLong(), 4 * wire.size());
    EXPECT_LE(parsed.SpaceUsedLong(), sizeof parsed + guess);
    EXPECT_LT(guess, 32 * parsed.SpaceUsedLong());
  }
}

}  // namespace
}  // namespace regroup::coordinator
