#include "agent/shim/protocol.h"

#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "agent/shim/wire.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::shim {
namespace {

// First byte of every body. Numbers are never given another meaning; the same holds for every tag
// below.
enum Kind : char {
  kSpec = 1,
  kState = 2,
  kHello = 10,
  kStartRanks = 11,
  kStop = 12,
  kKill = 13,
  kQuery = 14,
  kRelease = 15,
  kShown = 16,
  kAdopt = 17
};

absl::Status Damaged(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("damaged ", std::string(what)));
}

absl::StatusOr<std::string_view> BodyOf(std::string_view bytes, Kind kind, std::string_view what) {
  if (bytes.empty() || bytes[0] != kind) return Damaged(what);
  return bytes.substr(1);
}

absl::Status CheckVersion(std::uint32_t version, std::string_view what) {
  if (version >= kOldestShimProtocol && version <= kShimProtocol) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(std::string(what), " has shim protocol ",
                                                    version, ", this program reads ",
                                                    kOldestShimProtocol, " to ", kShimProtocol));
}

std::int64_t Count(Instant instant) { return instant.time_since_epoch().count(); }
Instant ToInstant(std::int64_t count) { return Instant(Duration(count)); }

std::string EncodeLimit(const ResourceLimit& limit) {
  FieldWriter out;
  out.Int(1, limit.resource);
  out.Int(2, static_cast<std::int64_t>(limit.soft));
  out.Int(3, static_cast<std::int64_t>(limit.hard));
  return out.Take();
}

bool DecodeLimit(std::string_view bytes, ResourceLimit& limit) {
  FieldReader in(bytes);
  while (in.Next()) {
    switch (in.tag()) {
      case 1: limit.resource = static_cast<int>(in.Int()); break;
      case 2: limit.soft = static_cast<std::uint64_t>(in.Int()); break;
      case 3: limit.hard = static_cast<std::uint64_t>(in.Int()); break;
    }
  }
  return in.ok();
}

std::string EncodePlan(const RankPlan& plan) {
  FieldWriter out;
  out.Int(1, plan.local_rank);
  out.Int(2, plan.rank);
  for (const std::string& entry : plan.environment) out.Bytes(3, entry);
  for (int cpu : plan.cpus) out.Int(4, cpu);
  for (const std::string& word : plan.command) out.Bytes(5, word);
  return out.Take();
}

bool DecodePlan(std::string_view bytes, RankPlan& plan) {
  FieldReader in(bytes);
  while (in.Next()) {
    switch (in.tag()) {
      case 1: plan.local_rank = static_cast<int>(in.Int()); break;
      case 2: plan.rank = static_cast<int>(in.Int()); break;
      case 3: plan.environment.push_back(in.str()); break;
      case 4: plan.cpus.push_back(static_cast<int>(in.Int())); break;
      case 5: plan.command.push_back(in.str()); break;
    }
  }
  return in.ok();
}

std::string EncodeShown(const Shown::Stream& stream) {
  FieldWriter out;
  out.Int(1, stream.local_rank);
  out.Int(2, stream.is_stderr);
  out.Int(3, stream.position.segment);
  out.Int(4, static_cast<std::int64_t>(stream.position.offset));
  return out.Take();
}

bool DecodeShown(std::string_view bytes, Shown::Stream& stream) {
  FieldReader in(bytes);
  while (in.Next()) {
    switch (in.tag()) {
      case 1: stream.local_rank = static_cast<int>(in.Int()); break;
      case 2: stream.is_stderr = in.Int() != 0; break;
      case 3: stream.position.segment = static_cast<int>(in.Int()); break;
      case 4: stream.position.offset = static_cast<std::uint64_t>(in.Int()); break;
    }
  }
  return in.ok();
}

