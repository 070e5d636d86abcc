#include "worker/nccl/nccl_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/thread.h"
#include "worker/comm/agreement.h"
#include "worker/nccl/ras.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;

constexpr auto kLook = std::chrono::microseconds(500);
constexpr int kLooksPerHealth = 10;
constexpr auto kPoll = std::chrono::microseconds(20);  // While a call is in progress.
// A failure is told within a second of the deadline. So long one rank asks who is missing; then it
// looks each of them up, so the others wait longer for what comes of it.
constexpr Duration kLastWordsPatience = milliseconds(400), kLookups = milliseconds(300),
                   kCausePatience = milliseconds(850);
static_assert(kCausePatience > kLastWordsPatience + kLookups);
// What was revoked is aborted after so long.
constexpr Duration kQuiescence = milliseconds(800);
// The library is asked for what it knows so long before a deadline, or so long after an error.
constexpr Duration kRasAhead = milliseconds(1000), kRasPatience = milliseconds(500);
// After an error of NCCL's init, for what the group may have to say.
constexpr Duration kGroupPatience = milliseconds(300);
constexpr int kStuckExit = 1;

NcclType NcclTypeOf(DType type) {
  switch (type) {
    case DType::kF32: return NcclType::kFloat32;
    case DType::kBF16: return NcclType::kBFloat16;
    case DType::kF16: return NcclType::kFloat16;
  }
  CHECK(false);
}

// What one call can move. All ranks bring the same stretches, so all come to the same.
std::vector<Stretch> Joined(std::span<const Stretch> stretches) {
  std::vector<Stretch> joined;
  for (const Stretch& s : stretches) {
    if (s.size != 0) joined.push_back(s);
  }
  std::ranges::sort(joined, {}, [](const Stretch& s) { return std::pair(s.owner, s.from); });
  std::size_t last = 0;
  for (std::size_t i = 1; i < joined.size(); ++i) {
    Stretch& before = joined[last];
    const Stretch& s = joined[i];
    if (s.owner == before.owner && s.from == before.from + before.size &&
        s.to == before.to + before.size) {
      before.size += s.size;
    } else {
      joined[++last] = s;
    }
  }
  joined.resize(std::min(joined.size(), last + 1));
  return joined;
}

// One for each rank of the group, in their order and one behind the other at `place`, as NCCL has
// them in one buffer.
bool AreParts(const std::vector<Stretch>& stretches, int group, std::int64_t Stretch::*place) {
  if (stretches.size() != static_cast<std::size_t>(group)) return false;
  for (std::size_t i = 0; i < stretches.size(); ++i) {
    const Stretch& s = stretches[i];
    if (s.owner != static_cast<int>(i) || s.size != stretches[0].size ||
        s.*place != stretches[0].*place + static_cast<std::int64_t>(i) * s.size)
      return false;
  }
  return true;
}

void EndProcess(const std::string& why) {
  std::fputs(absl::StrCat("regroup-worker: ", why, "\n").c_str(), stderr);
  std::fflush(nullptr);
  _exit(kStuckExit);
}

// Whatever of them are there.
std::vector<NcclComm> Made(std::initializer_list<NcclComm> comms) {
  std::vector<NcclComm> made;
  std::copy_if(comms.begin(), comms.end(), std::back_inserter(made),
               [](NcclComm comm) { return comm != nullptr; });
  return made;
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    Group& ranks, CudaDevice& device, const NcclApi& api, const NcclOptions& options) {
  CHECK(options.group >= 1 && ranks.world_size() % options.group == 0);
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(ranks, device, api, options));
  RETURN_IF_ERROR(made->Init());
  made->watcher_ = std::thread([c = made.get()] { c->Watch(); });
  return made;
}

NcclCommunicator::~NcclCommunicator() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  AbortAll();
}

