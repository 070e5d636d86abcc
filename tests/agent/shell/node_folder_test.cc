#include "agent/shell/node_folder.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "agent/shell/backoff.h"
#include "common/base/user_error.h"
#include "tests/agent/shell/scratch.h"

namespace regroup::agent {
namespace {

using testing::Scratch;

bool Any(const NodeId&) { return true; }

TEST(NodeFolder, IsTheNodeAcrossLives) {
  Scratch scratch;
  NodeId id;
  {
    auto first = NodeFolder::Take(scratch.path(), io::Durability::kDurable, Any);
    ASSERT_TRUE(first.ok()) << first.status();
    id = first->node();
    EXPECT_EQ(first->incarnation(), Incarnation(1));
    EXPECT_TRUE(first->cluster().empty());
    ASSERT_TRUE(first->Remember(ClusterId("c"), Epoch(7)).ok());
  }
  auto again = NodeFolder::Take(scratch.path(), io::Durability::kDurable, Any);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->node(), id);
  EXPECT_EQ(again->incarnation(), Incarnation(2));
  EXPECT_EQ(again->cluster(), ClusterId("c"));
  EXPECT_EQ(again->highest_epoch(), Epoch(7));
}

TEST(NodeFolder, ASecondAgentTakesTheNextOne) {
  Scratch scratch;
  auto a = NodeFolder::Take(scratch.path(), io::Durability::kVolatile, Any);
  auto b = NodeFolder::Take(scratch.path(), io::Durability::kVolatile, Any);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->node(), b->node());
  EXPECT_EQ(b->path(), scratch.path() + "/node-1");
}

TEST(NodeFolder, AnUnusableNodeIsLeftAlone) {
  Scratch scratch;
  NodeId busy;
  { busy = NodeFolder::Take(scratch.path(), io::Durability::kVolatile, Any)->node(); }
  auto other = NodeFolder::Take(scratch.path(), io::Durability::kVolatile,
                                [&](const NodeId& id) { return id != busy; });
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->node(), busy);
  EXPECT_EQ(other->path(), scratch.path() + "/node-1");
}

TEST(NodeFolder, DamageIsSaidAndNothingIsGuessed) {
  Scratch scratch;
  { ASSERT_TRUE(NodeFolder::Take(scratch.path(), io::Durability::kVolatile, Any).ok()); }
  std::ofstream(scratch.path() + "/node-0/node.json") << "{\"node\": 5}";
  EXPECT_TRUE(
      absl::IsDataLoss(NodeFolder::Take(scratch.path(), io::Durability::kVolatile, Any).status()));
}

TEST(NodeFolder, AFullDiskIsSaidWithItsFolder) {
  Scratch scratch;
  // As on a full disk, nothing can be written.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &none), 0);
  const absl::Status taken =
      NodeFolder::Take(scratch.path(), io::Durability::kVolatile, Any).status();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_DFL);
  const UserErrorParts said = PartsOf(taken);
  EXPECT_EQ(said.what, "this node cannot keep its state in " + scratch.path() + "/node-0");
  EXPECT_NE(said.because, "");
  EXPECT_NE(said.try_this, "");
}

TEST(Backoff, HurriedItIsAtMostASecondUntilReset) {
  Backoff backoff(1);
  for (int i = 0; i < 8; ++i) backoff.Next(false);
  backoff.Hurry();
  Duration longest{};
  for (int i = 0; i < 200; ++i) longest = std::max(longest, backoff.Next(false));
  EXPECT_LE(longest, std::chrono::seconds(1));
  backoff.Reset();
  longest = {};
  for (int i = 0; i < 200; ++i) longest = std::max(longest, backoff.Next(false));
  EXPECT_GT(longest, std::chrono::seconds(1));
}

TEST(Backoff, DoublesUnderItsBoundsAndIsFlatOnLoopback) {
  Backoff backoff(1);
  Duration bound = Backoff::kFirst;
  for (int i = 0; i < 20; ++i) {
    const Duration wait = backoff.Next(false);
    EXPECT_GT(wait, Duration::zero());
    EXPECT_LE(wait, bound);
    bound = std::min(bound * 2, Backoff::kMost);
    EXPECT_EQ(backoff.Next(true), Backoff::kFirst);
  }
  backoff.Reset();
  EXPECT_LE(backoff.Next(false), Backoff::kFirst);
}

}  // namespace
}  // namespace regroup::agent