std::string EncodeRank(const RankState& rank) {
  FieldWriter out;
  out.Int(1, rank.local_rank);
  out.Int(2, rank.rank);
  const bool kept = rank.phase == RankPhase::kKept;
  out.Int(3, static_cast<int>(kept ? RankPhase::kEnded : rank.phase));
  out.Int(4, rank.pid);
  out.Int(5, static_cast<std::int64_t>(rank.start_ticks));
  out.Int(6, Count(rank.started_at));
  out.Int(7, Count(rank.ended_at));
  out.Int(8, static_cast<int>(rank.exit_kind));
  out.Int(9, rank.code);
  out.Bytes(10, rank.exec_stage);
  out.Int(11, rank.after_stop);
  out.Int(12, static_cast<int>(rank.oom));
  out.Int(13, rank.logs_complete);
  if (kept) out.Int(14, kept);
  out.Int(15, rank.inherited);
  return out.Take();
}

bool DecodeRank(std::string_view bytes, RankState& rank) {
  FieldReader in(bytes);
  while (in.Next()) {
    switch (in.tag()) {
      case 1: rank.local_rank = static_cast<int>(in.Int()); break;
      case 2: rank.rank = static_cast<int>(in.Int()); break;
      case 3: rank.phase = in.Enum(RankPhase::kEnded); break;
      case 4: rank.pid = static_cast<pid_t>(in.Int()); break;
      case 5: rank.start_ticks = static_cast<std::uint64_t>(in.Int()); break;
      case 6: rank.started_at = ToInstant(in.Int()); break;
      case 7: rank.ended_at = ToInstant(in.Int()); break;
      case 8: rank.exit_kind = in.Enum(ExitKind::kExecFailed); break;
      case 9: rank.code = static_cast<int>(in.Int()); break;
      case 10: rank.exec_stage = in.str(); break;
      case 11: rank.after_stop = in.Int() != 0; break;
      case 12: rank.oom = in.Enum(OomEvidence::kProbable); break;
      case 13: rank.logs_complete = in.Int() != 0; break;
      case 14:
        if (in.Int() != 0) rank.phase = RankPhase::kKept;
        break;
      case 15: rank.inherited = in.Int() != 0; break;
    }
  }
  return in.ok();
}

std::string EncodeLeftBehind(const LeftBehind& left) {
  FieldWriter out;
  out.Int(1, left.local_rank);
  out.Int(2, left.pid);
  out.Bytes(3, left.name);
  return out.Take();
}

bool DecodeLeftBehind(std::string_view bytes, LeftBehind& left) {
  FieldReader in(bytes);
  while (in.Next()) {
    switch (in.tag()) {
      case 1: left.local_rank = static_cast<int>(in.Int()); break;
      case 2: left.pid = static_cast<pid_t>(in.Int()); break;
      case 3: left.name = in.str(); break;
    }
  }
  return in.ok();
}

}  // namespace

std::string Encode(const Spec& spec) {
  FieldWriter out;
  out.Int(1, spec.version);
  out.Int(2, static_cast<int>(spec.role));
  out.Bytes(3, spec.nonce);
  out.Bytes(4, spec.boot.value());
  out.Bytes(5, spec.cluster.value());
  out.Int(6, static_cast<std::int64_t>(spec.epoch.value()));
  out.Bytes(7, spec.node.value());
  out.Bytes(8, spec.job.value());
  out.Int(9, static_cast<std::int64_t>(spec.generation.value()));
  out.Int(10, spec.workers);
  for (const std::string& word : spec.command) out.Bytes(11, word);
  for (const std::string& entry : spec.environment) out.Bytes(12, entry);
  out.Bytes(13, spec.directory);
  out.Int(14, spec.umask);
  out.Bytes(15, spec.log_root);
  out.Int(16, static_cast<std::int64_t>(spec.log_limits.segment_bytes));
  out.Int(17, spec.log_limits.segments);
  out.Bytes(18, spec.cgroup);
  out.Int(19, spec.lifeline_grace.count());
  for (const ResourceLimit& limit : spec.limits) out.Bytes(20, EncodeLimit(limit));
  if (spec.oom_score_adj) out.Int(21, *spec.oom_score_adj);
  for (const std::string& ip : spec.store_members) out.Bytes(22, ip);
  out.Bytes(23, spec.agent_data);
  out.Int(24, spec.unkillable_after.count());
  out.Bytes(25, spec.node_check.command);
  out.Int(26, spec.node_check.timeout.count());
  out.Int(27, spec.agent_patience.count());
  out.Bytes(28, spec.passing);
  out.Bytes(40, spec.program);
  out.Int(41, spec.keeps_ranks);
  out.Int(42, spec.log_patience.count());
  return std::string(1, kSpec) + out.Take();
}

