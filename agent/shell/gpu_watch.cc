#include "agent/shell/gpu_watch.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/gpu/nvml.h"

namespace regroup::agent {
namespace {

using Clock = std::chrono::steady_clock;

// A driver that tells of errors is listened to in pieces, so that the thread can end.
constexpr std::chrono::milliseconds kListen{500};

}  // namespace

// Outlives the object where the driver is stuck.
struct GpuWatch::Shared {
  explicit Shared(Options options) : options(std::move(options)) {}
  const Options options;
  std::mutex mutex;
  std::condition_variable changed;
  bool ended = false;   // The object is gone.
  bool done = false;    // There is no driver to ask.
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
    const std::lock_guard lock(mutex);
    answered_at = Clock::now();
    if (seen.number > 0 && !silent && gpus == seen.gpus) return;
    silent = false;
    seen.gpus = std::move(gpus);
    ++seen.number;
  }

  void Run() {
    absl::StatusOr<Nvml> nvml = Nvml::Open(options.library);
    if (!nvml.ok()) {
      const std::lock_guard lock(mutex);
      done = true;
      return;
    }
    nvml->ListenForErrors();
    while (true) {
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
    const Clock::time_point until = Clock::now() + options.every;
    while (true) {
      const Clock::time_point piece = std::min(until, Clock::now() + kListen);
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(piece - Clock::now());
      const bool heard = nvml.AwaitError(std::max(left, std::chrono::milliseconds(0)));
      std::unique_lock lock(mutex);
      answered_at = Clock::now();
      // One that tells of none has come back at once.
      if (!heard) changed.wait_until(lock, piece, [&] { return ended; });
      if (ended) return false;
      if (heard || Clock::now() >= until) return true;
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