absl::Status NcclCommunicator::Init() {
  const std::scoped_lock calls(calls_);
  const int rank = ranks_.rank(), world = ranks_.world_size();
  ASSIGN_OR_RETURN(const std::optional<Disagreement> other,
                   FindDisagreement(ranks_, {{"NCCL", NcclVersionName(api_.version)}}));
  if (other) {
    return absl::FailedPreconditionError(absl::StrCat("rank ", other->rank, " has NCCL ",
                                                      other->theirs, ", rank 0 has ", other->ours,
                                                      "; all ranks need the same"));
  }
  const auto made = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const NcclUniqueId id, ShareId());
    NcclConfig config = api_.Config();
    const NcclResult begun = api_.comm_init_rank_config(&world_, world, id, rank, &config);
    if (begun != NcclResult::kSuccess && begun != NcclResult::kInProgress)
      return ErrorOf(begun, "ncclCommInitRankConfig", nullptr);
    RETURN_IF_ERROR(AwaitCalls(world_, Clock::now() + options_.init_deadline));
    const int group = options_.group;
    if (group == 1 || group == world) return absl::OkStatus();
    RETURN_IF_ERROR(Split(rank / group, rank % group, shard_));
    return Split(rank % group, rank / group, replicas_);
  }();
  if (made.ok()) return absl::OkStatus();
  const absl::Status why = BlameGroup(made);
  Break(why, {absl::StrCat("init of ", world, " ranks"), 0, &NcclCommunicator::world_, {}, 0, {}},
        {});
  return absl::IsInternal(why) ? absl::InternalError(failure_.message()) : failure_;
}

// Where a rank has died NCCL may know before the group does, and does not say which.
absl::Status NcclCommunicator::BlameGroup(const absl::Status& error) {
  const auto end = Clock::now() + kGroupPatience;
  const bool asks = !IsCommunicatorFailure(error) && !absl::IsDeadlineExceeded(error);
  while (asks && Clock::now() < end) {
    if (absl::Status health = ranks_.Health(); !health.ok()) return health;
    std::this_thread::sleep_for(kLook);
  }
  return error;
}

// A listening thread of rank 0 belongs to the id, so rank 0 outlives everybody's init.
absl::StatusOr<NcclUniqueId> NcclCommunicator::ShareId() {
  const auto end = Clock::now() + options_.init_deadline;
  const std::string prefix = absl::StrCat("nccl/", options_.name), key = prefix + "/id";
  NcclUniqueId id{};
  absl::Status made;
  if (ranks_.rank() == 0) {
    const NcclResult result = api_.get_unique_id(&id);
    if (result != NcclResult::kSuccess) made = ErrorOf(result, "ncclGetUniqueId", nullptr);
  }
  if (ranks_.world_size() == 1) {
    RETURN_IF_ERROR(made);
    return id;
  }
  ASSIGN_OR_RETURN(StoreClient store, StoreClient::Connect(options_.store_host, options_.store_port,
                                                           options_.init_deadline));
  if (ranks_.rank() == 0) {
    const std::string text = made.ok() ? "=" + std::string(id.bytes, sizeof id.bytes)
                                       : absl::StrCat("!", made.message());
    RETURN_IF_ERROR(store.Set(key, text));
  } else {
    for (;;) {
      const absl::Status there = store.Wait({key}, milliseconds(100));
      if (there.ok()) break;
      RETURN_IF_ERROR(ranks_.Health());
      if (!absl::IsDeadlineExceeded(there)) return there;
      if (Clock::now() >= end) {
        return absl::DeadlineExceededError(absl::StrCat("rank 0 has not made an id within ",
                                                        Seconds(options_.init_deadline), " s"));
      }
    }
    ASSIGN_OR_RETURN(const std::string text, store.Get(key));
    if (text.size() == 1 + sizeof id.bytes && text[0] == '=') {
      std::memcpy(id.bytes, text.data() + 1, sizeof id.bytes);
    } else {
      made = MarkCommunicatorFailure(
          absl::AbortedError(absl::StrCat("rank 0: ", text.empty() ? text : text.substr(1))));
    }
  }
  last_words_.emplace(std::move(store), prefix, ranks_.rank());
  RETURN_IF_ERROR(made);
  return id;
}

absl::Status NcclCommunicator::Split(int color, int key, NcclComm& made) {
  NcclConfig config = api_.Config();
  const NcclResult begun = api_.comm_split(world_, color, key, &made, &config);
  if (begun != NcclResult::kSuccess && begun != NcclResult::kInProgress)
    return ErrorOf(begun, "ncclCommSplit", world_);
  const auto end = Clock::now() + options_.init_deadline;
  RETURN_IF_ERROR(AwaitCalls(world_, end));
  return AwaitCalls(made, end);
}