absl::StatusOr<Spec> DecodeSpec(std::string_view bytes) {
  ASSIGN_OR_RETURN(std::string_view body, BodyOf(bytes, kSpec, "run directory spec"));
  Spec spec;
  spec.version = 0;
  spec.limits.clear();
  bool limits_ok = true;
  FieldReader in(body);
  while (in.Next()) {
    switch (in.tag()) {
      case 1: spec.version = static_cast<std::uint32_t>(in.Int()); break;
      case 2: spec.role = in.Enum(Role::kStore); break;
      case 3: spec.nonce = in.str(); break;
      case 4: spec.boot = BootId(in.str()); break;
      case 5: spec.cluster = ClusterId(in.str()); break;
      case 6: spec.epoch = Epoch(static_cast<std::uint64_t>(in.Int())); break;
      case 7: spec.node = NodeId(in.str()); break;
      case 8: spec.job = JobId(in.str()); break;
      case 9: spec.generation = Generation(static_cast<std::uint64_t>(in.Int())); break;
      case 10: spec.workers = static_cast<int>(in.Int()); break;
      case 11: spec.command.push_back(in.str()); break;
      case 12: spec.environment.push_back(in.str()); break;
      case 13: spec.directory = in.str(); break;
      case 14: spec.umask = static_cast<mode_t>(in.Int()); break;
      case 15: spec.log_root = in.str(); break;
      case 16: spec.log_limits.segment_bytes = static_cast<std::uint64_t>(in.Int()); break;
      case 17: spec.log_limits.segments = static_cast<int>(in.Int()); break;
      case 18: spec.cgroup = in.str(); break;
      case 19: spec.lifeline_grace = Duration(in.Int()); break;
      case 20: limits_ok = DecodeLimit(in.bytes(), spec.limits.emplace_back()) && limits_ok; break;
      case 21: spec.oom_score_adj = static_cast<int>(in.Int()); break;
      case 22: spec.store_members.push_back(in.str()); break;
      case 23: spec.agent_data = in.str(); break;
      case 24: spec.unkillable_after = Duration(in.Int()); break;
      case 25: spec.node_check.command = in.str(); break;
      case 26: spec.node_check.timeout = Duration(in.Int()); break;
      case 27: spec.agent_patience = Duration(in.Int()); break;
      case 28: spec.passing = in.str(); break;
      case 40: spec.program = in.str(); break;
      case 41: spec.keeps_ranks = in.Int() != 0; break;
      case 42: spec.log_patience = Duration(in.Int()); break;
    }
  }
  if (!in.ok() || !limits_ok || spec.nonce.empty()) return Damaged("run directory spec");
  RETURN_IF_ERROR(CheckVersion(spec.version, "run directory spec"));
  return spec;
}

