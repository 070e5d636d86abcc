#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <set>

#include "tests/worker/fake_gpu/fake_state.h"

namespace fake {
namespace {

constexpr int kSuccess = 0, kInvalidValue = 1, kMemoryAllocation = 2, kNotReady = 600,
              kNotPermitted = 800, kNotSupported = 801, kCaptureInvalidated = 901;

thread_local int t_device = 0;
thread_local bool t_in_host_function = false;

thread_local bool t_captures = false;

struct EventState {
  const int device = t_device;
  std::shared_ptr<Instance> last;  // Of its records.
};

struct Exec {
  const std::vector<std::function<void()>> work;
  std::atomic<int> under_way{0};
};

struct Memory {
  std::size_t bytes;
  int device;
};

// All of them.
struct Device {
  std::mutex mutex;
  int devices = 1, count_error = 0, driver = 13000, runtime = 13000, capability = 90;
  std::size_t room = std::size_t(1) << 40, used = 0;
  std::map<const std::byte*, Memory> device_memory, host_memory;
  std::set<void*> registered;
  std::set<Stream*> streams;
  std::set<EventState*> events;
  std::set<Graph*> graphs;
  std::set<Exec*> execs;
  FakeKernels kernels = nullptr;
  FakeCapture capture = FakeCapture::kRight;
  std::atomic<int> captures{0}, launches{0};
  std::atomic<bool> says_graphs{false};
  std::map<std::string, std::string> refusals;  // By rule, the first text.
  int refused = 0;
  bool aborts = false;
  std::atomic<int> error{0};
};

Device& device() {
  static auto* one = new Device;
  return *one;
}

// What may wait for the device, or changes what it knows, ends a capture of the thread that calls.
bool MayCallInCapture(const char* call) {
  if (t_captures) Refuse("capture", std::string(call) + " while a stream captures");
  return !t_captures;
}

bool Holds(const std::map<const std::byte*, Memory>& memory, const void* at, std::size_t bytes,
           int device) {
  const auto* from = static_cast<const std::byte*>(at);
  auto next = memory.upper_bound(from);
  if (next == memory.begin()) return false;
  --next;
  return next->second.device == device && from + bytes <= next->first + next->second.bytes;
}

int Allocate(std::map<const std::byte*, Memory>& memory, void** out, std::size_t bytes,
             const char* call) {
  if (!MayCall(call) || !MayCallInCapture(call)) return kNotPermitted;
  Device& d = device();
  const std::scoped_lock lock(d.mutex);
  if (d.error != 0) return d.error;
  if (bytes > d.room - d.used) return kMemoryAllocation;
  void* made = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (made == nullptr) return kMemoryAllocation;
  std::memset(made, 0xA5, bytes);  // Nobody may rely on zeros.
  d.used += bytes;
  memory.emplace(static_cast<std::byte*>(made), Memory{bytes, t_device});
  *out = made;
  return kSuccess;
}

int Free(std::map<const std::byte*, Memory>& memory, void* what, const char* call) {
  if (!MayCall(call) || !MayCallInCapture(call)) return kNotPermitted;
  Device& d = device();
  const std::scoped_lock lock(d.mutex);
  const auto found = memory.find(static_cast<std::byte*>(what));
  if (found == memory.end()) {
    ++d.refused;
    d.refusals.emplace("free", std::string(call) + " of what was not allocated by it");
    return kInvalidValue;
  }
  d.used -= found->second.bytes;
  memory.erase(found);
  std::free(what);
  return kSuccess;
}

EventState* EventOf(void* handle, const char* call) {
  if (!MayCall(call)) return nullptr;
  Device& d = device();
  {
    const std::scoped_lock lock(d.mutex);
    if (d.events.count(static_cast<EventState*>(handle)) != 0)
      return static_cast<EventState*>(handle);
  }
  Refuse("event", std::string(call) + " with what is no event");
  return nullptr;
}

// For what CUDA does on behalf of the calling thread.
Stream* StreamHere(void* handle, const char* call) {
  if (!MayCall(call)) return nullptr;
  Stream* stream = StreamOf(handle, call);
  if (stream == nullptr || stream->device() == t_device) return stream;
  Refuse("current device", std::string(call) + " on a stream of GPU " +
                               std::to_string(stream->device()) + " by a thread that uses GPU " +
                               std::to_string(t_device));
  return nullptr;
}

}  // namespace

void Refuse(const std::string& rule, const std::string& text) {
  Device& d = device();
  const std::scoped_lock lock(d.mutex);
  ++d.refused;
  d.refusals.emplace(rule, text);
  if (!d.aborts) return;
  std::fprintf(stderr, "fake GPU: refused, %s: %s\n", rule.c_str(), text.c_str());
  std::abort();
}

bool MayCall(const char* call) {
  if (t_in_host_function) Refuse("host function", std::string(call) + " in what a stream calls");
  return !t_in_host_function;
}
int CurrentDevice() { return t_device; }

void ForgetRefusals() {
  Device& d = device();
  const std::scoped_lock lock(d.mutex);
  d.refused = 0;
  d.refusals.clear();
}

namespace {
constexpr std::size_t kQueue = 1000;
}  // namespace

Stream::Stream(int device) : device_(device), thread_([this] { Loop(); }) {}
Stream::~Stream() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}
bool Stream::BeginCapture() {
  const std::scoped_lock lock(mutex_);
  if (captured_ != nullptr) return false;
  captured_ = std::make_unique<Graph>();
  return true;
}
std::unique_ptr<Graph> Stream::EndCapture() {
  const std::scoped_lock lock(mutex_);
  return std::move(captured_);
}
void Stream::Push(std::function<void()> work) {
  std::size_t waiting = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (captured_ != nullptr) return captured_->work.push_back(std::move(work));
    work_.push_back(std::move(work));
    waiting = work_.size();
  }
  changed_.notify_all();
  // The real one lets the caller wait inside of it, for ever if what is under way hangs.
  if (waiting > kQueue) Refuse("queue", "more than a stream has room for");
}
void Stream::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
  }
}

