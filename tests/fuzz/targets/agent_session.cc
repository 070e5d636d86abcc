#include <map>
#include <utility>
#include <variant>

#include "common/base/check.h"
#include "common/config/job_limits.h"
#include "common/rpc/checker.h"
#include "common/rpc/convert.h"
#include "launcher/coordinator/core/core.h"
#include "launcher/coordinator/shell/agent_messages.h"
#include "launcher/coordinator/shell/records.h"
#include "proto/coordinator.pb.h"
#include "tests/fuzz/targets/targets.h"

namespace regroup::fuzz {
namespace {

using namespace coordinator;  // NOLINT: the core's vocabulary.

const WallTime kWall{std::chrono::hours(24 * 365 * 50)};

JobSpec SpecOf(JobOrigin origin) {
  JobSpec spec;
  spec.name = "job";
  spec.origin = origin;
  spec.max_nodes = 2;
  spec.command = {"true"};
  spec.directory = "/";
  return spec;
}

Hello HelloOf(int session) {
  Hello hello;
  hello.cluster = ClusterId("c");
  hello.highest_epoch = Epoch(1);
  hello.node = NodeId("node-" + std::to_string(session));
  hello.incarnation = Incarnation(1);
  hello.boot = BootId("boot");
  hello.name = "n" + std::to_string(session);
  hello.slots = 2;
  hello.version = {1, 0, ""};
  hello.address = "10.0.0." + std::to_string(session);
  hello.dialled = "10.0.0.9";
  return hello;
}

// What an honest agent says at that point; the fuzzer merges its bytes over it.
pb::AgentMessage Honest(unsigned kind, int session) {
  pb::AgentMessage message;
  const JobId job("job-1");
  switch (kind % 8) {
    case 0: *message.mutable_hello() = ToProto(HelloOf(session)); break;
    case 1: {
      LaunchRequest launch;
      launch.key = "key";
      launch.rdzv_id = "job";
      launch.spec = SpecOf(JobOrigin::kLaunched);
      *message.mutable_launch() = ToProto(launch);
      break;
    }
    case 2: message.mutable_heartbeat()->set_obeyed(1); break;
    case 3:
    case 4: {
      GroupReport report;
      report.number = ReportNo(1);
      report.job = job;
      report.generation = Generation(1);
      report.phase = kind % 8 == 3 ? Phase::kPrepared : Phase::kRunning;
      report.witness = Address{"10.0.0.1", 5000};
      report.store = Address{"10.0.0.1", 5001};
      *message.mutable_report() = ToProto(report);
      break;
    }
    case 5: {
      WorkerProgress progress;
      progress.job = job;
      progress.generation = Generation(1);
      progress.step = 7;
      *message.mutable_progress() = ToProto(progress);
      break;
    }
    case 6: {
      CommitRequest commit;
      commit.job = job;
      commit.generation = Generation(1);
      commit.attempt = 1;
      commit.step = 7;
      *message.mutable_commit() = ToProto(commit);
      break;
    }
    case 7:
      *message.mutable_notice() =
          ToProto(Notice{NoticeSource::kSignal, 15, std::chrono::seconds(9)});
  }
  return message;
}

// A core, and what must hold of it whatever agents say.
class Coordinator {
 public:
  Coordinator() : core_(ConfigOf(Epoch(1)), Epoch(1), {}, now_) {
    Step(Tick{});
    Step(SubmitAsked{CallId(1), SpecOf(JobOrigin::kSubmitted), "submit"});
    for (int node = 1; node <= 2; ++node) {
      Hello hello = HelloOf(node);
      hello.cluster = {};
      hello.highest_epoch = {};
      Open(node, std::move(hello));
    }
  }

  // As the shell does: what cannot be used ends the session.
  void Say(int node, const pb::AgentMessage& message) {
    absl::StatusOr<AgentSaid> said = DecodeAgentMessage(message);
    if (!said.ok()) return Break(node);
    const SessionId session = sessions_[node];
    std::visit(wire::Overloaded{
                   [&](Hello& hello) {
                     Break(node);
                     Open(node, std::move(hello));
                   },
                   [&](LaunchRequest& launch) {
                     if (ValidateJobSpec(launch.spec).ok())
                       Step(LaunchAsked{session, std::move(launch)});
                   },
                   [&](HeartbeatMessage& heartbeat) {
                     Step(HeartbeatReceived{session, heartbeat.obeyed, heartbeat.warm_bytes,
                                            heartbeat.gpus});
                   },
                   [&](GroupReport& report) {
                     Step(Reported{session, std::move(report)});
                   },
                   [&](WorkerProgress& progress) {
                     Step(Progressed{session, std::move(progress)});
                   },
                   [&](CommitRequest& commit) { Ask(session, commit); },
                   [&](Notice& notice) {
                     Step(Noticed{session, notice});
                   },
                   [&](LeaveRequest& leave) {
                     Step(LeaveAsked{session, leave.signal, leave.now});
                   },
               },
               *said);
  }

  void Pass(Duration time) {
    now_ += time;
    for (int i = 0; i < 100 && core_.NextDeadline() && *core_.NextDeadline() <= now_; ++i)
      Step(Tick{});
  }