absl::StatusOr<Tensor> NcclCommunicator::AllocateShared(DType type, std::size_t count,
                                                        int /*group*/) {
  const std::size_t bytes = count * static_cast<std::size_t>(SizeOf(type));
  ASSIGN_OR_RETURN(Arena arena, device_.Allocate(MemoryKind::kDevice, bytes));
  arenas_.push_back(std::move(arena));
  return Tensor(type, arenas_.back().Take<std::byte>(bytes).data(), count);
}

NcclCommunicator::Axis NcclCommunicator::AxisOf(int group) const {
  CHECK(group == options_.group || group == ranks_.world_size());
  return group == ranks_.world_size() ? &NcclCommunicator::world_ : &NcclCommunicator::shard_;
}

std::vector<int> NcclCommunicator::RanksOf(Axis axis) const {
  const int group = options_.group, rank = ranks_.rank();
  std::vector<int> ranks;
  for (int r = 0; r < ranks_.world_size(); ++r) {
    if (axis == &NcclCommunicator::world_ ||
        (axis == &NcclCommunicator::shard_ ? r / group == rank / group : r % group == rank % group))
      ranks.push_back(r);
  }
  return ranks;
}

void NcclCommunicator::AllReduceSum(Stream& stream, Tensor inout) {
  Begin(stream, "all_reduce", inout, inout.size, &NcclCommunicator::world_,
        [&](NcclComm comm, void* handle) {
          Note(api_.all_reduce(inout.data, inout.data, inout.size, NcclTypeOf(inout.type), kNcclSum,
                               comm, handle));
        });
}

void NcclCommunicator::ReduceScatter(Stream& stream, Tensor arena,
                                     std::span<const Stretch> stretches, Tensor out, int group) {
  const Axis axis = AxisOf(group);
  const int own = ranks_.rank() % group;
  std::vector<Stretch> joined = Joined(stretches);
  const bool parts = AreParts(joined, group, &Stretch::from);
  std::size_t elements = 0, owned = 0;
  for (const Stretch& s : joined) {
    elements += static_cast<std::size_t>(s.size);
    owned += s.owner == own ? static_cast<std::size_t>(s.size) : 0;
  }
  const auto result = [&](const Stretch& s) { return out.at(static_cast<std::size_t>(s.to)); };
  const auto from = [&](const Stretch& s) { return arena.at(static_cast<std::size_t>(s.from)); };
  Begin(stream, "reduce_scatter", arena, elements, axis, [&](NcclComm comm, void* handle) {
    if (parts) {
      return Note(api_.reduce_scatter(from(joined[0]),
                                      result(joined[static_cast<std::size_t>(own)]), owned,
                                      NcclTypeOf(arena.type), kNcclSum, comm, handle));
    }
    for (const Stretch& s : joined) {
      Note(api_.reduce(from(s), s.owner == own ? result(s) : nullptr,
                       static_cast<std::size_t>(s.size), NcclTypeOf(arena.type), kNcclSum, s.owner,
                       comm, handle));
    }
  });
  if (group == ranks_.world_size()) return;
  // What the owner in this group has summed, with those at its place in the others.
  Begin(stream, "all_reduce between groups", out, owned, &NcclCommunicator::replicas_,
        [&](NcclComm comm, void* handle) {
          for (const Stretch& s : joined) {
            if (s.owner != own) continue;
            Note(api_.all_reduce(result(s), result(s), static_cast<std::size_t>(s.size),
                                 NcclTypeOf(out.type), kNcclSum, comm, handle));
          }
        });
}