Stream* StreamOf(void* handle, const char* call) {
  Device& d = device();
  {
    const std::scoped_lock lock(d.mutex);
    if (d.streams.count(static_cast<Stream*>(handle)) != 0) return static_cast<Stream*>(handle);
  }
  Refuse("stream", std::string(call) + " on what is no stream, or the legacy one");
  return nullptr;
}

bool IsDeviceMemory(const void* memory, std::size_t bytes, int device) {
  Device& d = fake::device();
  const std::scoped_lock lock(d.mutex);
  return Holds(d.device_memory, memory, bytes, device);
}

bool IsReachable(const void* memory, std::size_t bytes, int device) {
  Device& d = fake::device();
  const std::scoped_lock lock(d.mutex);
  return Holds(d.device_memory, memory, bytes, device) ||
         Holds(d.host_memory, memory, bytes, device);
}

void FailDevice(int error) { device().error = error; }

}  // namespace fake

using fake::device;

extern "C" {

int cudaDriverGetVersion(int* version) {
  if (!fake::MayCall("cudaDriverGetVersion")) return fake::kNotPermitted;
  *version = device().driver;
  return fake::kSuccess;
}
int cudaRuntimeGetVersion(int* version) {
  if (!fake::MayCall("cudaRuntimeGetVersion")) return fake::kNotPermitted;
  *version = device().runtime;
  return fake::kSuccess;
}
int cudaDeviceGetAttribute(int* value, int attribute, int ordinal) {
  if (!fake::MayCall("cudaDeviceGetAttribute")) return fake::kNotPermitted;
  if (ordinal < 0 || ordinal >= device().devices) return fake::kInvalidValue;
  if (attribute != 75 && attribute != 76) return fake::kInvalidValue;
  *value = attribute == 75 ? device().capability / 10 : device().capability % 10;
  return fake::kSuccess;
}
int cudaGetDeviceCount(int* count) {
  if (!fake::MayCall("cudaGetDeviceCount")) return fake::kNotPermitted;
  *count = device().devices;
  return device().count_error;
}
int cudaSetDevice(int ordinal) {
  if (!fake::MayCall("cudaSetDevice")) return fake::kNotPermitted;
  if (ordinal < 0 || ordinal >= device().devices) return fake::kInvalidValue;
  fake::t_device = ordinal;
  return fake::kSuccess;
}
int cudaHostRegister(void* memory, std::size_t, unsigned) {
  if (!fake::MayCall("cudaHostRegister")) return fake::kNotPermitted;
  const std::scoped_lock lock(device().mutex);
  if (device().registered.insert(memory).second) return fake::kSuccess;
  ++device().refused;
  device().refusals.emplace("register", "cudaHostRegister of what is registered");
  return fake::kInvalidValue;
}
int cudaHostUnregister(void* memory) {
  if (!fake::MayCall("cudaHostUnregister")) return fake::kNotPermitted;
  const std::scoped_lock lock(device().mutex);
  if (device().registered.erase(memory) == 1) return fake::kSuccess;
  ++device().refused;
  device().refusals.emplace("register", "cudaHostUnregister of what is not registered");
  return fake::kInvalidValue;
}
int cudaMalloc(void** out, std::size_t bytes) {
  return fake::Allocate(device().device_memory, out, bytes, "cudaMalloc");
}
int cudaFree(void* what) { return fake::Free(device().device_memory, what, "cudaFree"); }
int cudaHostAlloc(void** out, std::size_t bytes, unsigned /*flags*/) {
  return fake::Allocate(device().host_memory, out, bytes, "cudaHostAlloc");
}
int cudaFreeHost(void* what) { return fake::Free(device().host_memory, what, "cudaFreeHost"); }

int cudaStreamCreateWithPriority(void** out, unsigned flags, int /*priority*/) {
  if (!fake::MayCall("cudaStreamCreateWithPriority")) return fake::kNotPermitted;
  if (device().error != 0) return device().error;
  if (flags != 1) fake::Refuse("blocking stream", "a stream that waits for the legacy one");
  auto* stream = new fake::Stream(fake::t_device);
  const std::scoped_lock lock(device().mutex);
  device().streams.insert(stream);
  *out = stream;
  return fake::kSuccess;
}
int cudaStreamDestroy(void* handle) {
  fake::Stream* stream = fake::StreamHere(handle, "cudaStreamDestroy");
  if (stream == nullptr) return fake::kInvalidValue;
  {
    const std::scoped_lock lock(device().mutex);
    device().streams.erase(stream);
  }
  delete stream;
  return fake::kSuccess;
}
int cudaStreamWaitEvent(void* handle, void* event, unsigned /*flags*/) {
  if (!fake::MayCallInCapture("cudaStreamWaitEvent")) return fake::kNotPermitted;
  fake::Stream* stream = fake::StreamHere(handle, "cudaStreamWaitEvent");
  fake::EventState* state = fake::EventOf(event, "cudaStreamWaitEvent");
  if (stream == nullptr || state == nullptr) return fake::kInvalidValue;
  if (state->last == nullptr) return fake::kSuccess;
  stream->Push([last = state->last] {
    while (!last->over) std::this_thread::sleep_for(std::chrono::microseconds(10));
  });
  return device().error;
}
int cudaLaunchHostFunc(void* handle, void (*call)(void*), void* argument) {
  // It could be captured, and would be called again with what it was given once.
  if (!fake::MayCallInCapture("cudaLaunchHostFunc")) return fake::kNotPermitted;
  fake::Stream* stream = fake::StreamHere(handle, "cudaLaunchHostFunc");
  if (stream == nullptr) return fake::kInvalidValue;
  if (device().error != 0) return device().error;
  stream->Push([call, argument] {
    fake::t_in_host_function = true;
    call(argument);
    fake::t_in_host_function = false;
  });
  return fake::kSuccess;
}
int cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, int /*kind*/, void* handle) {
  fake::Stream* stream = fake::StreamHere(handle, "cudaMemcpyAsync");
  if (stream == nullptr) return fake::kInvalidValue;
  if (device().error != 0) return device().error;
  stream->Push([=] { std::memcpy(to, from, bytes); });
  return fake::kSuccess;
}
int cudaMemsetAsync(void* to, int value, std::size_t bytes, void* handle) {
  fake::Stream* stream = fake::StreamHere(handle, "cudaMemsetAsync");
  if (stream == nullptr) return fake::kInvalidValue;
  if (device().error != 0) return device().error;
  stream->Push([=] { std::memset(to, value, bytes); });
  return fake::kSuccess;
}
int cudaEventCreateWithFlags(void** out, unsigned /*flags*/) {
  if (!fake::MayCall("cudaEventCreateWithFlags")) return fake::kNotPermitted;
  if (device().error != 0) return device().error;
  auto* event = new fake::EventState;
  const std::scoped_lock lock(device().mutex);
  device().events.insert(event);
  *out = event;
  return fake::kSuccess;
}
int cudaEventRecord(void* handle, void* on) {
  if (!fake::MayCallInCapture("cudaEventRecord")) return fake::kNotPermitted;
  fake::Stream* stream = fake::StreamHere(on, "cudaEventRecord");
  fake::EventState* event = fake::EventOf(handle, "cudaEventRecord");
  if (stream == nullptr || event == nullptr) return fake::kInvalidValue;
  if (event->device != stream->device()) {
    fake::Refuse("event of another device", "cudaEventRecord");
    return fake::kInvalidValue;
  }
  if (device().error != 0) return device().error;
  auto instance = std::make_shared<fake::Instance>();
  event->last = instance;
  stream->Push([instance] { instance->over = true; });
  return fake::kSuccess;
}
int cudaEventQuery(void* handle) {
  if (!fake::MayCallInCapture("cudaEventQuery")) return fake::kNotPermitted;
  fake::EventState* event = fake::EventOf(handle, "cudaEventQuery");
  if (event == nullptr) return fake::kInvalidValue;
  if (device().error != 0) return device().error;
  return event->last == nullptr || event->last->over ? fake::kSuccess : fake::kNotReady;
}
int cudaEventDestroy(void* handle) {
  fake::EventState* event = fake::EventOf(handle, "cudaEventDestroy");
  if (event == nullptr) return fake::kInvalidValue;
  const std::scoped_lock lock(device().mutex);
  device().events.erase(event);
  delete event;
  return fake::kSuccess;
}
int cudaStreamBeginCapture(void* handle, int mode) {
  fake::Stream* stream = fake::StreamHere(handle, "cudaStreamBeginCapture");
  if (stream == nullptr) return fake::kInvalidValue;
  if (device().error != 0) return device().error;
  if (device().capture == FakeCapture::kCannotBegin) return fake::kNotSupported;
  if (mode != 1) fake::Refuse("capture", "one that other threads can end");
  if (fake::t_captures || !stream->BeginCapture()) {
    fake::Refuse("capture", "a second one at once");
    return fake::kInvalidValue;
  }
  fake::t_captures = true;
  ++device().captures;
  return fake::kSuccess;
}
int cudaStreamEndCapture(void* handle, void** out) {
  fake::Stream* stream = fake::StreamHere(handle, "cudaStreamEndCapture");
  std::unique_ptr<fake::Graph> graph = stream == nullptr ? nullptr : stream->EndCapture();
  if (graph == nullptr) return fake::kInvalidValue;
  fake::t_captures = false;
  *out = nullptr;
  if (device().capture == FakeCapture::kRefusesWork) return fake::kCaptureInvalidated;
  if (device().capture == FakeCapture::kCannotEnd) return fake::kCaptureInvalidated;
  const std::scoped_lock lock(device().mutex);
  *out = *device().graphs.insert(graph.release()).first;
  return fake::kSuccess;
}
int cudaGraphInstantiate(void** out, void* handle, unsigned long long flags) {
  if (!fake::MayCall("cudaGraphInstantiate")) return fake::kNotPermitted;
  if (device().capture == FakeCapture::kCannotInstantiate) return fake::kMemoryAllocation;
  const std::scoped_lock lock(device().mutex);
  auto* graph = static_cast<fake::Graph*>(handle);
  if (device().graphs.count(graph) == 0 || flags != 0) return fake::kInvalidValue;
  *out = *device().execs.insert(new fake::Exec{graph->work}).first;
  if (device().says_graphs) {
    std::printf("fake GPU: a graph of %zu\n", graph->work.size());
    std::fflush(stdout);
  }
  return fake::kSuccess;
}
int cudaGraphLaunch(void* handle, void* on) {
  fake::Stream* stream = fake::StreamHere(on, "cudaGraphLaunch");
  if (stream == nullptr || !fake::MayCallInCapture("cudaGraphLaunch")) return fake::kInvalidValue;
  if (device().error != 0) return device().error;
  auto* exec = static_cast<fake::Exec*>(handle);
  {
    const std::scoped_lock lock(device().mutex);
    if (device().execs.count(exec) == 0) return fake::kInvalidValue;
  }
  ++device().launches;
  if (device().capture == FakeCapture::kCannotLaunch) return fake::kMemoryAllocation;
  ++exec->under_way;
  stream->Push([exec] {
    for (const auto& work : exec->work) work();
    --exec->under_way;
  });
  return fake::kSuccess;
}
int cudaGraphDestroy(void* handle) {
  if (!fake::MayCall("cudaGraphDestroy")) return fake::kNotPermitted;
  const std::scoped_lock lock(device().mutex);
  auto* graph = static_cast<fake::Graph*>(handle);
  if (device().graphs.erase(graph) == 0) return fake::kInvalidValue;
  delete graph;
  return fake::kSuccess;
}
int cudaGraphExecDestroy(void* handle) {
  if (!fake::MayCall("cudaGraphExecDestroy")) return fake::kNotPermitted;
  auto* exec = static_cast<fake::Exec*>(handle);
  {
    const std::scoped_lock lock(device().mutex);
    if (device().execs.count(exec) == 0) return fake::kInvalidValue;
  }
  if (exec->under_way != 0) {
    fake::Refuse("graph", "destroyed while it is under way");
    return fake::kInvalidValue;
  }
  const std::scoped_lock lock(device().mutex);
  device().execs.erase(exec);
  delete exec;
  return fake::kSuccess;
}
int cudaFuncSetAttribute(const void* /*kernel*/, int /*attribute*/, int /*value*/) {
  return fake::MayCallInCapture("cudaFuncSetAttribute") ? fake::kSuccess : fake::kNotPermitted;
}
int cudaLaunchKernel(const void* kernel, FakeDim3 blocks, FakeDim3 threads, void** arguments,
                     std::size_t block_bytes, void* handle) {
  fake::Stream* stream = fake::StreamHere(handle, "cudaLaunchKernel");
  if (stream == nullptr || device().kernels == nullptr) return fake::kInvalidValue;
  if (device().error != 0) return device().error;
  if (fake::t_captures && device().capture == FakeCapture::kRefusesWork)
    return fake::kCaptureInvalidated;
  stream->Push(device().kernels(kernel, blocks, threads, arguments, block_bytes));
  return fake::kSuccess;
}
const char* cudaGetErrorString(int error) {
  switch (error) {
    case 2: return "out of memory";
    case 35: return "CUDA driver version is insufficient for CUDA runtime version";
    case 100: return "no CUDA-capable device is detected";
    case 700: return "an illegal memory access was encountered";
    default: return "a fake error";
  }
}