std::string Encode(const Command& command) {
  FieldWriter out;
  Kind kind = kQuery;
  if (const auto* hello = std::get_if<Hello>(&command)) {
    kind = kHello;
    out.Int(1, hello->version);
    out.Bytes(2, hello->nonce);
    out.Int(3, hello->wants_output);
  } else if (const auto* start = std::get_if<StartRanks>(&command)) {
    kind = kStartRanks;
    for (const RankPlan& plan : start->ranks) out.Bytes(1, EncodePlan(plan));
  } else if (const auto* stop = std::get_if<Stop>(&command)) {
    kind = kStop;
    out.Int(1, Count(stop->deadline));
    out.Int(2, stop->signal);
    out.Int(3, stop->name_leftovers);
    out.Int(4, stop->keep_leftovers);
  } else if (std::holds_alternative<Kill>(command)) {
    kind = kKill;
  } else if (std::holds_alternative<Release>(command)) {
    kind = kRelease;
  } else if (const auto* shown = std::get_if<Shown>(&command)) {
    kind = kShown;
    out.Int(1, static_cast<std::int64_t>(shown->room_bytes));
    for (const Shown::Stream& stream : shown->streams) out.Bytes(2, EncodeShown(stream));
  } else if (const auto* adopt = std::get_if<Adopt>(&command)) {
    kind = kAdopt;
    out.Int(1, adopt->with_stdin);
  }
  return std::string(1, kind) + out.Take();
}

absl::StatusOr<Command> DecodeCommand(std::string_view bytes) {
  if (bytes.empty()) return Damaged("shim command");
  FieldReader in(bytes.substr(1));
  Command command = Query{};
  switch (bytes[0]) {
    case kHello: {
      Hello hello;
      while (in.Next()) {
        if (in.tag() == 1) hello.version = static_cast<std::uint32_t>(in.Int());
        if (in.tag() == 2) hello.nonce = in.str();
        if (in.tag() == 3) hello.wants_output = in.Int() != 0;
      }
      RETURN_IF_ERROR(CheckVersion(hello.version, "hello"));
      command = hello;
      break;
    }
    case kStartRanks: {
      StartRanks start;
      bool plans_ok = true;
      while (in.Next()) {
        if (in.tag() == 1)
          plans_ok = DecodePlan(in.bytes(), start.ranks.emplace_back()) && plans_ok;
      }
      if (!plans_ok) return Damaged("shim command");
      command = start;
      break;
    }
    case kStop: {
      Stop stop;
      while (in.Next()) {
        if (in.tag() == 1) stop.deadline = ToInstant(in.Int());
        if (in.tag() == 2) stop.signal = static_cast<int>(in.Int());
        if (in.tag() == 3) stop.name_leftovers = in.Int() != 0;
        if (in.tag() == 4) stop.keep_leftovers = in.Int() != 0;
      }
      if (stop.signal < 1 || stop.signal > 64) return Damaged("shim command");
      command = stop;
      break;
    }
    case kShown: {
      Shown shown;
      bool streams_ok = true;
      while (in.Next()) {
        if (in.tag() == 1) shown.room_bytes = static_cast<std::uint64_t>(in.Int());
        if (in.tag() == 2)
          streams_ok = DecodeShown(in.bytes(), shown.streams.emplace_back()) && streams_ok;
      }
      if (!streams_ok) return Damaged("shim command");
      command = std::move(shown);
      break;
    }
    case kAdopt: {
      Adopt adopt;
      while (in.Next()) {
        if (in.tag() == 1) adopt.with_stdin = in.Int() != 0;
      }
      command = adopt;
      break;
    }
    case kKill: command = Kill{}; break;
    case kQuery: break;
    case kRelease: command = Release{}; break;
    default:
      return absl::UnimplementedError(
          absl::StrCat("shim command ", static_cast<int>(bytes[0]), " is not known"));
  }
  if (!in.ok()) return Damaged("shim command");
  return command;
}

std::string Encode(const State& state) {
  FieldWriter out;
  out.Int(1, state.version);
  out.Bytes(2, state.nonce);
  out.Int(3, state.shim_pid);
  out.Int(4, static_cast<int>(state.phase));
  out.Int(5, state.ever_started);
  for (const RankState& rank : state.ranks) out.Bytes(6, EncodeRank(rank));
  if (state.stop_deadline) out.Int(7, Count(*state.stop_deadline));
  for (pid_t pid : state.left) out.Int(8, pid);
  out.Int(9, state.cgroup_used);
  out.Int(10, static_cast<std::int64_t>(state.output_bytes));
  out.Int(11, static_cast<std::int64_t>(state.lost_log_bytes));
  out.Bytes(12, state.log_trouble);
  out.Bytes(13, state.check_failed);
  out.Int(14, static_cast<std::int64_t>(state.unshown_bytes));
  out.Int(15, state.disk_full);
  for (const LeftBehind& left : state.left_behind) out.Bytes(40, EncodeLeftBehind(left));
  out.Int(41, state.left_behind_count);
  out.Int(42, state.left_behind_kept);
  return std::string(1, kState) + out.Take();
}