void NcclCommunicator::AllGather(Stream& stream, Tensor arena, std::span<const Stretch> stretches,
                                 Tensor out, int group) {
  const Axis axis = AxisOf(group);
  std::vector<Stretch> joined = Joined(stretches);
  const bool parts = AreParts(joined, group, &Stretch::to);
  std::size_t elements = 0;
  for (const Stretch& s : joined) elements += static_cast<std::size_t>(s.size);
  const auto from = [&](const Stretch& s) { return arena.at(static_cast<std::size_t>(s.from)); };
  const auto to = [&](const Stretch& s) { return out.at(static_cast<std::size_t>(s.to)); };
  Begin(stream, "all_gather", arena, elements, axis, [&](NcclComm comm, void* handle) {
    if (parts) {
      const Stretch& own = joined[static_cast<std::size_t>(ranks_.rank() % group)];
      return Note(api_.all_gather(from(own), to(joined[0]), static_cast<std::size_t>(own.size),
                                  NcclTypeOf(arena.type), comm, handle));
    }
    for (const Stretch& s : joined) {
      Note(api_.broadcast(from(s), to(s), static_cast<std::size_t>(s.size), NcclTypeOf(arena.type),
                          s.owner, comm, handle));
    }
  });
}

void NcclCommunicator::Begin(Stream& stream, const char* what, const Tensor& of,
                             std::size_t elements, Axis axis,
                             const std::function<void(NcclComm, void* stream)>& calls) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  CHECK(cuda != nullptr);
  (void)cuda->MakeRoom();  // Not while the watch could not get in.
  const std::scoped_lock held(calls_);
  ++begun_;
  if (!failure_.ok()) return cuda->progress()->Fail(failure_);
  if (!cuda->progress()->failure().ok()) return;
  const std::string name =
      absl::StrCat(what, " ", begun_, " (", NameOf(of.type), "[", elements, "])");
  const auto now = Clock::now(), end = now + options_.deadline;
  {
    const std::scoped_lock lock(mutex_);
    inside_since_ = now;
  }
  changed_.notify_all();
  const NcclComm on = this->*axis;
  first_error_ = NcclResult::kSuccess;
  Note(api_.group_start());
  calls(on, cuda->handle());
  Note(api_.group_end());
  const absl::Status status =
      first_error_ == NcclResult::kSuccess ? AwaitCalls(on, end) : CallError(what, on);
  // Also after a failure some of it may be on the stream.
  cuda->Began();
  const Pending this_one{name, begun_, axis, cuda->progress(), cuda->Record().work, end};
  {
    const std::scoped_lock lock(mutex_);
    inside_since_.reset();
    pending_.push_back(this_one);
  }
  if (status.ok()) return;
  std::vector<Pending> failing = BeginFailures();
  // What is told by and by is about what was begun first.
  const bool of_this = first_error_ != NcclResult::kSuccess || absl::IsDeadlineExceeded(status);
  const Pending about = of_this || failing.empty() ? this_one : failing.front();
  Break(status, about, std::move(failing));
  cuda->progress()->Fail(failure_);
}

absl::Status NcclCommunicator::CallError(const char* what, NcclComm comm) {
  NcclResult before = NcclResult::kSuccess;
  if (first_error_ != NcclResult::kInvalidUsage ||
      api_.comm_get_async_error(comm, &before) != NcclResult::kSuccess ||
      before == NcclResult::kSuccess || before == NcclResult::kInProgress || before == first_error_)
    return ErrorOf(first_error_, what, comm);
  first_error_ = NcclResult::kSuccess;
  return ErrorOf(before, "NCCL", comm);
}

void NcclCommunicator::Note(NcclResult result) {
  if (result == NcclResult::kInProgress || first_error_ != NcclResult::kSuccess) return;
  first_error_ = result;
}

absl::Status NcclCommunicator::AwaitCalls(NcclComm comm, Clock::time_point end) {
  for (int looks = 1;; ++looks) {
    NcclResult state = NcclResult::kSuccess;
    const NcclResult asked = api_.comm_get_async_error(comm, &state);
    if (asked != NcclResult::kSuccess) return ErrorOf(asked, "ncclCommGetAsyncError", comm);
    if (state == NcclResult::kSuccess) return absl::OkStatus();
    if (state != NcclResult::kInProgress) return ErrorOf(state, "NCCL", comm);
    if (looks % 50 == 0) {
      RETURN_IF_ERROR(ranks_.Health());
      LookAhead(begun_, end);
    }
    if (Clock::now() >= end) return absl::DeadlineExceededError("NCCL did not take it in time");
    std::this_thread::sleep_for(kPoll);
  }
}