void fakeGpuSetDevices(int count, int error) {
  device().devices = count;
  device().count_error = error;
}
void fakeGpuSetKernels(FakeKernels kernels) { device().kernels = kernels; }
void fakeGpuSayGraphs() { device().says_graphs = true; }
void fakeGpuPlayCapture(FakeCapture capture) { device().capture = capture; }
int fakeGpuCaptures() { return device().captures.exchange(0); }
int fakeGpuGraphLaunches() { return device().launches.exchange(0); }
void fakeGpuAbortOnRefusal() { device().aborts = true; }
void fakeGpuSetRuntime(int version) { device().runtime = version; }
void fakeGpuSetDriver(int version) { device().driver = version; }
void fakeGpuSetCapability(int capability) { device().capability = capability; }
void fakeGpuSetMemory(std::size_t bytes) {
  const std::scoped_lock lock(device().mutex);
  device().room = bytes;
}
int fakeGpuRefusals(char* text, std::size_t room) {
  const std::scoped_lock lock(device().mutex);
  std::string all;
  for (const auto& [rule, first] : device().refusals)
    all.append(rule).append(": ").append(first).append("\n");
  if (room > 0) {
    const std::size_t size = std::min(all.size(), room - 1);
    std::memcpy(text, all.data(), size);
    text[size] = '\0';
  }
  return device().refused;
}
void fakeGpuForget() { fake::ForgetRefusals(); }
int fakeGpuLive() {
  const std::scoped_lock lock(device().mutex);
  return static_cast<int>(device().streams.size() + device().events.size() +
                          device().graphs.size() + device().execs.size() +
                          device().device_memory.size() + device().host_memory.size() +
                          device().registered.size());
}
void fakeGpuReset() {
  fake::t_device = 0;
  fakeNcclRelease();
  fakeNcclPlay(nullptr);
  fakeNcclSetVersion(22809);
  fake::ResetProducts();
  fake::ForgetRefusals();
  const std::scoped_lock lock(device().mutex);
  device().devices = 1;
  device().count_error = 0;
  device().driver = device().runtime = 13000;
  device().capability = 90;
  device().room = std::size_t(1) << 40;
  device().error = 0;
  device().kernels = nullptr;
  device().capture = FakeCapture::kRight;
  device().captures = device().launches = 0;
}

}  // extern "C"
