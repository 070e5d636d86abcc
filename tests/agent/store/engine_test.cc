#include "agent/store/engine.h"

#include <gmock/gmock.h>

#include "absl/strings/str_cat.h"
#include "common/base/rng.h"
#include "tests/agent/store/wire.h"

namespace regroup::store {
namespace {

using namespace wire;  // NOLINT: the requests' vocabulary.
using testing::HasSubstr;

class EngineTest : public testing::Test {
 protected:
  explicit EngineTest(Limits limits = {}) : engine_(limits) {
    for (ConnectionId id = 1; id <= 4; ++id) {
      engine_.Open(id);
      EXPECT_EQ(Send(id, Validate()), "");
    }
  }
  // What `id` is answered; what others are lies in inbox_.
  std::string Send(ConnectionId id, const std::string& bytes) {
    std::vector<Reply> replies;
    status_ = engine_.OnBytes(id, bytes, replies);
    std::string mine;
    for (const Reply& reply : replies)
      (reply.connection == id ? mine : inbox_[reply.connection]) += reply.bytes;
    return mine;
  }
  std::string Inbox(ConnectionId id) { return std::exchange(inbox_[id], {}); }

  Engine engine_;
  absl::Status status_;
  std::map<ConnectionId, std::string> inbox_;
};

TEST_F(EngineTest, Vectors) {
  EXPECT_EQ(Send(1, Ping(12345)), std::string("\x39\x30\0\0", 4));
  EXPECT_EQ(Send(1, Add("init/", 1)), Number(1));
  EXPECT_EQ(Send(1, Set("/a", "hi")), "");
  EXPECT_EQ(Send(1, Wait({"/a"})), kStop);
  EXPECT_EQ(Send(1, Get("/a")), String("hi"));
  EXPECT_EQ(Send(1, Check({"/a", "/b"})), kNotReady);
  EXPECT_EQ(Send(1, CompareSet("/k", "", "x")), String("x"));
}

// The first letter after the slash, for capital letters.
std::string CapitalOf(std::string_view key) {
  return key.size() > 1 && key[1] >= 'A' && key[1] <= 'Z' ? std::string(1, key[1]) : "";
}

TEST(Owners, KeysGoWithTheLastConnectionThatNamedOne) {
  Engine engine({}, CapitalOf);
  std::vector<Reply> replies;
  const auto send = [&](ConnectionId id, const std::string& bytes) {
    ASSERT_TRUE(engine.OnBytes(id, bytes, replies).ok());
  };
  for (const ConnectionId id : {1, 2, 3}) {
    engine.Open(id);
    send(id, Validate());
  }
  send(1, Set("/A1", "x") + Push("/Aqueue", "y") + Set("/free", "z"));
  send(2, Get("/A1"));
  send(3, Op(11) + Number(2) + String("/B") + String("/Avalue") + String("/C") + String("v"));
  EXPECT_EQ(engine.key_count(), 4u);
  engine.Close(3);
  EXPECT_EQ(engine.key_count(), 2u) << "B and C are over";
  engine.Close(1);
  EXPECT_EQ(engine.key_count(), 2u) << "connection 2 has named a key of A";
  engine.Close(2);
  EXPECT_EQ(engine.key_count(), 1u) << "/free is nobody's";
  engine.Open(4);
  send(4, Validate() + Delete("/free"));
  EXPECT_EQ(engine.total_bytes(), 0u) << "the queue went, too";
}

TEST(Owners, OfOneConnectionAreBounded) {
  Engine engine({}, [](std::string_view key) { return std::string(key); });
  engine.Open(1);
  std::vector<Reply> replies;
  ASSERT_TRUE(engine.OnBytes(1, Validate(), replies).ok());
  absl::Status last;
  int named = 0;
  for (; last.ok() && named < 1000; ++named)
    last = engine.OnBytes(1, Get(absl::StrCat("/", named)), replies);
  EXPECT_EQ(named, 65);
  EXPECT_THAT(std::string(last.message()), HasSubstr("more than 64 jobs"));
  engine.Close(1);
}

TEST_F(EngineTest, CompareSet) {
  EXPECT_EQ(Send(1, CompareSet("/k", "old", "new")), String("old"));  // Missing: nothing is stored.
  EXPECT_EQ(Send(1, Check({"/k"})), kNotReady);
  Send(1, Set("/k", "v"));
  EXPECT_EQ(Send(1, CompareSet("/k", "x", "y")), String("v"));
  EXPECT_EQ(Send(1, CompareSet("/k", "v", "w")), String("w"));
  EXPECT_EQ(Send(2, Get("/k")), String("w"));
}

TEST_F(EngineTest, AddKeepsDecimalText) {
  Send(1, Set("/n", "5"));
  EXPECT_EQ(Send(1, Add("/n", 1)), Number(6));
  EXPECT_EQ(Send(1, Get("/n")), String("6"));
  EXPECT_EQ(Send(1, Add("/n", -10)), Number(-4));
  EXPECT_EQ(Send(1, Add("/n", INT64_MIN)), Number(INT64_MAX - 3));  // Wraps, as the reference.
  Send(1, Set("/text", "abc"));
  EXPECT_EQ(Send(1, Add("/text", 1)), "");
  EXPECT_FALSE(status_.ok());
  engine_.Close(1);
  EXPECT_EQ(Send(2, Get("/text")), String("abc"));  // Only that connection ends.
}

TEST_F(EngineTest, MissingValuesAreEmpty) {
  Send(1, Set("/a", "1"));
  EXPECT_EQ(Send(1, Get("/zz")), String(""));
  EXPECT_EQ(Send(1, MultiGet({"/zz", "/a"})), String("") + String("1"));
  EXPECT_EQ(Send(1, MultiGet({})), "");
  EXPECT_EQ(Send(1, Append("/a", "2")), "");
  EXPECT_EQ(Send(1, Get("/a")), String("12"));
}

TEST_F(EngineTest, WaitEndsWhenEveryKeyWasCreated) {
  EXPECT_EQ(Send(1, Wait({"/set", "/add", "/append", "/cas", "/multi", "/set"})), "");
  Send(2, Set("/set", ""));
  Send(2, Delete("/set"));  // Does not arm the wait again.
  Send(2, Add("/add", 1));
  Send(2, Append("/append", "x"));
  Send(2, CompareSet("/cas", "no", "x"));  // Stores nothing, so it wakes nobody.
  Send(2, Op(11) + Number(1) + String("/multi") + String(""));
  EXPECT_EQ(Inbox(1), "");
  Send(2, CompareSet("/cas", "", "x"));
  EXPECT_EQ(Inbox(1), kStop);
  Send(2, Set("/set", "again"));
  EXPECT_EQ(Inbox(1), "");
}

TEST_F(EngineTest, CancelWaitIsAlwaysAnswered) {
  EXPECT_EQ(Send(1, CancelWait()), kCanceled);
  EXPECT_EQ(Send(1, Wait({"/a"})), "");
  EXPECT_EQ(Send(1, CancelWait()), kCanceled);
  Send(2, Set("/a", "1"));
  EXPECT_EQ(Inbox(1), "");
  EXPECT_EQ(Send(1, Wait({"/b"})), "");
  Send(2, Set("/b", "1"));
  EXPECT_EQ(Inbox(1), kStop);  // Crosses the cancel on the wire:
  EXPECT_EQ(Send(1, CancelWait()), kCanceled);
  EXPECT_EQ(Send(1, Wait({"/b"})), kStop);
}

TEST_F(EngineTest, AWaitingConnectionMayNotWaitTwiceButCanDoOtherThings) {
  EXPECT_EQ(Send(1, Wait({"/a"})), "");
  EXPECT_EQ(Send(1, Ping(1)), std::string("\1\0\0\0", 4));
  EXPECT_TRUE(status_.ok());
  Send(1, Barrier("/b", 2));
  EXPECT_FALSE(status_.ok());
}

TEST_F(EngineTest, ClosedConnectionsWaitForNothing) {
  Send(1, Wait({"/a", "/b"}));
  Send(2, Barrier("/c", 3));
  engine_.Close(1);
  engine_.Close(2);
  Send(3, Set("/a", "1"));
  Send(3, Barrier("/c", 3));
  EXPECT_EQ(Send(4, Barrier("/c", 3)), kStop);  // Closing does not take the arrival back.
  EXPECT_EQ(Inbox(3), kStop);
  EXPECT_EQ(Inbox(2), "");
}

TEST_F(EngineTest, QueuesAreKeysToWaiters) {
  EXPECT_EQ(Send(1, Pop("/q")), Number(0));
  EXPECT_EQ(Send(1, Wait({"/q"})), "");
  EXPECT_EQ(Send(2, Wait({"/q"})), "");
  EXPECT_EQ(Send(3, Push("/q", "x")), "");
  EXPECT_EQ(Inbox(1), kStop);  // One push wakes one.
  EXPECT_EQ(Inbox(2), "");
  EXPECT_EQ(Send(3, Check({"/q"})), kReady);
  EXPECT_EQ(Send(1, Pop("/q")), Number(1) + String("x"));
  EXPECT_EQ(Send(3, Check({"/q"})), kNotReady);
  Send(3, Push("/q", "y") + Push("/q", "z"));
  EXPECT_EQ(Inbox(2), kStop);
  EXPECT_EQ(Send(3, QueueLength("/q")), Number(2));
  EXPECT_EQ(Send(3, Op(7)), Number(0));  // Not counted as keys.
  EXPECT_EQ(Send(3, Delete("/q")), Number(1));
  EXPECT_EQ(Send(3, Delete("/q")), Number(0));
  EXPECT_EQ(engine_.total_bytes(), 0u);
}

// A key may be empty: who waits there and leaves must not be looked for when others meet.
TEST_F(EngineTest, ABarrierAtTheEmptyKeyIsLeftToo) {
  EXPECT_EQ(Send(1, Barrier("", 4)), "");
  EXPECT_EQ(Send(2, Barrier("", 4)), "");
  engine_.Close(1);
  EXPECT_EQ(Send(2, CancelWait()), kCanceled);
  EXPECT_EQ(Send(3, Barrier("", 4)), "");
  EXPECT_EQ(Send(4, Barrier("", 4)), kStop);
  EXPECT_EQ(Inbox(3), kStop);
  EXPECT_EQ(Inbox(2), "");
}

TEST_F(EngineTest, BarrierIsSingleUse) {
  EXPECT_EQ(Send(1, Barrier("/b", 3)), "");
  EXPECT_EQ(Send(2, Barrier("/b", 3)), "");
  EXPECT_EQ(Send(3, Barrier("/b", 3)), kStop);
  EXPECT_EQ(Inbox(1) + Inbox(2), kStop + kStop);
  EXPECT_EQ(Send(4, Barrier("/b", 3)), kStop);
  EXPECT_EQ(Send(4, Get("/b")), String("4"));
}

TEST_F(EngineTest, SizesAreBounded) {
  const std::vector<std::string> too_much = {
      Set(std::string(8193, 'k'), "v"),
      Op(1) + String("/k") + Number((8 << 20) + 1),
      Op(3) + Number(-1),
      Op(6) + Number(131073),
      Op(11) + Number(-1),
      Op(19),
      std::string("\xff", 1),
      Validate(),
  };
  ConnectionId id = 100;
  for (const std::string& request : too_much) {
    engine_.Open(++id);
    Send(id, Validate());
    EXPECT_TRUE(status_.ok());
    Send(id, request);
    EXPECT_FALSE(status_.ok()) << id - 100;
    engine_.Close(id);
  }
  Send(1, Set(std::string(8192, 'k'), std::string(8 << 20, 'v')));
  EXPECT_TRUE(status_.ok()) << status_;
  Send(1, Append(std::string(8192, 'k'), "v"));
  EXPECT_FALSE(status_.ok());
  std::vector<std::string> keys;
  for (int i = 0; i < 131072; ++i) keys.push_back(absl::StrCat("/", i));
  EXPECT_EQ(Send(2, Check(keys)), kNotReady);
}

class SmallEngineTest : public EngineTest {
 protected:
  SmallEngineTest() : EngineTest({.total_bytes = 10000}) {}
};

TEST_F(SmallEngineTest, MemoryIsBounded) {
  Send(1, Set("/a", std::string(6000, 'x')));
  EXPECT_TRUE(status_.ok());
  Send(2, Set("/b", std::string(6000, 'x')));
  EXPECT_TRUE(absl::IsResourceExhausted(status_)) << status_;
  engine_.Close(2);
  Send(1, Set("/a", "small"));
  EXPECT_TRUE(status_.ok());
  Send(3, Set("/b", std::string(6000, 'x')));
  EXPECT_TRUE(status_.ok());
  // Half requests count too.
  Send(1, Op(1) + String("/c") + Number(6000) + std::string(5999, 'x'));
  EXPECT_TRUE(status_.ok());
  Send(4, Op(1) + String("/d") + Number(6000) + std::string(5999, 'x'));
  EXPECT_TRUE(absl::IsResourceExhausted(status_));
  engine_.Close(4);
  engine_.Close(1);
  engine_.Open(5);
  Send(5, Validate() + Op(1) + String("/d") + Number(6000) + std::string(5999, 'x'));
  EXPECT_TRUE(status_.ok()) << status_;
}

struct Stranger {
  std::string bytes, says;
};
TEST(Handshake, OthersAreRefusedByName) {
  const std::vector<Stranger> strangers = {
      {Set("init/", "1").substr(1).insert(0, 1, '\0'),
       "PyTorch 2.0 or older"},  // SET of 1.13: opcode 0.
      {std::string("\3", 1) + String("init/"), "PyTorch 2.0 or older"},
      {std::string("\x0c", 1), "PyTorch 2.0 or older"},
      {std::string("\xce\xf7\x85\x3c", 4), "August 2023"},
      {std::string("\xce\xf7\x00", 3), "no TCPStore client"},
      {std::string("\0\xce\xf7\x85\x3d", 5), "wrong handshake"},
      {"GET / HTTP/1.1\r\n", "no TCPStore client"},
      {std::string("\x16\x03\x01", 3), "no TCPStore client"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "no TCPStore client"},
  };
  for (const Stranger& stranger : strangers) {
    Engine engine;
    engine.Open(1);
    std::vector<Reply> replies;
    absl::Status status;
    for (char byte : stranger.bytes) {
      if (status.ok()) status = engine.OnBytes(1, {&byte, 1}, replies);
    }
    EXPECT_THAT(std::string(status.message()), HasSubstr(stranger.says));
    EXPECT_TRUE(replies.empty());
  }
}

// Whatever arrives, in whatever pieces: no crash, no more memory than allowed, and an honest client
// is served.
TEST(RandomBytes, HarmOnlyTheirOwnConnection) {
  Rng rng(20240607);
  Engine engine({.total_bytes = 1 << 20});
  engine.Open(1);
  std::vector<Reply> replies;
  ASSERT_TRUE(engine.OnBytes(1, Validate(), replies).ok());
  const std::vector<std::string> seeds = {
      Set("/a", "1"),    Wait({"/a", "/b"}), Add("/n", 1),     Barrier("/c", 2),
      Push("/q", "x"),   Pop("/q"),          MultiGet({"/a"}), CompareSet("/a", "1", "2"),
      Append("/a", "x"), Delete("/a"),       CancelWait(),     Op(17)};
  for (ConnectionId id = 2; id < 4000; ++id) {
    engine.Open(id);
    std::string bytes = Validate();
    for (std::uint64_t n = rng.Below(12); n-- > 0;) {
      std::string part = seeds[rng.Below(seeds.size())];
      if (rng.Below(3) == 0) part[rng.Below(part.size())] = static_cast<char>(rng.Below(256));
      bytes += rng.Below(20) == 0 ? part.substr(0, rng.Below(part.size() + 1)) : part;
    }
    bool alive = true;
    for (std::size_t at = 0; alive && at < bytes.size();) {
      const std::size_t size = 1 + rng.Below(40);
      alive = engine.OnBytes(id, std::string_view(bytes).substr(at, size), replies).ok();
      at += size;
    }
    if (!alive || rng.Below(2) == 0) engine.Close(id);
    replies.clear();
    ASSERT_LE(engine.total_bytes(), 1u << 20);
    if (id % 50 == 0) {
      ASSERT_TRUE(engine.OnBytes(1, Ping(7), replies).ok());
      ASSERT_EQ(replies.back().bytes, std::string("\7\0\0\0", 4));
    }
  }
}

}  // namespace
}  // namespace regroup::store