absl::Status NcclCommunicator::ErrorOf(NcclResult result, const char* call, NcclComm comm) const {
  std::string text = absl::StrCat(call, ": ", api_.get_error_string(result), " (NCCL error ",
                                  static_cast<int>(result), ")");
  if (const char* last = api_.get_last_error(comm); last != nullptr && *last != '\0')
    absl::StrAppend(&text, ": ", last);
  return result == NcclResult::kRemoteError ? absl::UnavailableError(text)
                                            : absl::InternalError(text);
}

absl::Status NcclCommunicator::AsyncError() {
  for (NcclComm comm : Made({world_, shard_, replicas_})) {
    NcclResult state = NcclResult::kSuccess;
    if (const NcclResult asked = api_.comm_get_async_error(comm, &state);
        asked != NcclResult::kSuccess)
      return ErrorOf(asked, "ncclCommGetAsyncError", comm);
    if (state != NcclResult::kSuccess && state != NcclResult::kInProgress)
      return ErrorOf(state, "NCCL", comm);
  }
  return absl::OkStatus();
}

void NcclCommunicator::Watch() {
  (void)device_.Use();
  std::unique_lock lock(mutex_);
  for (unsigned looks = 0;; ++looks) {
    changed_.wait(lock, [&] { return stop_ || inside_since_ || !pending_.empty(); });
    if (stop_) return;
    const bool stuck = inside_since_ &&
                       Clock::now() >= *inside_since_ + options_.deadline + options_.abort_patience;
    lock.unlock();
    if (stuck) {
      Stuck("a call of NCCL does not return");
    } else if (std::unique_lock calls(calls_, std::try_to_lock); calls.owns_lock()) {
      Look(looks % kLooksPerHealth == 0);
    }
    std::this_thread::sleep_for(kLook);
    lock.lock();
  }
}

void NcclCommunicator::Look(bool at_health) {
  Pending oldest{};
  {
    const std::scoped_lock lock(mutex_);
    std::erase_if(pending_, [](const Pending& p) { return p.progress->IsOver(p.work); });
    if (pending_.empty()) return;
    oldest = pending_.front();
  }
  LookAhead(oldest.number, oldest.end);
  absl::Status why = AsyncError();
  if (why.ok() && at_health) why = ranks_.Health();
  if (why.ok() && Clock::now() >= oldest.end) {
    why = absl::DeadlineExceededError(
        absl::StrCat("not over after ", Seconds(options_.deadline), " s"));
  }
  if (why.ok()) return;
  std::vector<Pending> failing = BeginFailures();
  const Pending about = failing.empty() ? oldest : failing.front();
  Break(why, about, std::move(failing));
}

std::vector<NcclCommunicator::Pending> NcclCommunicator::BeginFailures() {
  const std::scoped_lock lock(mutex_);
  std::vector<Pending> failing;
  for (Pending& p : pending_) {
    if (p.progress->BeginFailure(p.work)) failing.push_back(std::move(p));
  }
  pending_.clear();
  return failing;
}

// On a thread, which ends with the deadline: a service that is silent delays nothing.
void NcclCommunicator::LookAhead(std::uint64_t number, Clock::time_point end) {
  if (!last_words_ || options_.ras_address.empty()) return;
  if (look_.answer.valid()) {
    if (look_.answer.wait_for(Duration::zero()) != std::future_status::ready) return;
    last_words_->NoteLook(*look_.number, look_.answer.get());
  }
  const auto left = end - Clock::now();
  if (look_.number == number || left > std::min<Duration>(kRasAhead, options_.deadline / 2)) return;
  look_.number = number;
  if (!last_words_->IsFirstToLook(number)) return;
  try {
    look_.answer = std::async(std::launch::async, AskRas, options_.ras_address,
                              std::max<Duration>(left, Duration::zero()));
  } catch (const std::system_error&) {  // No thread to be had: it only explains.
  }
}