  // What was made durable can be read again, and says the same.
  void CheckRows() {
    std::vector<JournalRow> encoded;
    for (const Row& row : core_.Rows()) {
      encoded.push_back(EncodeRow(row));
      const auto kept = durable_.find(row.key);
      CHECK(kept != durable_.end() && EncodeRow({row.key, kept->second}) == encoded.back());
    }
    CHECK(encoded.size() == durable_.size());
    std::vector<std::string> left_out;
    const absl::StatusOr<std::vector<Row>> rows = DecodeRows(encoded, &left_out);
    CHECK(rows.ok() && left_out.empty());
    const Core again(ConfigOf(Epoch(2)), Epoch(2), *rows, now_);
    ReadFilter all;
    all.nodes = all.ended = all.detail = true;
    CHECK(core_.Read(all, now_, kWall).ok());
    CHECK(again.Read(all, now_, kWall).ok());
  }

  bool committed() const { return committed_; }

 private:
  static Config ConfigOf(Epoch epoch) {
    Config config;
    config.journal.new_cluster = ClusterId("c");
    config.version = {1, 0, ""};
    config.check_indices = epoch == Epoch(1);
    return config;
  }

  void Break(int node) {
    Step(SessionBroken{sessions_[node]});
    sessions_[node] = SessionId();
  }
  void Open(int node, Hello hello) {
    const SessionId session = sessions_[node] = SessionId(++last_session_);
    nodes_[session] = hello.node;
    Step(SessionOpened{session, std::move(hello)});
  }

  // A checkpoint becomes the newest only on the word of a member of the newest formed generation.
  void Ask(SessionId session, const CommitRequest& commit) {
    const Key key = CommitKey(commit.job);
    const auto* state = Durable<JobStateRow>(JobStateKey(commit.job));
    const Generation formed = state == nullptr ? Generation() : state->last_formed;
    const bool over = state == nullptr || state->phase == JobPhase::kEnded;
    const auto* generation = Durable<GenerationRow>(GenerationKey(commit.job, formed));
    bool member = false;
    for (int i = 0; generation != nullptr && i < static_cast<int>(generation->members.size()); ++i)
      member = member || generation->members[i].node == nodes_[session];
    const auto* before = Durable<CommitRow>(key);
    const bool newer =
        before == nullptr || before->generation < formed || before->step < commit.step;
    const Effects effects = Step(CommitAsked{session, commit});
    for (const Row& row : effects.rows) {
      if (row.key != key) continue;
      CHECK(!over && member && newer && commit.generation == formed);
      committed_ = true;
    }
  }

  // Bounds of a step, rows that can be read again, and numbers that only rise.
  Effects Step(const Event& event) {
    Effects effects = core_.Step(now_, kWall, event);
    CHECK(effects.rows.size() <= kMaxRowsPerStep);
    std::size_t bytes = 0;
    for (const Row& row : effects.rows) {
      const JournalRow encoded = EncodeRow(row);
      CHECK(CheckReadable(row, encoded).ok());
      bytes += encoded.key.size() + (encoded.value ? encoded.value->size() : 0);
      if (!row.value) {
        durable_.erase(row.key);
        continue;
      }
      CheckSuccessor(row);
      durable_.insert_or_assign(row.key, *row.value);
    }
    CHECK(bytes <= kMaxBytesPerStep);
    return effects;
  }

  void CheckSuccessor(const Row& row) {
    if (const auto* state = std::get_if<JobStateRow>(&*row.value)) {
      const auto* before = Durable<JobStateRow>(row.key);
      CHECK(before == nullptr || before->phase != JobPhase::kEnded ||
            state->phase == JobPhase::kEnded);
      CHECK(before == nullptr || (before->last_number <= state->last_number &&
                                  before->last_formed <= state->last_formed));
    }
    if (const auto* generation = std::get_if<GenerationRow>(&*row.value)) {
      const auto* before = Durable<GenerationRow>(row.key);
      CHECK(before == nullptr || before->phase <= generation->phase);
    }
    if (const auto* done = std::get_if<DoneRow>(&*row.value)) {
      const auto* generation = Durable<GenerationRow>(GenerationKey(done->job, done->generation));
      bool member = false;
      for (const GenerationMember& m : generation->members)
        member = member || (m.node == done->node &&
                            done->local_ranks.size() <= static_cast<std::size_t>(m.workers));
      CHECK(member);
    }
  }

  template <class T>
  const T* Durable(const Key& key) const {
    const auto found = durable_.find(key);
    return found == durable_.end() ? nullptr : std::get_if<T>(&found->second);
  }

  Instant now_ = Instant(std::chrono::hours(1));
  Core core_;
  std::map<Key, Value> durable_;
  std::uint64_t last_session_ = 0;
  SessionId sessions_[5];  // By node; 0 is none.
  std::map<SessionId, NodeId> nodes_;
  bool committed_ = false;
};

}  // namespace

bool AgentSession(std::string_view bytes) {
  Input input(bytes);
  Coordinator coordinator;
  for (int messages = 0; !input.empty() && messages < 16; ++messages) {
    const unsigned kind = input.Byte();
    const int node = 1 + static_cast<int>(kind >> 3 & 3);
    coordinator.Pass(std::chrono::milliseconds(1) * (1 << (kind >> 5) * 2));
    pb::AgentMessage message = Honest(kind, node);
    const std::string_view over = input.Piece();
    pb::AgentMessage alone;
    if (alone.ParseFromString(std::string(over)))
      CHECK(alone.SpaceUsedLong() <= sizeof alone + BytesWhenParsed(over));
    // gRPC hands over what parses, merged field by field like this.
    if (message.MergeFromString(std::string(over))) coordinator.Say(node, message);
  }
  coordinator.CheckRows();
  return coordinator.committed();
}

}  // namespace regroup::fuzz
