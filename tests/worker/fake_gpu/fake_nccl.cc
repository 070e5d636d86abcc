#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/worker/fake_gpu/fake_state.h"
#include "worker/nccl/nccl_api.h"
#include "worker/tensor/dtype.h"

namespace fake {
namespace {

using regroup::worker::BFloat16;
using regroup::worker::Half;
using regroup::worker::NcclConfig;
using regroup::worker::NcclResult;
using regroup::worker::NcclUniqueId;
using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int kMostRanks = 12, kRing = 64, kDepth = 2;
constexpr std::size_t kChunk = 32 << 10;
constexpr auto kPause = microseconds(20);
constexpr int kLaunchFailure = 719;

struct OpRecord {
  std::atomic<std::uint64_t> sequence;  // 1 more than its place; 0: none yet.
  int kind, type, op, root;
  std::size_t count;
};

struct Slot {
  std::atomic<int> taken;
  int version;
  std::atomic<int> splits;                  // So many has this rank begun.
  std::array<std::array<int, 2>, 8> split;  // Color and key of each.
  std::array<OpRecord, kRing> ops;
  std::atomic<std::uint64_t> phase;
  alignas(64) std::array<std::array<std::byte, kChunk>, kDepth> data;
};

// What the ranks of one communicator share; zeroed.
struct Segment {
  std::atomic<int> world;
  std::atomic<int> attached;
  std::array<Slot, kMostRanks> slots;
};

enum class State { kInit, kUsable, kError };
enum Kind { kAllReduce, kReduce, kBroadcast, kReduceScatter, kAllGather };
constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduce", "ncclBroadcast",
                                  "ncclReduceScatter", "ncclAllGather"};

struct Op {
  int kind, type, op, root;
  const void* from;
  void* to;
  std::size_t count;
  void* stream;
};

struct Comm {
  std::string name;
  Segment* segment = nullptr;
  int rank = 0, world = 0;
  const int device = CurrentDevice();
  int who = 0;  // Its rank in the world, by which scripts name it.
  std::atomic<bool> initialized{false};
  std::atomic<int> result{0};     // What ncclCommGetAsyncError says.
  std::atomic<bool> told{false};  // Its caller has been: it could not know before.
  std::atomic<bool> aborted{false}, revoked{false};
  std::atomic<int> inside{0}, under_way{0};
  bool finalized = false;
  Clock::time_point busy_until{};         // A call is in progress so long.
  std::function<bool()> proceed;          // Of an init or a split: whether it has ended.
  std::uint64_t sequence = 0, phase = 0;  // Begun; and of its stream thread.
  bool is_world = true;
  std::string last_error;
};

struct World {
  std::mutex mutex;
  std::set<Comm*> comms;
  std::vector<Comm*> ended;  // A kernel that was left may still look at one.
  int version = 22809;
  std::deque<FakeScript> scripts;  // All, since a thread that was left may still look at one.
  std::atomic<const FakeScript*> script{nullptr};
  std::atomic<bool> released{false};
  std::uint64_t ids = 0;
  std::array<std::atomic<int>, 5> calls{};           // By kind, of all ranks of this process.
  std::array<std::atomic<int>, kMostRanks> begun{};  // By rank: pieces of work since the script.
};
World& world() {
  static auto* one = new World;
  return *one;
}

// Of this thread: between ncclGroupStart and ncclGroupEnd.
thread_local int t_depth = 0;
thread_local std::vector<std::pair<Comm*, Op>> t_ops;
thread_local std::vector<Comm*> t_aborts;
thread_local int t_failed = 0;          // What a call in the group has returned.
thread_local std::string t_last_error;  // Where there is no communicator that could keep it.

int FailBeforehand(NcclResult result) {
  t_last_error = "the fake was told to";
  return static_cast<int>(result);
}

int Result(NcclResult result) { return static_cast<int>(result); }
const int kOk = Result(NcclResult::kSuccess);

bool Plays(const Comm& comm, FakeFault fault) {
  const FakeScript& s = *world().script;
  return (s.rank == comm.who || s.rank == kEveryRank) &&
         (s.fault == fault || static_cast<FakeFault>(s.other) == fault);
}
bool PlaysAt(const Comm& comm, FakeFault fault, int op) {
  const FakeScript& s = *world().script;
  return (s.rank == comm.who || s.rank == kEveryRank) && s.fault == fault && s.op == op;
}
milliseconds Slowly() { return milliseconds(world().script.load()->ms); }

bool Hang(const Comm& comm) {  // Until something ends it.
  while (!comm.aborted && !world().released) std::this_thread::sleep_for(kPause);
  return false;
}

// True once `come`; false where the communicator was aborted or revoked first.
bool Spin(const Comm& comm, const std::function<bool()>& come) {
  const bool deaf =
      Plays(comm, FakeFault::kRevokeIsNotHeard) || Plays(comm, FakeFault::kAbortLeavesKernel);
  while (!come()) {
    if (comm.aborted || (comm.revoked && !deaf) || world().released) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

std::size_t SizeOf(int type) { return type == 7 ? 4 : 2; }

template <typename T>
void Add(std::byte* sum, const std::byte* more, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes / sizeof(T); ++i) {
    T a, b;
    std::memcpy(&a, sum + i * sizeof(T), sizeof(T));
    std::memcpy(&b, more + i * sizeof(T), sizeof(T));
    a = T(static_cast<float>(a) + static_cast<float>(b));  // Rounded each time.
    std::memcpy(sum + i * sizeof(T), &a, sizeof(T));
  }
}
void AddOf(int type, std::byte* sum, const std::byte* more, std::size_t bytes) {
  switch (type) {
    case 6: return Add<Half>(sum, more, bytes);
    case 9: return Add<BFloat16>(sum, more, bytes);
    default: return Add<float>(sum, more, bytes);
  }
}

// What the ranks bring has to be of one kind. True: it is.
bool Agrees(Comm& comm, std::uint64_t sequence, const Op& op) {
  if (comm.aborted || comm.revoked) return false;
  const auto at = sequence % kRing;
  OpRecord& own = comm.segment->slots[comm.rank].ops[at];
  own.kind = op.kind;
  own.type = op.type;
  own.op = op.op;
  own.root = op.root;
  own.count = op.count;
  own.sequence = sequence + 1;
  for (int r = 0; r < comm.world; ++r) {
    const OpRecord& other = comm.segment->slots[r].ops[at];
    if (!Spin(comm, [&] { return other.sequence >= sequence + 1; })) return false;
    const char* differs = other.kind != own.kind     ? "order of operations"
                          : other.count != own.count ? "count"
                          : other.type != own.type   ? "data type"
                          : other.op != own.op       ? "reduction"
                          : other.root != own.root   ? "root"
                                                     : nullptr;
    if (differs == nullptr) continue;
    Refuse(std::string("other ") + differs, "ranks " + std::to_string(comm.rank) + " and " +
                                                std::to_string(r) + " at operation " +
                                                std::to_string(sequence));
    return Hang(comm);
  }
  return true;
}

bool MoveOne(Comm& comm, const Op& op);

// As so many with a root each.
bool Move(Comm& comm, const Op& op) {
  if (op.kind != kReduceScatter && op.kind != kAllGather) return MoveOne(comm, op);
  for (int root = 0; root < comm.world; ++root) {
    Op part = op;
    part.kind = op.kind == kAllGather ? kBroadcast : kReduce;
    part.root = root;
    const std::size_t at = static_cast<std::size_t>(root) * op.count * SizeOf(op.type);
    if (op.kind == kAllGather) {
      part.to = static_cast<std::byte*>(op.to) + at;
    } else {
      part.from = static_cast<const std::byte*>(op.from) + at;
    }
    if (!MoveOne(comm, part)) return false;
  }
  return true;
}

bool MoveOne(Comm& comm, const Op& op) {
  const std::size_t bytes = op.count * SizeOf(op.type);
  const auto* from = static_cast<const std::byte*>(op.from);
  auto* to = static_cast<std::byte*>(op.to);
  for (std::size_t done = 0; done < bytes; done += kChunk) {
    const std::size_t part = std::min(kChunk, bytes - done);
    const std::uint64_t phase = ++comm.phase;
    const auto buffer = [&](int r) { return comm.segment->slots[r].data[phase % kDepth].data(); };
    if (op.kind != kBroadcast || comm.rank == op.root)
      std::memcpy(buffer(comm.rank), from + done, part);
    comm.segment->slots[comm.rank].phase = phase;
    for (int r = 0; r < comm.world; ++r) {
      if (!Spin(comm, [&] { return comm.segment->slots[r].phase >= phase; })) return false;
    }
    if (op.kind == kBroadcast) {
      std::memcpy(to + done, buffer(op.root), part);
    } else if (op.kind == kAllReduce || comm.rank == op.root) {
      // From the last rank to the first: not the order in which hosts sum.
      std::memcpy(to + done, buffer(comm.world - 1), part);
      for (int r = comm.world - 2; r >= 0; --r) AddOf(op.type, to + done, buffer(r), part);
    }
  }
  return true;
}

// On the thread of the stream.
void Execute(Comm& comm, const std::vector<Op>& ops, int number, std::uint64_t first) {
  const auto ends_by = [&](FakeFault fault, NcclResult result) {
    if (!PlaysAt(comm, fault, number)) return false;
    comm.last_error = "the fake was told to";
    comm.result = Result(result);
    return true;
  };
  if (PlaysAt(comm, FakeFault::kOpIsSlow, number)) std::this_thread::sleep_for(Slowly());
  if (PlaysAt(comm, FakeFault::kOpHangs, number) ||
      ends_by(FakeFault::kOpRemoteError, NcclResult::kRemoteError) ||
      ends_by(FakeFault::kOpSystemError, NcclResult::kSystemError) ||
      ends_by(FakeFault::kOpInternalError, NcclResult::kInternalError)) {
    Spin(comm, [] { return false; });
  } else if (PlaysAt(comm, FakeFault::kOpCudaError, number)) {
    FailDevice(kLaunchFailure);
  } else {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (!Agrees(comm, first + i, ops[i]) || !Move(comm, ops[i])) break;
    }
  }
  while (Plays(comm, FakeFault::kAbortLeavesKernel) && comm.aborted && !world().released)
    std::this_thread::sleep_for(kPause);
  --comm.under_way;
}

int Refused(const std::string& rule, const std::string& text,
            NcclResult result = NcclResult::kInvalidUsage) {
  Refuse(rule, text);
  return Result(result);
}

// Inside the library, on one communicator.
class Call {
 public:
  Call(Comm* comm, const char* name) : comm_(comm), name_(name) {
    (void)MayCall(name);
    {
      const std::scoped_lock lock(world().mutex);
      lives_ = world().comms.count(comm) != 0;
    }
    if (!lives_) {
      Refuse("dead communicator", std::string(name) + " on one that was aborted or never made");
    } else if (comm_->inside.fetch_add(1) > 0) {
      Refuse("two threads", std::string(name) + " while another thread is inside");
    }
  }
  ~Call() {
    if (lives_) --comm_->inside;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool lives() const { return lives_; }
  // What has to be so for anything but an abort and a question.
  bool MayBegin() const {
    if (!lives_) return false;
    if (comm_->result != kOk) {
      if (comm_->told)
        Refuse("after an error", std::string(name_) + " where only an abort is allowed");
      return false;
    }
    if (InProgress())
      return Refuse("in progress", std::string(name_) + " before the call before has ended"), false;
    if (comm_->revoked)
      return Refuse("after a revoke", std::string(name_) + " on a revoked communicator"), false;
    if (comm_->finalized)
      return Refuse("after finalize", std::string(name_) + " on a finalized communicator"), false;
    return true;
  }
  bool InProgress() const {
    if (comm_->proceed) {
      if (!comm_->proceed()) return true;
      comm_->proceed = nullptr;
    }
    return Clock::now() < comm_->busy_until;
  }

 private:
  Comm* const comm_;
  const char* const name_;
  bool lives_ = false;
};

Segment* Open(const std::string& name) {
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT, 0600);
  if (fd < 0) return nullptr;
  if (ftruncate(fd, sizeof(Segment)) != 0) {
    close(fd);
    return nullptr;
  }
  void* base = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  return base == MAP_FAILED ? nullptr : static_cast<Segment*>(base);
}

// Takes the rank's place. Empty: it may.
std::string Attach(Comm& comm) {
  Slot& slot = comm.segment->slots[comm.rank];
  int none = 0;
  if (!comm.segment->world.compare_exchange_strong(none, comm.world) && none != comm.world)
    return "other world size";
  slot.version = world().version;
  if (slot.taken.exchange(1) != 0) return "rank twice, or an id used again";
  ++comm.segment->attached;
  return "";
}

bool AllAttached(Comm& comm) {
  if (comm.segment->attached < comm.world) return false;
  for (int r = 0; r < comm.world; ++r) {
    if (comm.segment->slots[r].version != world().version) {
      Refuse("other version", "of rank " + std::to_string(r));
      comm.result = Result(NcclResult::kInvalidUsage);
    }
  }
  shm_unlink(comm.name.c_str());  // Nobody else comes.
  comm.initialized = true;
  return true;
}

void CheckConfig(const NcclConfig* config, bool blocking_matters) {
  if (config == nullptr || config->magic != 0xcafebeef) {
    Refuse("config", "without its magic number");
    return;
  }
  const bool newest = world().version >= 22800;
  if (config->size > (newest ? sizeof(NcclConfig) : regroup::worker::kNcclConfigBytes227) ||
      config->size < regroup::worker::kNcclConfigBytes218)
    Refuse("config size", std::to_string(config->size));
  if (blocking_matters && config->blocking != 0)
    Refuse("blocking", "a communicator whose calls block can not be aborted");
  if (config->split_share != 0) Refuse("split share", "what is shared is aborted with the other");
}

Comm* NewComm(const std::string& name, int rank, int size) {
  auto* comm = new Comm;
  comm->name = name;
  comm->rank = comm->who = rank;
  comm->world = size;
  comm->segment = Open(name);
  const std::scoped_lock lock(world().mutex);
  world().comms.insert(comm);
  return comm;
}

int Begin(Comm* comm, const Op& op) {
  const Call call(comm, kNames[op.kind]);
  if (PlaysAt(*comm, FakeFault::kFailsBeforeCall, world().begun[comm->who])) {
    comm->last_error = "the fake was told to";
    comm->result = Result(NcclResult::kSystemError);
  }
  if (!call.MayBegin()) return Result(NcclResult::kInvalidUsage);
  const std::string name = kNames[op.kind];
  if (op.type != 6 && op.type != 7 && op.type != 9) return Refused("type", name + " of what type?");
  const bool moves = op.kind == kBroadcast || op.kind == kAllGather;  // And sums nothing.
  if (op.op != 0 && !moves) return Refused("reduction", name + " by what?");
  ++world().calls[static_cast<std::size_t>(op.kind)];
  if (op.kind != kAllReduce && (op.root < 0 || op.root >= comm->world))
    return Refused("root out of range", name, NcclResult::kInvalidArgument);
  const Stream* stream = StreamOf(op.stream, kNames[op.kind]);
  if (stream == nullptr) return Result(NcclResult::kInvalidArgument);
  if (stream->device() != comm->device)
    return Refused("stream of another device", name, NcclResult::kInvalidArgument);
  const std::size_t bytes = op.count * SizeOf(op.type);
  const bool reads = op.kind != kBroadcast || comm->rank == op.root;
  const bool writes = op.kind != kReduce || comm->rank == op.root;
  const std::size_t whole_bytes = bytes * static_cast<std::size_t>(comm->world);
  const std::size_t read = op.kind == kReduceScatter ? whole_bytes : bytes,
                    written = op.kind == kAllGather ? whole_bytes : bytes;
  for (const auto& [used, at, size] :
       {std::tuple(reads, op.from, read), {writes, op.to, written}}) {
    if (!used || size == 0) continue;
    if (at == nullptr) return Refused("no buffer", name, NcclResult::kInvalidArgument);
    if (reinterpret_cast<std::uintptr_t>(at) % SizeOf(op.type) != 0)
      return Refused("not aligned", name, NcclResult::kInvalidArgument);
    if (!IsDeviceMemory(at, size, comm->device))
      return Refused("not memory of the device", name, NcclResult::kInvalidArgument);
  }
  // The part of a rank may be where it is in the whole, and no two buffers overlap otherwise.
  if (op.kind == kReduceScatter || op.kind == kAllGather) {
    const auto* whole = static_cast<const std::byte*>(op.kind == kAllGather ? op.to : op.from);
    const auto* part = static_cast<const std::byte*>(op.kind == kAllGather ? op.from : op.to);
    if (part < whole + whole_bytes && whole < part + bytes &&
        part != whole + bytes * static_cast<std::size_t>(comm->rank))
      return Refused("overlapping buffers", name);
  }
  if (t_depth == 0) return Refused("no group", name + " outside of a group");
  if (!t_ops.empty() && t_ops.front().second.stream != op.stream)
    return Refused("two streams", "in one group");
  if (!t_ops.empty() && t_ops.front().first != comm)
    return Refused("two communicators", "in one group");
  t_ops.emplace_back(comm, op);
  if (!PlaysAt(*comm, FakeFault::kCallError, world().begun[comm->who])) return kOk;
  return t_failed = Result(NcclResult::kSystemError);
}

int EndOps() {
  Comm* comm = t_ops.front().first;
  std::vector<Op> ops;
  for (const auto& [of, op] : t_ops) ops.push_back(op);
  t_ops.clear();
  const int number = world().begun[comm->who]++;
  if (PlaysAt(*comm, FakeFault::kCallBlocks, number)) {
    const Call call(comm, "ncclGroupEnd");
    const auto end = Clock::now() + Slowly();
    while (Clock::now() < end && !world().released) std::this_thread::sleep_for(milliseconds(1));
  }
  if (PlaysAt(*comm, FakeFault::kGroupEndError, number))
    t_failed = Result(NcclResult::kInternalError);
  if (t_failed != 0) {  // None of them is begun.
    int ok = kOk;       // What it failed of first stays.
    comm->result.compare_exchange_strong(ok, t_failed);
    comm->told = true;
    return std::exchange(t_failed, 0);
  }
  const std::uint64_t first = comm->sequence;
  comm->sequence += ops.size();
  ++comm->under_way;
  StreamOf(ops.front().stream, "ncclGroupEnd")->Push([comm, ops, number, first] {
    Execute(*comm, ops, number, first);
  });
  if (PlaysAt(*comm, FakeFault::kCallInProgress, number)) {
    comm->busy_until = Clock::now() + Slowly();
  } else if (PlaysAt(*comm, FakeFault::kCallInProgressFor, number)) {
    comm->busy_until = Clock::time_point::max();
  } else if (number % 2 == 0) {
    comm->busy_until = Clock::now() + microseconds(100);
  } else {
    return kOk;
  }
  return Result(NcclResult::kInProgress);
}

void EndAborts() {
  std::vector<Comm*> comms = std::move(t_aborts);
  t_aborts.clear();
  for (Comm* comm : comms) {
    if (comm->is_world && Plays(*comm, FakeFault::kAbortIsSlow))
      std::this_thread::sleep_for(Slowly());
    while ((Plays(*comm, FakeFault::kAbortHangs) ||
            (Plays(*comm, FakeFault::kAbortNeedsQuiet) && comm->under_way > 0)) &&
           !world().released)
      std::this_thread::sleep_for(milliseconds(1));
  }
  for (Comm* comm : comms) comm->aborted = true;
  for (Comm* comm : comms) {
    while (comm->under_way > 0 && !Plays(*comm, FakeFault::kAbortLeavesKernel) && !world().released)
      std::this_thread::sleep_for(kPause);
    if (!comm->initialized) shm_unlink(comm->name.c_str());
    const std::scoped_lock lock(world().mutex);
    world().ended.push_back(comm);
  }
}

}  // namespace
}  // namespace fake