void NcclCommunicator::EndLook(std::uint64_t number, bool late) {
  if (!last_words_ || options_.ras_address.empty()) return;
  const auto end = Clock::now() + kRasPatience;
  if (look_.answer.valid() && look_.answer.wait_for(kRasPatience) == std::future_status::ready)
    last_words_->NoteLook(*look_.number, look_.answer.get());
  if (late || number == 0 || look_.number == number) return;
  const bool first = last_words_->IsFirstToLook(number);
  const auto left = std::max<Duration>(end - Clock::now(), Duration::zero());
  if (first) {
    last_words_->NoteLook(number, AskRas(options_.ras_address, left));
  } else {
    last_words_->AwaitLook(number, left);
  }
}

absl::Status NcclCommunicator::Explain(const absl::Status& why, const Pending& about) {
  std::string text = absl::StrCat("rank ", ranks_.rank(), ", ", about.what, ": ", why.message());
  if (!IsCommunicatorFailure(why)) {
    ranks_.Abort();  // The others look at once where they are.
    const bool late = absl::IsDeadlineExceeded(why);
    if (last_words_ && late && !last_words_->IsFirstToAsk()) {
      text = last_words_->Hear(begun_, kCausePatience).value_or(text);
    } else if (last_words_) {
      if (late)
        absl::StrAppend(
            &text, "; ",
            last_words_->WhoIsMissing(begun_, RanksOf(about.axis), kLastWordsPatience, kLookups));
      // Before the sentence: reports quote the last line.
      text.insert(0, last_words_->NotedLook(about.number));
      last_words_->Tell(begun_, text);
    }
  } else if (last_words_ && absl::IsAborted(why)) {
    const std::optional<std::string> cause = last_words_->Hear(begun_, kCausePatience);
    if (cause) text = *cause;
  }
  return MarkCommunicatorFailure(absl::Status(why.code(), text));
}

void NcclCommunicator::Break(const absl::Status& why, const Pending& about,
                             std::vector<Pending> failing) {
  // What was revoked, here or on another rank, is no longer as it was.
  if (!IsCommunicatorFailure(why)) EndLook(about.number, absl::IsDeadlineExceeded(why));
  const auto begun = Clock::now();
  if (api_.comm_revoke != nullptr) {
    for (NcclComm comm : Made({world_, shard_, replicas_})) (void)api_.comm_revoke(comm, 0);
  }
  failure_ = Explain(why, about);
  const auto quiet = [&] {
    return std::all_of(failing.begin(), failing.end(),
                       [](const Pending& p) { return p.progress->IsOver(p.work); });
  };
  const auto await_quiet = [&](Clock::time_point end) {
    while (!quiet() && Clock::now() < end) std::this_thread::sleep_for(kPoll);
    return quiet();
  };
  if (api_.comm_revoke != nullptr) (void)await_quiet(begun + kQuiescence);
  AbortAll();
  if (!await_quiet(Clock::now() + options_.abort_patience)) {
    Stuck(absl::StrCat(failure_.message(), "; after its abort the GPU still waits"));
  }
  for (const Pending& p : failing) p.progress->EndFailure(failure_);
}

// On a thread of its own, since it may not come back.
void NcclCommunicator::AbortAll() {
  const std::vector<NcclComm> comms = Made({shard_, replicas_, world_});
  world_ = shard_ = replicas_ = nullptr;
  if (comms.empty()) return;
  struct Done {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
  };
  const auto done = std::make_shared<Done>();
  absl::StatusOr<std::thread> aborting =
      io::StartThread([&api = api_, &device = device_, comms, done] {
        (void)device.Use();
        (void)api.group_start();
        for (NcclComm comm : comms) (void)api.comm_abort(comm);
        (void)api.group_end();
        const std::scoped_lock lock(done->mutex);
        done->over = true;
        done->changed.notify_all();
      });
  if (!aborting.ok())
    return Stuck(absl::StrCat("NCCL cannot be aborted: ", aborting.status().message()));
  aborting->detach();
  std::unique_lock lock(done->mutex);
  if (!done->changed.wait_for(lock, options_.abort_patience, [&] { return done->over; }))
    Stuck(absl::StrCat("an abort of NCCL did not end within ", Seconds(options_.abort_patience),
                       " s"));
}

void NcclCommunicator::Stuck(const std::string& why) {
  if (options_.stuck) {
    options_.stuck(why);
  } else {
    EndProcess(why);
  }
}

}  // namespace regroup::worker
