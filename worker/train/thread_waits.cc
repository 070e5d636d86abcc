#include "worker/train/thread_waits.h"

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <thread>
#include <utility>
#include <vector>

#include "common/io/thread.h"
#include "worker/kernels/parallel_for.h"

namespace regroup::worker {
namespace {

constexpr Duration kBetweenLooks = std::chrono::milliseconds(200);
// Of the time that it could have run, a thread's share without a core: from which it is crowded,
// and below which it is so no more.
constexpr double kCrowded = 0.10, kAlone = 0.03;
constexpr int kMaxSparePool = 8;
// A thread that mostly sleeps says nothing of its core.
constexpr Duration kLeast = std::chrono::milliseconds(20);

}  // namespace

std::optional<CoreTime> ReadCoreTime() {
  std::FILE* file = std::fopen("/proc/thread-self/schedstat", "re");
  if (file == nullptr) return std::nullopt;
  std::int64_t ran = 0, waited = 0;
  const bool read = std::fscanf(file, "%" SCNd64 " %" SCNd64, &ran, &waited) == 2;
  std::fclose(file);
  // A kernel that does not count says 0 for ever.
  if (!read || ran == 0) return std::nullopt;
  return CoreTime{.ran = std::chrono::nanoseconds(ran), .waited = std::chrono::nanoseconds(waited)};
}

bool IsCrowded(bool before, const CoreTime& counted) {
  const Duration all = counted.ran + counted.waited;
  if (all < kLeast) return before;
  return Seconds(counted.waited) > (before ? kAlone : kCrowded) * Seconds(all);
}

int SparePool(int cores, int threads) {
  if (threads <= 1 || threads > cores) return 0;
  const int pool = cores - threads + 2;  // Of a pool all count but its owner.
  return pool <= kMaxSparePool ? pool : 0;
}

// Leaves the pool with the thread that entered it.
class ThreadWaits::SpareThreads {
 public:
  // Null: the host gives none, or not enough of them.
  static std::unique_ptr<SpareThreads> Start(int pool) {
    if (!AreThere(pool)) return nullptr;
    std::unique_ptr<SpareThreads> spare(new SpareThreads);
    absl::StatusOr<std::thread> thread = io::StartThread([pool, end = &spare->end_] {
      EnterEmptyRegion(pool);
      end->wait(false);
    });
    if (!thread.ok()) return nullptr;
    spare->thread_ = *std::move(thread);
    return spare;
  }
  ~SpareThreads() {
    if (!thread_.joinable()) return;
    end_.store(true);
    end_.notify_one();
    thread_.join();
  }

 private:
  SpareThreads() = default;

  // So many threads at once. libgomp ends the program where it gets none.
  static bool AreThere(int count) {
    std::atomic<bool> end{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i) {
      absl::StatusOr<std::thread> thread = io::StartThread([&end] { end.wait(false); });
      if (!thread.ok()) break;
      threads.push_back(*std::move(thread));
    }
    end.store(true);
    end.notify_all();
    for (std::thread& thread : threads) thread.join();
    return static_cast<int>(threads.size()) == count;
  }

  std::atomic<bool> end_{false};
  std::thread thread_;
};

ThreadWaits::ThreadWaits(std::function<std::optional<CoreTime>()> read) : read_(std::move(read)) {}
ThreadWaits::~ThreadWaits() = default;

void ThreadWaits::Look(Instant now) {
  if (looked_ && now - *looked_ < kBetweenLooks) return;
  const std::optional<CoreTime> counted = read_();
  if (!counted) {
    crowded_ = true;
  } else if (counted_) {
    crowded_ =
        IsCrowded(crowded_, {counted->ran - counted_->ran, counted->waited - counted_->waited});
  }
  looked_ = now;
  counted_ = counted;
  if (!crowded_) {
    spare_ = nullptr;
  } else if (spare_ == nullptr) {
    const int pool = SparePool(CoreCount(), ThreadCount());
    if (pool > 0) spare_ = SpareThreads::Start(pool);
  }
}

}  // namespace regroup::worker
