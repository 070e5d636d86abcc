// How long shims and stores wait for an agent that is away, and that each ends by itself.

#include <poll.h>
#include <sys/socket.h>

#include "common/io/address.h"
#include "tests/agent/shim/shim_fixture.h"

namespace regroup::shim {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr auto kShort = milliseconds(200);

class Patience : public ShimTest {
 protected:
  Spec Patient(const std::string& script, Duration patience) {
    Spec spec = ShellSpec(script);
    spec.agent_patience = patience;
    return spec;
  }
  Spec PatientStore(Duration patience) {
    Spec spec = CommandSpec({});
    spec.role = Role::kStore;
    spec.store_members = {"127.0.0.1"};
    spec.agent_patience = patience;
    return spec;
  }
};

io::UniqueFd Dial(const Address& address) {
  io::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const io::SocketAddress target = *io::ToSocketAddress(address);
  if (::connect(fd.get(), target.get(), target.size) < 0) fd.reset();
  return fd;
}
bool Ends(const Group& group, int limit_ms = 20'000) {
  pollfd process{group.shim.process.get(), POLLIN, 0};
  return ::poll(&process, 1, limit_ms) == 1;
}
void Leave(Group& group) {  // The agent is gone.
  group.link.reset();
  group.gone = true;
}
void Return(Group& group) {
  group.link = std::move(*Link::Connect(group.directory, group.spec, false));
  group.state = State{};
  group.gone = false;
}

TEST_F(Patience, AFreeGroupKeepsItsWitnessUntilItIsReleased) {
  Group group = Run(Patient("exit 3", hours(1)));
  Leave(group);
  ASSERT_TRUE(Eventually([&] {
    const absl::StatusOr<RunRecord> record = ReadRunDirectory(group.directory.path);
    return record.ok() && record->state && record->state->phase == Phase::kFree;
  }));
  EXPECT_TRUE(Dial(group.witness)) << "refused would mean that it died";
  Return(group);
  ASSERT_TRUE(group.WaitForPhase(Phase::kFree));
  EXPECT_EQ(group.rank().code, 3);
  EXPECT_TRUE(Dial(group.witness)) << "the agent may still die with what it has read";
  ASSERT_TRUE(group.link->Send(Release{}).ok());
  ASSERT_TRUE(Ends(group));
  EXPECT_FALSE(Dial(group.witness));
}

// It may wait for a coordinator that is away for longer, which will ask the witness first.
TEST_F(Patience, AFreeGroupStaysWhileItsAgentIsThere) {
  Group group = Run(Patient("exit 3", kShort));
  ASSERT_TRUE(group.WaitForPhase(Phase::kFree));
  EXPECT_FALSE(Ends(group, 5 * kShort / milliseconds(1)));
  EXPECT_TRUE(Dial(group.witness));
  Leave(group);
  EXPECT_TRUE(Ends(group));
  EXPECT_FALSE(Dial(group.witness));
}

TEST_F(Patience, AFreeGroupEndsWithoutAnAgent) {
  Group group = Run(Patient("exit 3", kShort));
  Leave(group);
  ASSERT_TRUE(Ends(group));
  EXPECT_EQ(ReadRunDirectory(group.directory.path)->state->phase, Phase::kFree);
}

TEST_F(Patience, WithItsLaunchCommandNoAgentWillEverAsk) {
  Lifeline lifeline = std::move(*MakeLifeline());
  Group group = Spawn(Patient("exit 3", hours(1)), lifeline.read_end.get());
  group.Start();
  ASSERT_TRUE(group.WaitForPhase(Phase::kFree));
  EXPECT_TRUE(Dial(group.witness));
  lifeline.write_end.reset();
  EXPECT_TRUE(Ends(group));
}

TEST_F(Patience, AGroupThatNobodyStartsEnds) {
  Group waits = Spawn(Patient("exit 0", kShort));
  Group kept = Spawn(Patient("exit 0", kShort));
  ASSERT_TRUE(waits.WaitForPhase(Phase::kPrepared));
  ASSERT_TRUE(kept.WaitForPhase(Phase::kPrepared));
  Leave(waits);
  ASSERT_TRUE(Ends(waits));
  EXPECT_FALSE(Ends(kept, 0)) << "its agent is there";
  ASSERT_TRUE(kept.link->Send(Kill{}).ok());
  ASSERT_TRUE(Ends(kept));
}

TEST_F(Patience, AStoreWithoutClientAgentAndGroupEnds) {
  Group alone = Spawn(PatientStore(kShort));
  Group with_client = Spawn(PatientStore(kShort));
  Group with_group = Spawn(PatientStore(kShort));
  Spec group_spec = ShellSpec("exec sleep 600");
  group_spec.generation = with_group.spec.generation;
  Group group = Run(group_spec);
  ASSERT_TRUE(group.WaitForPhase(Phase::kRunning));
  io::UniqueFd client = Dial(with_client.witness);
  for (Group* store : {&alone, &with_client, &with_group}) {
    ASSERT_TRUE(store->WaitForPhase(Phase::kRunning));
    Leave(*store);
  }
  ASSERT_TRUE(Ends(alone));
  EXPECT_FALSE(Ends(with_client, 0));
  EXPECT_FALSE(Ends(with_group, 0));
  client.reset();
  group.Stop(Duration{}, 9);
  ASSERT_TRUE(group.WaitForEnd());
  EXPECT_TRUE(Ends(with_client));
  EXPECT_TRUE(Ends(with_group));
}

}  // namespace
}  // namespace regroup::shim
