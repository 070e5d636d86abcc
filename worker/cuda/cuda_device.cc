#include "worker/cuda/cuda_device.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace regroup::worker {
namespace {

// Looks before the host sleeps between them.
constexpr int kQuickLooks = 200;
constexpr auto kPause = std::chrono::microseconds(50);

struct Patience {
  void Wait() {
    if (looks++ < kQuickLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }
  int looks = 0;
};

// Its bytes.
template <typename... Numbers>
std::string LikenessOf(char kind, const Numbers&... numbers) {
  std::string likeness(1, kind);
  (likeness.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
  return likeness;
}

}  // namespace

CudaProgress::~CudaProgress() {
  for (const Mark& mark : marks_) (void)api_.event_destroy(mark.event);
  for (CudaEventHandle event : free_) (void)api_.event_destroy(event);
}

void CudaProgress::Record(CudaStreamHandle stream, std::uint64_t work) {
  const std::scoped_lock lock(mutex_);
  if (broken_ || over_ >= work || (!marks_.empty() && marks_.back().work == work)) return;
  CudaEventHandle event = nullptr;
  if (free_.empty()) {
    const int error = api_.event_create(&event, kCudaEventDisableTiming);
    if (error != kCudaSuccess) return BreakLocked(CudaStatus(api_, error, "cudaEventCreate"));
  } else {
    event = free_.back();
    free_.pop_back();
  }
  marks_.push_back({work, event});
  const int error = api_.event_record(event, stream);
  if (error != kCudaSuccess) BreakLocked(CudaStatus(api_, error, "cudaEventRecord"));
}

void CudaProgress::LetWait(CudaStreamHandle stream, std::uint64_t work) {
  const std::scoped_lock lock(mutex_);
  const auto mark = std::find_if(marks_.begin(), marks_.end(),
                                 [&](const Mark& each) { return each.work >= work; });
  if (mark == marks_.end()) return;
  const int error = api_.stream_wait_event(stream, mark->event, 0);
  if (error != kCudaSuccess) BreakLocked(CudaStatus(api_, error, "cudaStreamWaitEvent"));
}

bool CudaProgress::IsOver(std::uint64_t work) {
  const std::scoped_lock lock(mutex_);
  return IsOverLocked(work);
}

bool CudaProgress::IsSettled(std::uint64_t work) {
  const std::scoped_lock lock(mutex_);
  return IsOverLocked(work) && failing_ == 0;
}

absl::Status CudaProgress::failure() const {
  const std::scoped_lock lock(failure_mutex_);
  return failure_;
}

void CudaProgress::Fail(absl::Status failure) {
  const std::scoped_lock lock(failure_mutex_);
  if (failure_.ok()) failure_ = std::move(failure);
}

void CudaProgress::Break(absl::Status failure) {
  const std::scoped_lock lock(mutex_);
  BreakLocked(std::move(failure));
}

bool CudaProgress::BeginFailure(std::uint64_t work) {
  const std::scoped_lock lock(mutex_);
  if (IsOverLocked(work)) return false;
  ++failing_;
  return true;
}

void CudaProgress::EndFailure(absl::Status failure) {
  const std::scoped_lock lock(mutex_);
  CHECK(failing_ > 0);
  --failing_;
  Fail(std::move(failure));
}

bool CudaProgress::IsOverLocked(std::uint64_t work) {
  while (!broken_ && over_ < work && !marks_.empty()) {
    const int error = api_.event_query(marks_.front().event);
    if (error == kCudaErrorNotReady) return false;
    if (error != kCudaSuccess) {
      BreakLocked(CudaStatus(api_, error, "cudaEventQuery"));
      break;
    }
    over_ = marks_.front().work;
    free_.push_back(marks_.front().event);
    marks_.pop_front();
  }
  return broken_ || over_ >= work;
}

void CudaProgress::BreakLocked(absl::Status failure) {
  Fail(std::move(failure));
  broken_ = true;
}

struct CudaStream::Piece {
  std::shared_ptr<CudaProgress> progress;
  std::function<absl::Status()> work;
};

CudaStream::CudaStream(const CudaApi& api, CublasLt* products, Arena workspace, bool graphs)
    : Stream(/*at_once=*/false),
      api_(api),
      progress_(std::make_shared<CudaProgress>(api)),
      products_(products),
      arena_(std::move(workspace)),
      workspace_(arena_.Take<std::byte>(arena_.size_bytes())),
      repeats_(api, graphs) {
  const int error = api.stream_create(&handle_, kCudaStreamNonBlocking, /*priority=*/0);
  Check(error, "cudaStreamCreate");
}

CudaStream::~CudaStream() {
  progress_->Fail(absl::CancelledError("the stream has ended"));
  (void)Await(Record());
  if (handle_ != nullptr) (void)api_.stream_destroy(handle_);
}

bool CudaStream::KeepRoom(std::uint64_t begun, std::uint64_t more) {
  CHECK(deferred_.empty());  // What is recorded as begun has to be on the stream.
  if (begun + more < marked_ + kMostAhead / 2) return progress_->failure().ok();
  const std::uint64_t before = std::exchange(marked_, begun);
  progress_->Record(handle_, begun);
  for (Patience patience; progress_->failure().ok() && !progress_->IsOver(before);) patience.Wait();
  return progress_->failure().ok();
}

bool CudaStream::MakeRoom() {
  Submit();
  return KeepRoom(Stream::Record().work);
}

void CudaStream::Put(const std::string& likeness, Repeats::Piece piece) {
  // Not between pieces: where they are cut decides what comes again.
  if (deferred_.empty() ? !KeepRoom(Stream::Record().work, kMostDeferred)
                        : !progress_->failure().ok())
    return;
  NextPiece();
  likeness_ += likeness;
  deferred_.push_back(std::move(piece));
  if (deferred_.size() >= kMostDeferred) Submit();
}

void CudaStream::Defer(const std::string& likeness, std::function<absl::Status()> put) {
  Put(LikenessOf('p', likeness.size()) + likeness, {std::move(put), /*of_cuda=*/false});
}

void CudaStream::Submit() {
  if (deferred_.empty()) return;
  const auto pieces = std::exchange(deferred_, {});
  const std::string likeness = std::exchange(likeness_, {});
  if (!progress_->failure().ok()) return;
  if (repeats_.Launch(handle_, likeness, pieces)) return;
  for (const Repeats::Piece& piece : pieces) {
    absl::Status status = piece.put();
    if (status.ok()) continue;
    return piece.of_cuda ? progress_->Break(std::move(status)) : progress_->Fail(std::move(status));
  }
}

void CudaStream::Copy(void* to, const void* from, std::size_t bytes) {
  if (bytes == 0 || !MakeRoom()) return;
  NextPiece();
  Check(api_.memcpy_async(to, from, bytes, kCudaMemcpyDefault, handle_), "cudaMemcpyAsync");
}

void CudaStream::Zero(void* to, std::size_t bytes) {
  if (bytes == 0) return;
  Put(LikenessOf('z', to, bytes), {[this, to, bytes] {
        return CudaStatus(api_, api_.memset_async(to, 0, bytes, handle_), "cudaMemsetAsync");
      }});
}

void CudaStream::Launch(const void* kernel, CudaDim3 blocks, CudaDim3 threads,
                        std::size_t block_bytes, std::span<const std::byte> argument) {
  std::string likeness = LikenessOf('k', kernel, blocks, threads, block_bytes, argument.size());
  likeness.append(reinterpret_cast<const char*>(argument.data()), argument.size());
  Put(likeness, {[=, this, argument = std::vector(argument.begin(), argument.end())]() mutable {
        std::size_t& allowed = allowed_.emplace(kernel, kCudaUsualBlockBytes).first->second;
        if (block_bytes > allowed) {
          RETURN_IF_ERROR(
              CudaStatus(api_,
                         api_.func_set_attribute(kernel, kCudaFuncMaxDynamicSharedMemory,
                                                 static_cast<int>(block_bytes)),
                         "cudaFuncSetAttribute"));
          allowed = block_bytes;
        }
        void* arguments[] = {argument.data()};
        return CudaStatus(
            api_, api_.launch_kernel(kernel, blocks, threads, arguments, block_bytes, handle_),
            "cudaLaunchKernel");
      }});
}

Event CudaStream::Record() {
  Submit();
  const Event event = Stream::Record();
  progress_->Record(handle_, event.work);
  return event;
}

void CudaStream::Wait(const Event& event) {
  if (event.stream == nullptr || event.stream == this) return;
  const auto* source = dynamic_cast<CudaStream*>(event.stream);
  CHECK(source != nullptr);
  if (std::find(sources_.begin(), sources_.end(), source->progress_) == sources_.end())
    sources_.push_back(source->progress_);
  (void)MakeRoom();
  NextPiece();  // Whoever awaits this stream awaits that too.
  source->progress_->LetWait(handle_, event.work);
}

absl::Status CudaStream::Await(const Event& event) {
  CHECK(event.stream == this);
  const auto settled = [&] {
    return progress_->IsSettled(event.work) &&
           std::all_of(sources_.begin(), sources_.end(),
                       [](const auto& source) { return source->IsSettled(0); });
  };
  for (Patience patience; !settled();) patience.Wait();
  RETURN_IF_ERROR(progress_->failure());
  for (const auto& source : sources_) RETURN_IF_ERROR(source->failure());
  return absl::OkStatus();
}

void CudaStream::Begin(std::function<absl::Status()> work) {
  Submit();
  if (!KeepRoom(Stream::Record().work - 1)) return;  // It is counted already.
  auto piece = std::make_unique<Piece>(Piece{progress_, std::move(work)});
  const auto call = [](void* argument) {
    const std::unique_ptr<Piece> own(static_cast<Piece*>(argument));
    if (own->progress->failure().ok()) own->progress->Fail(own->work());
  };
  const int error = api_.launch_host_func(handle_, call, piece.get());
  if (error == kCudaSuccess) (void)piece.release();
  Check(error, "cudaLaunchHostFunc");
}

void CudaStream::Check(int error, const char* call) {
  if (error != kCudaSuccess) progress_->Break(CudaStatus(api_, error, call));
}

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Create(const CudaApi& api, int ordinal) {
  int count = 0;
  RETURN_IF_ERROR(CudaStatus(api, api.get_device_count(&count), "cudaGetDeviceCount"));
  if (ordinal < 0 || ordinal >= count) {
    return absl::UnavailableError(absl::StrCat("there is no GPU ", ordinal, " among the ", count,
                                               " that this process may use"));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(api, ordinal));
  RETURN_IF_ERROR(device->Use());
  return device;
}

absl::Status CudaDevice::Use() const {
  return CudaStatus(api_, api_.set_device(ordinal_), "cudaSetDevice");
}

absl::StatusOr<Arena> CudaDevice::Allocate(MemoryKind kind, std::size_t bytes) {
  if (bytes == 0) return Arena();
  const std::size_t size = Arena::Aligned(bytes);
  void* memory = nullptr;
  const bool pinned = kind == MemoryKind::kShared;
  const int error =
      size < bytes ? kCudaErrorMemoryAllocation
      : pinned     ? api_.host_alloc(&memory, size, kCudaHostAllocPortable | kCudaHostAllocMapped)
                   : api_.malloc(&memory, size);
  if (error != kCudaSuccess) {
    const absl::Status why = CudaStatus(api_, error, pinned ? "cudaHostAlloc" : "cudaMalloc");
    return absl::Status(why.code(), absl::StrCat("no memory for an arena of ", bytes,
                                                 " bytes on GPU ", ordinal_, ": ", why.message()));
  }
  Arena arena = Arena::Of({static_cast<std::byte*>(memory), size},
                          [&api = api_, pinned](std::span<std::byte> taken) {
                            (void)(pinned ? api.free_host : api.free)(taken.data());
                          });
  CudaStream stream(api_);
  stream.Zero(memory, size);
  RETURN_IF_ERROR(stream.Await());
  return arena;
}

bool CudaDevice::Pin(void* memory, std::size_t bytes) {
  return api_.host_register(memory, bytes, kCudaHostRegisterPortable) == kCudaSuccess;
}
void CudaDevice::Unpin(void* memory) { (void)api_.host_unregister(memory); }

std::unique_ptr<Stream> CudaDevice::NewStream(StreamKind kind) {
  if (products_ == nullptr || kind != StreamKind::kCompute)
    return std::make_unique<CudaStream>(api_, nullptr, Arena(), graphs_);
  absl::StatusOr<Arena> workspace = Allocate(MemoryKind::kDevice, CublasLt::kWorkspaceBytes);
  if (workspace.ok())
    return std::make_unique<CudaStream>(api_, products_.get(), *std::move(workspace), graphs_);
  auto stream = std::make_unique<CudaStream>(api_);
  stream->progress()->Fail(workspace.status());
  return stream;
}

}  // namespace regroup::worker
