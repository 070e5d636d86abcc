#include "tests/agent/shim/shim_fixture.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/io/address.h"
#include "common/io/proc.h"

namespace regroup::shim {
namespace {
constexpr auto kPatience = std::chrono::seconds(20);
}  // namespace

std::string ShimProgram() {
  const char* folder = std::getenv("REGROUP_BIN_DIR");
  if (folder != nullptr) return absl::StrCat(folder, "/regroup-shim");
  char self[4096];
  ssize_t n = ::readlink("/proc/self/exe", self, sizeof(self));
  CHECK(n > 0);
  std::string path(self, static_cast<std::size_t>(n));
  return absl::StrCat(path.substr(0, path.find_last_of('/')), "/../bin/regroup-shim");
}

bool Eventually(const std::function<bool()>& holds) {
  const Instant limit = io::BootNow() + kPatience;
  while (!holds()) {
    if (io::BootNow() >= limit) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

int LiveWithMark(const Spec& spec) {
  int found = 0;
  for (const io::ProcessStat& process : io::ListProcesses()) {
    if (process.dead()) continue;
    absl::StatusOr<std::string> text =
        io::ReadFile(absl::StrCat("/proc/", process.pid, "/environ"), 1 << 20);
    if (text.ok() && text->find("REGROUP_GROUP=" + spec.nonce) != std::string::npos) ++found;
  }
  return found;
}

Group::~Group() {
  if (shim.pid <= 0) return;
  if (link && !gone) link->Send(Kill{}).IgnoreError();
  pollfd poll{shim.process.get(), POLLIN, 0};
  if (::poll(&poll, 1, 15000) != 1) {
    ADD_FAILURE() << "shim " << shim.pid << " does not end";
    ::kill(shim.pid, SIGKILL);
    ::poll(&poll, 1, 5000);
  }
  TryReap(shim.pid);
}

bool Group::WaitFor(const std::function<bool(const State&)>& fits) {
  const Instant limit = io::BootNow() + kPatience;
  while (state.nonce.empty() || !fits(state)) {
    if (gone || io::BootNow() >= limit) {
      ADD_FAILURE() << (gone ? "the shim went away" : "waited in vain") << ", phase "
                    << static_cast<int>(state.phase);
      return false;
    }
    pollfd poll{link->fd(), static_cast<short>(POLLIN | (link->WantsWrite() ? POLLOUT : 0)), 0};
    ::poll(&poll, 1, 100);
    if ((poll.revents & POLLOUT) != 0) link->OnWritable().IgnoreError();
    absl::StatusOr<std::optional<State>> next = link->OnReadable();
    if (!next.ok()) gone = true;
    if (next.ok() && *next) state = **std::move(next);
  }
  return true;
}

bool Group::WaitForPhase(Phase phase) {
  return WaitFor([phase](const State& s) { return s.phase == phase; });
}

bool Group::WaitForEnd() {
  if (!WaitForPhase(Phase::kFree)) return false;
  if (link) link->Send(Release{}).IgnoreError();
  pollfd process{shim.process.get(), POLLIN, 0};
  if (::poll(&process, 1, 20000) != 1) return false;
  for (absl::StatusOr<std::optional<State>> next; (next = link->OnReadable()).ok();) {
    if (*next) state = **next;
  }
  gone = true;
  return true;
}

void Group::Start(int first) {
  StartRanks start;
  for (int i = 0; i < spec.workers; ++i) {
    start.ranks.push_back({i,
                           first + i,
                           {absl::StrCat("RANK=", first + i), absl::StrCat("LOCAL_RANK=", i),
                            absl::StrCat("REGROUP_LOCAL_RANK=", i)},
                           {}});
  }
  EXPECT_TRUE(link->Send(start).ok());
}

void Group::Stop(Duration grace, int signal) {
  EXPECT_TRUE(
      link->Send(regroup::shim::Stop{.deadline = io::BootNow() + grace, .signal = signal}).ok());
}

ShimTest::ShimTest() = default;
ShimTest::~ShimTest() = default;

Spec ShimTest::CommandSpec(std::vector<std::string> command, int workers) {
  Spec spec;
  spec.nonce = io::RandomHex(16);
  spec.boot = *io::ReadBootId();
  spec.node = NodeId("node");
  spec.job = JobId("test-1");
  spec.generation = Generation(next_generation_++);
  spec.workers = workers;
  spec.command = std::move(command);
  spec.environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "WORK=" + work_.path()};
  spec.directory = work_.path();
  spec.log_root = work_ / "logs";
  if (use_cgroup_) {
    absl::StatusOr<std::string> found = FindCgroupBase();
    if (found.ok()) {
      spec.cgroup = GroupCgroup(*found, base_.path(), spec);
      CHECK(MakeGroupCgroup(spec).ok());
    }
  }
  return spec;
}

Spec ShimTest::ShellSpec(const std::string& script, int workers) {
  return CommandSpec({"/bin/sh", "-c", script}, workers);
}

Group ShimTest::Spawn(Spec spec, int lifeline, int rank0_stdin, bool wants_output) {
  Group group(std::move(spec));
  absl::StatusOr<RunDirectory> directory = CreateRunDirectory(base_.path(), group.spec);
  CHECK(directory.ok());
  group.directory = *std::move(directory);
  io::UniqueFd witness = std::move(*io::ListenTcp({"127.0.0.1", 0}));
  group.witness = *io::LocalAddressOf(witness.get());
  absl::StatusOr<SpawnedShim> shim =
      SpawnShim(ShimProgram(), group.directory, group.spec.role,
                {.witness = witness.get(), .lifeline = lifeline, .rank0_stdin = rank0_stdin});
  CHECK(shim.ok());
  group.shim = *std::move(shim);
  group.link = std::move(*Link::Connect(group.directory, group.spec, wants_output));
  return group;
}

Group ShimTest::Run(Spec spec) {
  Group group = Spawn(std::move(spec));
  group.Start();
  return group;
}

ShimTest::Before ShimTest::PrepareHandOver(Group& group, Adoption& adoption) {
  Spec spec = group.spec;
  spec.generation = Generation(next_generation_++);
  absl::StatusOr<RunDirectory> directory = CreateRunDirectory(base_.path(), spec);
  CHECK(directory.ok());
  adoption = std::move(*PrepareAdoption(*directory));
  Before before{std::exchange(group.spec, spec),
                std::exchange(group.directory, *std::move(directory)), *std::move(group.link)};
  group.link = std::move(*Link::Connect(group.directory, group.spec, false));
  group.state = State{};
  return before;
}

ShimTest::Before ShimTest::HandOver(Group& group) {
  Adoption adoption;
  Before before = PrepareHandOver(group, adoption);
  CHECK(before.link.SendAdopt(adoption, -1).ok());
  return before;
}

std::string ShimTest::Log(const Group& group, int rank, io::LogStream stream) {
  io::LogReader reader(
      io::LogDirectory(group.spec.log_root, group.spec.job, group.spec.generation, rank), stream);
  std::string all;
  for (;;) {
    absl::StatusOr<io::LogReader::Chunk> chunk = reader.Next();
    if (!chunk.ok() || chunk->bytes.empty()) return all;
    all += chunk->bytes;
  }
}

std::string ShimTest::ShimLog(const Group& group) {
  return io::ReadFile(absl::StrCat(group.directory.path, "/", kShimLogFile), 1 << 20).value_or("");
}

}  // namespace regroup::shim
