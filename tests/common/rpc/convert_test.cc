#include "common/rpc/convert.h"

#include <gmock/gmock.h>
#include <grpcpp/support/status.h>

#include <limits>

#include "common/base/user_error.h"

namespace regroup {
namespace {

using ::testing::HasSubstr;

RankExit SomeExit() {
  return {1,
          ExitKind::kSignaled,
          9,
          true,
          OomEvidence::kCounted,
          4121,
          std::chrono::milliseconds(12),
          "\xff\n",
          ExecObstacle::kInterpreter,
          ErrorEvidence::kErrorFile,
          true};
}
Gpu SomeGpu() {
  Gpu gpu;
  gpu.id = gpu.uuid = "MIG-a";
  gpu.name = "NVIDIA H100";
  gpu.memory_bytes = 80ull << 30;
  gpu.used_bytes = 1;
  gpu.celsius = 41;
  gpu.ecc_errors = 0;
  gpu.xids = 2;
  gpu.last_xid = 79;
  gpu.trouble = "GPU is lost";
  return gpu;
}

RankCause SomeCause() {
  return {"node1", 3, 1, SomeExit(), WallTime(std::chrono::microseconds(1'700'000'000'000'001))};
}
JobSpec SomeSpec() {
  JobSpec spec;
  spec.name = "train";
  spec.origin = JobOrigin::kLaunched;
  spec.min_nodes = 2;
  spec.max_nodes = 4;
  spec.unit = 2;
  spec.workers_per_node = 8;
  spec.command = {"python", "\xff", ""};
  spec.directory = "/work";
  spec.environment = {{"A", "1"}};
  spec.grace = std::chrono::seconds(7);
  spec.start_timeout = std::chrono::seconds(8);
  spec.max_restarts = 3;
  spec.restart_window = std::chrono::hours(1);
  spec.max_preemptions = 0;
  spec.exit_codes = {{77, ExitAction::kFail}};
  spec.scale_up = ScaleUp::kNever;
  spec.price_per_node_hour = 2.5;
  spec.log_keep_bytes = kKeepAllLogs;
  spec.role = "trainer";
  spec.numa_binding = "node";
  spec.virtual_local_rank = true;
  spec.sets_master_port = true;
  spec.node_check = {"test -e \xff", std::chrono::seconds(9)};
  spec.warm = {{"torch", "\xff"}};
  spec.in_place = true;
  return spec;
}
GroupReport SomeReport() {
  GroupReport report;
  report.number = ReportNo(5);
  report.job = JobId("train-4");
  report.generation = Generation(2);
  report.phase = Phase::kStopping;
  report.store = Address{"fd00::1", 3000};
  report.witness = Address{"10.0.0.4", 3001};
  report.started = {{0, 41, std::chrono::seconds(1), true}};
  report.exits = {SomeExit()};
  report.supervisor_lost = report.store_lost = true;
  report.refused = "no room";
  return report;
}
Hello SomeHello() {
  Hello hello;
  hello.cluster = ClusterId("c0ffee");
  hello.highest_epoch = Epoch(7);
  hello.node = NodeId("n1");
  hello.incarnation = Incarnation(3);
  hello.boot = BootId("8b2c-1");
  hello.name = "node1.example";
  hello.name_explicit = true;
  hello.slots = 8;
  hello.gpu_slots = true;
  hello.version = {1, 3, "abc Release"};
  hello.address = "10.0.0.4";
  hello.dialled = "10.0.0.1";
  hello.launched = true;
  hello.groups = {SomeReport()};
  hello.notices = {{NoticeSource::kSignal, 15, std::chrono::seconds(90)}};
  hello.no_cgroup = "no cgroup v2 hierarchy is mounted";
  return hello;
}

// To, From, To again gives the same bytes: nothing is lost, since every field is set to something
// else than its default.
template <class T>
void ExpectRoundTrip(const T& value) {
  const auto first = ToProto(value);
  const auto back = FromProto(first);
  ASSERT_TRUE(back.ok()) << back.status() << first.ShortDebugString();
  EXPECT_EQ(ToProto(*back).SerializeAsString(), first.SerializeAsString())
      << first.ShortDebugString();
}

// A message whose fields are all set, found by reflection: catches a field that a conversion
// forgets.
void ExpectAllFieldsSet(const google::protobuf::Message& message) {
  const auto* descriptor = message.GetDescriptor();
  const auto* reflection = message.GetReflection();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->is_repeated()) {
      EXPECT_GT(reflection->FieldSize(message, field), 0) << field->full_name();
    } else if (field->real_containing_oneof() == nullptr) {
      EXPECT_TRUE(reflection->HasField(message, field)) << field->full_name();
    }
  }
}

TEST(Convert, AgentMessagesSurvive) {
  EXPECT_EQ(*FromProto(ToProto(SomeSpec())), SomeSpec());
  JobSpec whole = SomeSpec();
  whole.workers_per_node = kWorkerPerGpu;
  EXPECT_EQ(*FromProto(ToProto(whole)), whole);
  EXPECT_EQ(*FromProto(ToProto(SomeReport())), SomeReport());
  ExpectRoundTrip(SomeHello());
  ExpectAllFieldsSet(ToProto(SomeHello()));
  ExpectAllFieldsSet(ToProto(SomeReport()));
  ExpectAllFieldsSet(ToProto(SomeSpec()));
  const LaunchRequest launch{"key", "train", true, SomeSpec(), std::chrono::seconds(3)};
  ExpectRoundTrip(launch);
  ExpectAllFieldsSet(ToProto(launch));
  const WorkerProgress progress{JobId("a-1"), Generation(2), 3, 4,           5,
                                0.5,          100.0,         7, Duration(1), Duration(2),
                                Duration(3),  Duration(4),   8};
  ExpectRoundTrip(progress);
  ExpectAllFieldsSet(ToProto(progress));
  const CommitRequest commit{JobId("a-1"), Generation(2), 3, 4, "00ff", "/ckpt", true};
  ExpectRoundTrip(commit);
  ExpectAllFieldsSet(ToProto(commit));
  const absl::StatusOr<HeartbeatMessage> beat = FromProto(ToProto(HeartbeatMessage{OrderNo(9), 7}));
  EXPECT_EQ(beat->obeyed, OrderNo(9));
  EXPECT_EQ(beat->warm_bytes, 7u);
  EXPECT_FALSE(beat->gpus);
}

TEST(Convert, GpusOfAHeartbeat) {
  const Gpu gpu = SomeGpu();
  HeartbeatMessage beat{OrderNo(9), 7};
  for (const std::vector<Gpu>& gpus : {std::vector<Gpu>(), {gpu}, {gpu, Gpu{}}}) {
    beat.gpus = gpus;
    EXPECT_EQ(FromProto(ToProto(beat))->gpus, gpus);
  }
  beat.gpus->resize(256);
  EXPECT_TRUE(FromProto(ToProto(beat)).ok());
  beat.gpus->resize(257);
  EXPECT_THAT(std::string(FromProto(ToProto(beat)).status().message()),
              ::testing::HasSubstr("gpus"));
  beat.gpus = {gpu};
  beat.gpus->front().trouble = std::string(4097, 'x');
  EXPECT_THAT(std::string(FromProto(ToProto(beat)).status().message()),
              ::testing::HasSubstr("trouble"));
}

TEST(Convert, CoordinatorMessagesSurvive) {
  Order order;
  order.number = OrderNo(4);
  order.job = JobId("train-4");
  order.forget = Forget{Generation(1)};
  order.stop = Stop{Generation(2), std::chrono::seconds(3), StopReason::kNotice, /*in_place=*/true};
  order.prepare =
      Prepare{Generation(3), {8, SomeSpec()}, true, {"10.0.0.4", "fd00::1"}, "10.0.0.4"};
  order.run =
      regroup::Run{Generation(3), {"10.0.0.4", 3000}, {{0, 4}, {1, 5}}, 2, 3, 12, 1, 3, true, 800};
  order.notice = WorkerNotice{Generation(3), std::chrono::seconds(20)};
  ExpectRoundTrip(order);
  const pb::Order wire = ToProto(order);
  ExpectAllFieldsSet(wire);
  ExpectAllFieldsSet(wire.prepare());
  ExpectAllFieldsSet(wire.run());
  ExpectAllFieldsSet(wire.stop());
  const Welcome welcome{ClusterId("c"),
                        Epoch(2),
                        "node1-2",
                        {1, 1, "b"},
                        std::chrono::seconds(1),
                        std::chrono::seconds(5),
                        std::chrono::minutes(3),
                        true};
  ExpectRoundTrip(welcome);
  ExpectAllFieldsSet(ToProto(welcome));
  const CommitAnswer answer{JobId("a-1"), Generation(2), 3, 4, true, "because"};
  ExpectRoundTrip(answer);
  ExpectAllFieldsSet(ToProto(answer));
}

TEST(Convert, EveryReasonAndEventSurvives) {
  const Duration d = std::chrono::seconds(3);
  const std::vector<WaitReason> waits = {
      BelowMinimum{1, 2, d, {"node2"}}, LastCall{3, d},
      BackingOff{4, d, "node1", "why"}, SlotsStopping{{"a"}, d},
      AwaitReattach{{"a"}, d},          FinishHold{"a", d},
      UnreachableHold{{"a"}, d},        BudgetVerdictOpen{{"a"}},
      BehindJob{JobId("a-1")},          MembersPreparing{{"a"}, d},
      SavingBeforeLeave{"a", d},        CannotFit{10, 3, 2, 1, "a"}};
  ASSERT_EQ(waits.size(), std::variant_size_v<WaitReason>);
  for (const WaitReason& reason : waits) {
    ExpectRoundTrip(reason);
    EXPECT_EQ(FromProto(ToProto(reason))->index(), reason.index());
  }
  const std::vector<EndReason> ends = {WorkerFailed{SomeCause()},
                                       NodeLost{"a", "silent", d},
                                       NodeRebooted{"a"},
                                       SupervisorLost{"a", true},
                                       StoreLost{"a"},
                                       StartTimedOut{"a", d},
                                       ExecFailed{SomeCause()},
                                       Preempted{"a", true},
                                       Resized{2, 3, {"a"}},
                                       Cancelled{"me"},
                                       Finished{}};
  ASSERT_EQ(ends.size(), std::variant_size_v<EndReason>);
  for (const EndReason& reason : ends) {
    ExpectRoundTrip(reason);
    EXPECT_EQ(FromProto(ToProto(reason))->index(), reason.index());
  }
  const std::vector<FailReason> fails = {
      BudgetSpent{3, 3},     CrashLoop{5},
      ExitCodeSaysFail{77},  NotExecutable{13, "\xff", ExecObstacle::kDirectory},
      CancelledBy{"me", 15}, PreemptedAll{},
      PreemptionsSpent{2, 2}};
  ASSERT_EQ(fails.size(), std::variant_size_v<FailReason>);
  for (const FailReason& reason : fails) {
    ExpectRoundTrip(reason);
    EXPECT_EQ(FromProto(ToProto(reason))->index(), reason.index());
  }
  RestartPhases phases{d, d, d, d, d, d, d, d, d};
  ExpectAllFieldsSet(ToProto(phases));
  const std::vector<JobEventBody> bodies = {NodeJoined{"a", 1, 2, 3},
                                            NodeLeft{"a", "why"},
                                            GenerationFormed{Generation(2), 2, 4, d, {"a", "b"}},
                                            GenerationRunning{Generation(2), phases, 3},
                                            GenerationEnded{Generation(2), Finished{}, true, 1, 3},
                                            CommitAccepted{Generation(2), 800},
                                            NodeWillLeave{"a", {NoticeSource::kSignal, 15, d}},
                                            Waits{LastCall{3, d}},
                                            JobEnded{3, "failed"}};
  ASSERT_EQ(bodies.size(), std::variant_size_v<JobEventBody>);
  for (const JobEventBody& body : bodies) {
    const JobEvent event{7, SomeCause().at, body};
    ExpectRoundTrip(event);
    EXPECT_EQ(FromProto(ToProto(event))->body.index(), body.index());
  }
}

TEST(Convert, ViewsSurvive) {
  GenerationView generation;
  generation.generation = Generation(2);
  generation.state = GenerationView::State::kOver;
  generation.world = 4;
  generation.members = {{NodeId("n"), "node1", "10.0.0.4", 1, {2, 3}, {41, 42}, 8}};
  generation.store = Address{"10.0.0.4", 3000};
  generation.formed_at = generation.ended_at = SomeCause().at;
  generation.ended = EndReason(Finished{});
  generation.consequences = {SomeCause()};
  generation.charged = true;
  generation.phases.down = Duration(1);
  generation.first_step = 1;
  generation.last_step = 2;
  generation.restored_step = 3;
  JobView job;
  job.id = JobId("train-4");
  job.spec = SomeSpec();
  job.state = "running";
  job.nodes = 2;
  job.world = 4;
  job.generation = Generation(2);
  job.step = 8;
  job.loss = 2.5;
  job.tokens_per_second = 100;
  job.restarts_charged = 1;
  job.preemptions = 2;
  job.regroups = 2;
  job.committed_step = 7;
  job.commit_path = "/ckpt";
  job.created_at = SomeCause().at;
  job.age = job.time.idle = job.time.productive = job.time.checkpoint = job.time.detect =
      job.time.regroup = job.time.restore = job.time.recompute = Duration(9);
  job.cost = CostView{4.5, 9, 0.5, 1.5, 2.5};
  job.started_at = SomeCause().at;
  job.ended_at = SomeCause().at;
  job.ran_for = Duration(3);
  job.why = WaitReason(LastCall{1, Duration(2)});
  job.failed = FailReason(CrashLoop{5});
  job.last_failure = SomeCause();
  job.exit_code = 3;
  job.generations = {generation};
  job.events = {{1, SomeCause().at, NodeJoined{"a", 1, 2, 3}}};
  job.left_out = {{NodeId("n"), "node1", "no GPU", Duration(4)}};
  ExpectRoundTrip(job);
  const pb::JobView wire = ToProto(job);
  ExpectAllFieldsSet(wire);
  ExpectAllFieldsSet(wire.time());
  ExpectAllFieldsSet(wire.cost());
  ExpectAllFieldsSet(wire.left_out(0));
  ExpectAllFieldsSet(wire.generations(0));
  ExpectAllFieldsSet(wire.generations(0).members(0));
  const NodeView node{NodeId("n"), "node1",        "10.0.0.4",  "ready",     2,
                      1,           {JobId("a-1")}, Duration(1), "note",      true,
                      true,        {1, 1, "b"},    3,           {SomeGpu()}, true};
  ExpectRoundTrip(node);
  ExpectAllFieldsSet(ToProto(node));
}

// A field, what is wrong with it, and the words that must be in the error.
struct BadHello {
  const char* name;
  std::function<void(pb::Hello&)> spoil;
  std::vector<std::string> words;
};

TEST(Convert, BadInputIsNamedWithValueAndLimit) {
  const std::vector<BadHello> rows = {
      {"no node", [](pb::Hello& h) { h.clear_node(); }, {"node:", "128"}},
      {"node of odd bytes",
       [](pb::Hello& h) { h.set_node("../\x1b[1m"); },
       {"node: \"../\\x1b[1m\""}},
      {"node too long", [](pb::Hello& h) { h.set_node(std::string(129, 'a')); }, {"(129 bytes)"}},
      {"incarnation 0",
       [](pb::Hello& h) { h.set_incarnation(0); },
       {"incarnation: 0 is not in [1,"}},
      {"incarnation 2^64-1",
       [](pb::Hello& h) { h.set_incarnation(~0ull); },
       {"incarnation: 18446744073709551615"}},
      {"no slots", [](pb::Hello& h) { h.set_slots(0); }, {"slots: 0 is not in [1, 4096]"}},
      {"10^9 slots", [](pb::Hello& h) { h.set_slots(1'000'000'000); }, {"slots: 1000000000"}},
      {"bad address",
       [](pb::Hello& h) { h.set_address("node0"); },
       {"address: \"node0\" is not an IP address"}},
      {"ranks of all groups",
       [](pb::Hello& h) {
         for (int group = 0; group < 5; ++group) {
           for (int rank = 0; rank < kMaxWorkersPerNode; ++rank) h.mutable_groups(0)->add_started();
           h.add_groups()->CopyFrom(h.groups(0));
         }
       },
       {"groups.started and groups.exits:", "at most 16384 are allowed"}},
      {"job id", [](pb::Hello& h) { h.mutable_groups(0)->set_job("../etc-1"); }, {"groups.job:"}},
      {"phase",
       [](pb::Hello& h) { h.mutable_groups(0)->set_phase(static_cast<pb::Phase>(99)); },
       {"groups.phase: 99"}},
      {"port 0",
       [](pb::Hello& h) { h.mutable_groups(0)->mutable_store()->set_port(0); },
       {"groups.store.port: 0 is not in [1, 65535]"}},
      {"rank",
       [](pb::Hello& h) { h.mutable_groups(0)->mutable_exits(0)->set_local_rank(-1); },
       {"groups.exits.local_rank: -1"}},
      {"age",
       [](pb::Hello& h) { h.mutable_groups(0)->mutable_exits(0)->set_age_ns(-1); },
       {"groups.exits.age: -1"}},
      {"error text",
       [](pb::Hello& h) {
         h.mutable_groups(0)->mutable_exits(0)->set_error(std::string(8193, 'x'));
       },
       {"8193 bytes, at most 8192"}},
      {"groups",
       [](pb::Hello& h) {
         for (int i = 0; i < 5000; ++i) h.add_groups();
       },
       {"groups: 5001 elements, at most 4096"}},
      {"notice",
       [](pb::Hello& h) { h.mutable_notices(0)->set_signal(65); },
       {"notices.signal: 65"}},
  };
  for (const BadHello& row : rows) {
    pb::Hello hello = ToProto(SomeHello());
    row.spoil(hello);
    const absl::Status status = FromProto(hello).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << row.name << ": " << status;
    for (const std::string& word : row.words)
      EXPECT_THAT(std::string(status.message()), HasSubstr(word)) << row.name;
  }
}

TEST(Convert, JobsOfImpossibleShapeAreRefused) {
  const std::vector<std::pair<std::function<void(pb::JobSpec&)>, std::string>> rows = {
      {[](pb::JobSpec& s) { s.set_name("Train"); }, "name: \"Train\""},
      {[](pb::JobSpec& s) { s.set_name("-a"); }, "name:"},
      {[](pb::JobSpec& s) { s.set_min_nodes(0); }, "min_nodes: 0 is not in [1, 10000]"},
      {[](pb::JobSpec& s) { s.set_max_nodes(10'001); }, "max_nodes: 10001 is not in [1, 10000]"},
      {[](pb::JobSpec& s) { s.set_min_nodes(4), s.set_max_nodes(2); },
       "max_nodes: 2 is below min_nodes 4"},
      {[](pb::JobSpec& s) { s.set_min_nodes(3), s.set_max_nodes(3); },
       "unit: no multiple of 2 is in [3, 3]"},
      {[](pb::JobSpec& s) { s.set_max_nodes(10'000), s.set_workers_per_node(8); },
       "max_nodes * workers_per_node: 80000"},
      {[](pb::JobSpec& s) { s.set_workers_per_node(0); },
       "workers_per_node: 0 is not in [1, 4096]"},
      {[](pb::JobSpec& s) { s.set_workers_per_node(-2); }, "workers_per_node: -2"},
      {[](pb::JobSpec& s) { s.add_command(std::string("a\0b", 3)); },
       "command: contains a NUL byte"},
      {[](pb::JobSpec& s) { s.add_command(std::string(200'000, 'x')); },
       "command, directory, environment, node_check and warm (bytes)"},
      {[](pb::JobSpec& s) { s.set_node_check(std::string("a\0b", 3)); },
       "node_check: contains a NUL byte"},
      {[](pb::JobSpec& s) { s.set_node_check("true"), s.set_node_check_timeout_ns(-1); },
       "node_check_timeout: -1"},
      {[](pb::JobSpec& s) { (*s.mutable_environment())["A=B"] = ""; }, "environment:"},
      {[](pb::JobSpec& s) { (*s.mutable_exit_codes())[256] = pb::EXIT_ACTION_FAIL; },
       "exit_codes: 256"},
      {[](pb::JobSpec& s) { s.set_grace_ns(std::numeric_limits<std::int64_t>::max()); },
       "grace: 9223372036854775807"},
      {[](pb::JobSpec& s) { s.clear_origin(); }, "origin: 0 is not a known value"},
  };
  for (const auto& [spoil, words] : rows) {
    pb::JobSpec spec = ToProto(SomeSpec());
    spoil(spec);
    EXPECT_THAT(std::string(FromProto(spec).status().message()), HasSubstr(words));
  }
}

TEST(Convert, NumbersThatAreNoneAreRefusedAndNeverSent) {
  WorkerProgress progress{JobId("a-1"), Generation(2), 3, 4, 5, {}, {}, {}, {}, {}, {}, {}, {}};
  progress.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(ToProto(progress).has_loss());
  pb::WorkerProgress wire = ToProto(progress);
  wire.set_loss(std::numeric_limits<double>::infinity());
  EXPECT_THAT(std::string(FromProto(wire).status().message()),
              HasSubstr("loss: inf is not a finite number"));
}

TEST(Convert, EmptyMessagesAreErrorsNotCrashes) {
  EXPECT_FALSE(FromProto(pb::Hello()).ok());
  EXPECT_FALSE(FromProto(pb::LaunchRequest()).ok());
  EXPECT_FALSE(FromProto(pb::GroupReport()).ok());
  EXPECT_FALSE(FromProto(pb::Order()).ok());
  EXPECT_FALSE(FromProto(pb::JobEvent()).ok());
  EXPECT_FALSE(FromProto(pb::WaitReason()).ok());
  EXPECT_FALSE(FromProto(pb::EndReason()).ok());
  EXPECT_FALSE(FromProto(pb::FailReason()).ok());
  EXPECT_FALSE(FromProto(pb::Welcome()).ok());
  EXPECT_FALSE(FromProto(pb::JobView()).ok());
}

TEST(Convert, Grammars) {
  EXPECT_TRUE(IsJobName("a"));
  EXPECT_TRUE(IsJobName("train-4-b"));
  EXPECT_FALSE(IsJobName(""));
  EXPECT_FALSE(IsJobName("a-"));
  EXPECT_FALSE(IsJobName(std::string(64, 'a')));
  EXPECT_TRUE(IsJobId("train-4"));
  EXPECT_FALSE(IsJobId("train"));
  EXPECT_FALSE(IsJobId("train-04"));
  EXPECT_FALSE(IsJobId("train-4x"));
  EXPECT_TRUE(IsNodeName("node1.example"));
  EXPECT_FALSE(IsNodeName("node 1"));
  EXPECT_FALSE(IsToken("a/b"));
  EXPECT_TRUE(IsIpLiteral("fe80::1%eth0"));
  EXPECT_FALSE(IsIpLiteral("[::1]"));
  EXPECT_FALSE(IsIpLiteral("10.0.0.4%eth0"));
}

TEST(Convert, RefusalsKeepTheirThreeParts) {
  const absl::Status status =
      UserError(absl::StatusCode::kNotFound, "no job x", "3 jobs, none begins so", "regroup ps");
  for (const absl::Status& back :
       {StatusFrom(RefusedFrom(status)), FromGrpcStatus(ToGrpcStatus(status))}) {
    EXPECT_EQ(back.code(), status.code());
    EXPECT_EQ(PartsOf(back).what, "no job x");
    EXPECT_EQ(PartsOf(back).because, "3 jobs, none begins so");
    EXPECT_EQ(PartsOf(back).try_this, "regroup ps");
  }
  EXPECT_TRUE(FromGrpcStatus(ToGrpcStatus(absl::OkStatus())).ok());
  EXPECT_TRUE(
      absl::IsUnavailable(FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"))));
  pb::Refused odd;
  odd.set_code(-3);
  EXPECT_FALSE(StatusFrom(odd).ok());
}

// What gRPC says is for those who write it: people read the words of the system, or ours.
TEST(GrpcStatus, NothingOfWhatGrpcSaysIsTold) {
  struct Row {
    grpc::StatusCode code;
    const char* said;
    std::string told;
  };
  const std::string dialling = "failed to connect to all addresses; last error: UNKNOWN: ";
  const std::string refused =
      dialling + "ipv4:10.0.0.4:29400: Failed to connect to remote host: Connection refused";
  const std::string other =
      "failed to connect to all addresses; last error: UNAVAILABLE: ipv6:%5B::1%5D:29400: Failed "
      "parsing HTTP/2";
  const std::string local = dialling + "unix:/proc/self/fd/7/socket: Connection refused";
  const auto kUnavailable = grpc::StatusCode::UNAVAILABLE;
  const std::string closed = "the connection was closed";
  const Row rows[] = {
      {kUnavailable, refused.c_str(), "Connection refused"},
      {kUnavailable, local.c_str(), "Connection refused"},
      {kUnavailable, other.c_str(), closed},
      {kUnavailable, "Socket closed", closed},
      {kUnavailable, "keepalive watchdog timeout", closed},
      {kUnavailable, "GOAWAY received", closed},
      {kUnavailable, "recvmsg:Connection reset by peer", "Connection reset by peer"},
      {kUnavailable, "", closed},
      {grpc::StatusCode::DEADLINE_EXCEEDED, "Deadline Exceeded", "it has not answered in time"},
      {grpc::StatusCode::CANCELLED, "CANCELLED", "the call was ended"},
      {grpc::StatusCode::RESOURCE_EXHAUSTED,
       "Received message larger than max (33554433 vs. 33554432)", "the message is too large"},
      {grpc::StatusCode::UNIMPLEMENTED, "", "it does not know this call; its version differs"},
      {grpc::StatusCode::INTERNAL, "Received RST_STREAM with error code 2",
       "the connection failed, code 13"},
      {grpc::StatusCode::UNKNOWN, "Stream removed", "the connection failed, code 2"},
  };
  for (const Row& row : rows) {
    const absl::Status status = FromGrpcStatus(grpc::Status(row.code, row.said));
    EXPECT_EQ(status.message(), row.told) << row.said;
    EXPECT_EQ(static_cast<int>(status.code()), static_cast<int>(row.code));
  }
}

TEST(Showable, WhatIsDamagedIsNamedAndTheRestShown) {
  pb::JobView job;
  job.set_id("pay-2");
  job.set_state("failed");
  job.set_exit_code(3);
  *job.mutable_spec() = ToProto(SomeSpec());
  absl::Status problem;
  EXPECT_EQ(ShowableJob(job, &problem).state, "failed");
  EXPECT_TRUE(problem.ok()) << problem;

  job.mutable_time()->set_detect_ns(9'000'000'000'000'000'000);
  EXPECT_EQ(ShowableJob(job, &problem).state, "failed");  // But for its times.
  EXPECT_TRUE(absl::IsDataLoss(problem));
  EXPECT_EQ(PartsOf(problem).what, "job pay-2 cannot be shown whole");
  EXPECT_THAT(PartsOf(problem).because, ::testing::HasSubstr("time.detect"));

  job.set_exit_code(-7);
  const JobView damaged = ShowableJob(job, &problem);
  EXPECT_EQ(damaged.id, JobId("pay-2"));
  EXPECT_EQ(damaged.state, kDamaged);

  pb::NodeView node;
  node.set_id("\xff");
  EXPECT_EQ(ShowableNode(node, &problem).state, "");
  node.add_jobs("no id");
  EXPECT_EQ(ShowableNode(node, &problem).state, kDamaged);
  EXPECT_EQ(PartsOf(problem).what, "node ? cannot be shown whole");
}

}  // namespace
}  // namespace regroup