absl::StatusOr<State> DecodeState(std::string_view bytes) {
  ASSIGN_OR_RETURN(std::string_view body, BodyOf(bytes, kState, "shim state"));
  State state;
  state.version = 0;
  bool ranks_ok = true;
  FieldReader in(body);
  while (in.Next()) {
    switch (in.tag()) {
      case 1: state.version = static_cast<std::uint32_t>(in.Int()); break;
      case 2: state.nonce = in.str(); break;
      case 3: state.shim_pid = static_cast<pid_t>(in.Int()); break;
      case 4: state.phase = in.Enum(Phase::kUnkillable); break;
      case 5: state.ever_started = in.Int() != 0; break;
      case 6: ranks_ok = DecodeRank(in.bytes(), state.ranks.emplace_back()) && ranks_ok; break;
      case 7: state.stop_deadline = ToInstant(in.Int()); break;
      case 8: state.left.push_back(static_cast<pid_t>(in.Int())); break;
      case 9: state.cgroup_used = in.Int() != 0; break;
      case 10: state.output_bytes = static_cast<std::uint64_t>(in.Int()); break;
      case 11: state.lost_log_bytes = static_cast<std::uint64_t>(in.Int()); break;
      case 12: state.log_trouble = in.str(); break;
      case 13: state.check_failed = in.str(); break;
      case 14: state.unshown_bytes = static_cast<std::uint64_t>(in.Int()); break;
      case 15: state.disk_full = in.Int() != 0; break;
      case 40:
        ranks_ok = DecodeLeftBehind(in.bytes(), state.left_behind.emplace_back()) && ranks_ok;
        break;
      case 41: state.left_behind_count = static_cast<int>(in.Int()); break;
      case 42: state.left_behind_kept = in.Int() != 0; break;
    }
  }
  if (!in.ok() || !ranks_ok) return Damaged("shim state");
  RETURN_IF_ERROR(CheckVersion(state.version, "shim state"));
  return state;
}

std::string Frame(std::string_view body) {
  CHECK(body.size() <= kMaxMessageBytes);
  const std::uint32_t size = static_cast<std::uint32_t>(body.size());
  std::string frame(reinterpret_cast<const char*>(&size), sizeof(size));
  frame.append(body);
  return frame;
}

absl::StatusOr<std::vector<std::string>> TakeFrames(std::string& buffer) {
  std::vector<std::string> bodies;
  std::size_t at = 0;
  while (buffer.size() - at >= 4) {
    std::uint32_t size = 0;
    std::memcpy(&size, buffer.data() + at, 4);
    if (size > kMaxMessageBytes) {
      return absl::InvalidArgumentError(absl::StrCat("a message of ", size, " bytes, at most ",
                                                     kMaxMessageBytes, " are allowed"));
    }
    if (buffer.size() - at - 4 < size) break;
    bodies.push_back(buffer.substr(at + 4, size));
    at += 4 + size;
  }
  buffer.erase(0, at);
  return bodies;
}

std::vector<std::string> RankEnvironment(const Spec& spec, const RankPlan& plan) {
  std::map<std::string, std::string> entries;  // Key → whole entry.
  auto add = [&](const std::string& entry) { entries[entry.substr(0, entry.find('='))] = entry; };
  for (const std::string& entry : spec.environment) add(entry);
  for (const std::string& entry : plan.environment) add(entry);
  add("REGROUP_GROUP=" + spec.nonce);
  std::vector<std::string> environment;
  for (auto& [key, entry] : entries) environment.push_back(std::move(entry));
  return environment;
}

}  // namespace regroup::shim