using fake::Comm;
using fake::kOk;
using regroup::worker::NcclConfig;
using regroup::worker::NcclResult;
using regroup::worker::NcclUniqueId;

extern "C" {

void fakeNcclSetVersion(int version) { fake::world().version = version; }
void fakeNcclPlay(const FakeScript* script) {
  fake::world().released = false;
  for (std::atomic<int>& begun : fake::world().begun) begun = 0;
  for (std::atomic<int>& calls : fake::world().calls) calls = 0;
  const std::scoped_lock lock(fake::world().mutex);
  fake::world().scripts.push_back(script == nullptr ? FakeScript{.rank = -1} : *script);
  fake::world().script = &fake::world().scripts.back();
}
int fakeNcclCalls(const char* name) {
  const auto kind = std::find_if(std::begin(fake::kNames), std::end(fake::kNames),
                                 [&](const char* each) { return std::strcmp(each, name) == 0; });
  return fake::world()
      .calls.at(static_cast<std::size_t>(kind - std::begin(fake::kNames)))
      .exchange(0);
}
void fakeNcclRelease() { fake::world().released = true; }
int fakeNcclComms() {
  const std::scoped_lock lock(fake::world().mutex);
  return static_cast<int>(fake::world().comms.size());
}

int ncclGetVersion(int* version) {
  *version = fake::world().version;
  return kOk;
}
const char* ncclGetErrorString(NcclResult result) {
  constexpr std::array<const char*, 8> kTexts = {
      "no error",
      "unhandled cuda error",
      "unhandled system error",
      "internal error",
      "invalid argument",
      "invalid usage",
      "remote process exited or there was a network error",
      "NCCL operation in progress"};
  return kTexts[static_cast<std::size_t>(result)];
}
const char* ncclGetLastError(Comm* comm) {
  return comm == nullptr || comm->last_error.empty() ? fake::t_last_error.c_str()
                                                     : comm->last_error.c_str();
}

int ncclGetUniqueId(NcclUniqueId* id) {
  if (fake::world().script.load()->fault == FakeFault::kIdError)
    return fake::FailBeforehand(NcclResult::kSystemError);
  fake::t_last_error.clear();
  *id = {};
  const std::string name =
      "/regroup-fake-nccl-" + std::to_string(getpid()) + "-" + std::to_string(++fake::world().ids);
  std::memcpy(id->bytes, name.data(), name.size());
  return kOk;
}

int ncclCommInitRankConfig(Comm** out, int ranks, NcclUniqueId id, int rank, NcclConfig* config) {
  fake::CheckConfig(config, /*blocking_matters=*/true);
  const std::string name(id.bytes, strnlen(id.bytes, sizeof id.bytes));
  if (name.rfind("/regroup-fake-nccl-", 0) != 0)
    return fake::Refused("no id", "what is no id", NcclResult::kInvalidArgument);
  if (rank < 0 || rank >= ranks || ranks > fake::kMostRanks)
    return fake::Refused("rank out of range", std::to_string(rank), NcclResult::kInvalidArgument);
  Comm* comm = fake::NewComm(name, rank, ranks);
  *out = comm;
  if (fake::Plays(*comm, FakeFault::kInitError)) {
    const std::scoped_lock lock(fake::world().mutex);
    fake::world().comms.erase(comm);
    fake::world().ended.push_back(comm);
    *out = nullptr;
    return fake::FailBeforehand(NcclResult::kUnhandledCudaError);
  }
  if (fake::Plays(*comm, FakeFault::kInitIsSlow))
    comm->busy_until = fake::Clock::now() + fake::Slowly();
  if (fake::Plays(*comm, FakeFault::kInitHangs)) {
    comm->proceed = [] { return false; };
    return fake::Result(NcclResult::kInProgress);
  }
  if (fake::Plays(*comm, FakeFault::kInitAsyncError)) {
    comm->last_error = "the fake was told to";
    comm->result = fake::Result(NcclResult::kSystemError);
  } else if (const std::string wrong = fake::Attach(*comm); !wrong.empty()) {
    fake::Refuse(wrong, "at the init of rank " + std::to_string(rank));
    comm->result = fake::Result(NcclResult::kInvalidUsage);
  } else {
    comm->proceed = [comm] { return fake::AllAttached(*comm); };
  }
  return fake::Result(NcclResult::kInProgress);
}

int ncclCommSplit(Comm* parent, int color, int key, Comm** out, NcclConfig* config) {
  const fake::Call call(parent, "ncclCommSplit");
  if (!call.MayBegin()) return fake::Result(NcclResult::kInvalidUsage);
  fake::CheckConfig(config, /*blocking_matters=*/true);
  if (parent->under_way > 0) return fake::Refused("split", "while work is under way");
  if (color < 0) return fake::Refused("split", "every rank needs a color here");
  if (fake::Plays(*parent, FakeFault::kSplitError))
    return fake::FailBeforehand(NcclResult::kSystemError);
  fake::Slot& own = parent->segment->slots[parent->rank];
  const int number = own.splits + 1;
  own.split[static_cast<std::size_t>(number)] = {color, key};
  const bool hangs = fake::Plays(*parent, FakeFault::kSplitHangs);
  if (!hangs) own.splits = number;
  auto* child = new Comm;
  child->is_world = false;
  child->who = parent->who;
  {
    const std::scoped_lock lock(fake::world().mutex);
    fake::world().comms.insert(child);
  }
  *out = child;
  const auto meet = [parent, child, number, color] {
    if (child->initialized) return true;
    for (int r = 0; r < parent->world; ++r) {
      if (parent->segment->slots[r].splits < number) return false;
    }
    if (child->segment == nullptr) {
      std::vector<std::pair<int, int>> members;  // By key.
      for (int r = 0; r < parent->world; ++r) {
        const auto& [its_color, its_key] =
            parent->segment->slots[r].split[static_cast<std::size_t>(number)];
        if (its_color == color) members.emplace_back(its_key, r);
      }
      std::sort(members.begin(), members.end());
      child->world = static_cast<int>(members.size());
      for (int i = 0; i < child->world; ++i) {
        if (members[static_cast<std::size_t>(i)].second == parent->rank) child->rank = i;
      }
      child->name = parent->name + "-" + std::to_string(number) + "-" + std::to_string(color);
      child->segment = fake::Open(child->name);
      if (const std::string wrong = fake::Attach(*child); !wrong.empty())
        fake::Refuse("split", wrong);
    }
    return fake::AllAttached(*child);
  };
  parent->proceed = meet;
  child->proceed = meet;
  return fake::Result(NcclResult::kInProgress);
}

int ncclCommGetAsyncError(Comm* comm, NcclResult* state) {
  const fake::Call call(comm, "ncclCommGetAsyncError");
  if (!call.lives()) return fake::Result(NcclResult::kInvalidArgument);
  if (fake::PlaysAt(*comm, FakeFault::kAsyncQueryError, fake::world().begun[comm->who] - 1))
    return fake::Result(NcclResult::kInternalError);
  const bool busy = comm->result == kOk && call.InProgress();
  *state = busy ? NcclResult::kInProgress : static_cast<NcclResult>(comm->result.load());
  if (comm->result != kOk) comm->told = true;
  return kOk;
}

int ncclCommFinalize(Comm* comm) {
  const fake::Call call(comm, "ncclCommFinalize");
  if (!call.MayBegin()) return fake::Result(NcclResult::kInvalidUsage);
  comm->finalized = true;
  return kOk;
}
int ncclCommDestroy(Comm* comm) {
  {
    const fake::Call call(comm, "ncclCommDestroy");
    if (!call.lives()) return fake::Result(NcclResult::kInvalidArgument);
    if (comm->result != kOk || comm->revoked)
      return fake::Refused("destroy after an error", "it is not for a broken communicator");
    if (!comm->finalized) return fake::Refused("destroy before finalize", "work may be under way");
  }
  const std::scoped_lock lock(fake::world().mutex);
  fake::world().comms.erase(comm);
  fake::world().ended.push_back(comm);
  return kOk;
}
int ncclCommRevoke(Comm* comm, int flags) {
  const fake::Call call(comm, "ncclCommRevoke");
  if (!call.lives()) return fake::Result(NcclResult::kInvalidArgument);
  if (flags != 0) return fake::Refused("revoke flags", std::to_string(flags));
  if (comm->revoked.exchange(true))
    return fake::Refused("second revoke", "of one communicator", NcclResult::kInvalidArgument);
  return fake::Plays(*comm, FakeFault::kRevokeError) ? fake::Result(NcclResult::kInternalError)
                                                     : kOk;
}
int ncclCommAbort(Comm* comm) {
  {
    const fake::Call call(comm, "ncclCommAbort");
    if (!call.lives()) return fake::Result(NcclResult::kInvalidArgument);
  }
  bool others = false;
  {
    const std::scoped_lock lock(fake::world().mutex);
    fake::world().comms.erase(comm);
    for (const Comm* other : fake::world().comms)
      others |= other->who == comm->who && other->under_way > 0 && comm->under_way > 0;
  }
  if (fake::t_depth == 0 && others)
    fake::Refuse("aborts one by one", "of communicators that may wait for each other");
  fake::t_aborts.push_back(comm);
  if (fake::t_depth == 0) fake::EndAborts();
  return kOk;
}
int ncclGroupStart() {
  if (++fake::t_depth > 1) fake::Refuse("group in a group", "ncclGroupStart");
  return kOk;
}
int ncclGroupEnd() {
  if (fake::t_depth == 0) return fake::Refused("no group", "ncclGroupEnd without a start");
  if (--fake::t_depth > 0) return kOk;
  if (!fake::t_aborts.empty()) fake::EndAborts();
  return fake::t_ops.empty() ? kOk : fake::EndOps();
}
int ncclAllReduce(const void* from, void* to, std::size_t count, int type, int op, Comm* comm,
                  void* stream) {
  return fake::Begin(comm, {fake::kAllReduce, type, op, 0, from, to, count, stream});
}
int ncclReduce(const void* from, void* to, std::size_t count, int type, int op, int root,
               Comm* comm, void* stream) {
  return fake::Begin(comm, {fake::kReduce, type, op, root, from, to, count, stream});
}
int ncclBroadcast(const void* from, void* to, std::size_t count, int type, int root, Comm* comm,
                  void* stream) {
  return fake::Begin(comm, {fake::kBroadcast, type, 0, root, from, to, count, stream});
}
int ncclReduceScatter(const void* from, void* to, std::size_t count, int type, int op, Comm* comm,
                      void* stream) {
  return fake::Begin(comm, {fake::kReduceScatter, type, op, 0, from, to, count, stream});
}
int ncclAllGather(const void* from, void* to, std::size_t count, int type, Comm* comm,
                  void* stream) {
  return fake::Begin(comm, {fake::kAllGather, type, 0, 0, from, to, count, stream});
}

}  // extern "C"
