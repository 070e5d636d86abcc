#include "agent/shell/gpu_watch.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/gpu/nvml.h"

namespace regroup::agent {
namespace {

using Clock = std::chrono::steady_clock;

// A driver that tells of errors is listened to in pieces, so that the thread can end.
constexpr std::chrono::milliseconds kListen{500};
// At least, however many errors there are.
constexpr std::chrono::milliseconds kBetween{1000};

}  // namespace

// Outlives the object where the driver is stuck.
struct GpuWatch::Shared {
  explicit Shared(Options options) : options(std::move(options)) {}
  const Options options;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;   // The object is gone.
  bool done = false;    // There is no driver to ask, and none will come.
  bool silent = false;  // Every GPU of `seen` says so.
  Clock::time_point answered_at = Clock::now();
  Seen seen;

  bool Named(const Gpu& gpu) const {
    if (options.devices.variable.empty()) return true;
    const auto& names = options.devices.names;
    const auto is = [&](const std::string& name) {
      return !name.empty() && (name == gpu.id || gpu.uuid.rfind(name, 0) == 0);
    };
    return std::any_of(names.begin(), names.end(), is);
  }

  void Tell(std::vector<Gpu> gpus) {
    std::erase_if(gpus, [&](const Gpu& gpu) { return !Named(gpu); });
    if (gpus.size() > kMaxGpusPerNode) gpus.resize(kMaxGpusPerNode);
    const std::lock_guard lock(mutex);
    answered_at = Clock::now();
    if (seen.number > 0 && !silent && gpus == seen.gpus) return;
    silent = false;
    seen.gpus = std::move(gpus);
    ++seen.number;
  }

  void Run() {
    std::optional<Nvml> nvml;
    while (!nvml) {
      absl::StatusOr<Nvml> opened = Nvml::Open(options.library);
      if (opened.ok()) {
        nvml.emplace(*std::move(opened));
        break;
      }
      std::unique_lock lock(mutex);
      answered_at = Clock::now();
      done = absl::IsNotFound(opened.status());
      if (done || changed.wait_for(lock, options.every, [&] { return ended; })) return;
    }
    while (true) {
      nvml->ListenForErrors();
      absl::StatusOr<std::vector<Gpu>> gpus = nvml->Gpus();
      if (gpus.ok()) {
        Tell(*std::move(gpus));
      } else {
        Fail(std::string(gpus.status().message()));
      }
      if (!Listen(*nvml)) return;
    }
  }

  // What was there has that trouble now.
  void Fail(const std::string& why) {
    std::vector<Gpu> gpus;
    {
      const std::lock_guard lock(mutex);
      gpus = seen.gpus;
    }
    for (Gpu& gpu : gpus) gpu.trouble = why;
    Tell(std::move(gpus));
  }

  // Until it is time to ask again. False: never.
  bool Listen(Nvml& nvml) {
    const Clock::time_point began = Clock::now(), until = began + options.every;
    const Clock::time_point soon = std::min(until, began + kBetween);
    bool any = false;
    while (true) {
      const Clock::time_point now = Clock::now(), end = any ? soon : until;
      if (now >= end) return true;
      const Clock::time_point piece = std::min(end, now + kListen);
      const bool heard =
          nvml.AwaitError(std::chrono::duration_cast<std::chrono::milliseconds>(piece - now));
      any = any || heard;
      std::unique_lock lock(mutex);
      answered_at = Clock::now();
      // One that tells of none has come back at once.
      if (!heard) changed.wait_until(lock, piece, [&] { return ended; });
      if (ended) return false;
    }
  }
};

GpuWatch::GpuWatch(Options options) : shared_(std::make_shared<Shared>(std::move(options))) {
  std::thread([shared = shared_] { shared->Run(); }).detach();
}

GpuWatch::~GpuWatch() {
  const std::lock_guard lock(shared_->mutex);
  shared_->ended = true;
  shared_->changed.notify_all();
}

GpuWatch::Seen GpuWatch::Latest() {
  Shared& shared = *shared_;
  const std::lock_guard lock(shared.mutex);
  const bool silent = Clock::now() - shared.answered_at > shared.options.patience;
  if (silent && !shared.done && !shared.silent) {
    for (Gpu& gpu : shared.seen.gpus) gpu.trouble = "its driver does not answer";
    shared.silent = true;
    ++shared.seen.number;
  }
  return shared.seen;
}

}  // namespace regroup::agent
