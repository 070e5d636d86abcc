#include "worker/kernels/parallel_for.h"

#include <algorithm>
#include <atomic>

#include "common/base/check.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

// The few entry points of libgomp that both compilers can call: Clang's own -fopenmp would bring a
// second pool.
extern "C" {
void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
int omp_get_max_threads();
int omp_get_num_procs();
int omp_get_thread_num();
void omp_set_num_threads(int threads);
}

namespace regroup::worker {
namespace {

// libgomp is not built with ThreadSanitizer, which therefore has to be told that what one thread
// did before Release comes before what another does after Acquire.
#ifdef __SANITIZE_THREAD__
void Acquire(void* address) { __tsan_acquire(address); }
void Release(void* address) { __tsan_release(address); }
#else
void Acquire(void*) {}
void Release(void*) {}
#endif

struct Region {
  void (*body)(const void*, std::int64_t, int);
  const void* argument;
  std::int64_t tasks;
  std::atomic<std::int64_t> next{0};
};

void RunRegion(void* data) {
  Acquire(data);
  Region& region = *static_cast<Region*>(data);
  const int thread = omp_get_thread_num();
  for (;;) {
    const std::int64_t task = region.next.fetch_add(1, std::memory_order_relaxed);
    if (task >= region.tasks) break;
    region.body(region.argument, task, thread);
  }
  Release(data);
}

}  // namespace

int ThreadCount() { return omp_get_max_threads(); }

void SetThreadCount(int threads) {
  CHECK(threads >= 1);
  omp_set_num_threads(threads);
}

int CoreCount() { return omp_get_num_procs(); }

void EnterEmptyRegion(int threads) {
  GOMP_parallel([](void*) {}, nullptr, static_cast<unsigned>(threads), 0);
}

void RunTasks(std::int64_t tasks, void (*body)(const void*, std::int64_t, int),
              const void* argument) {
  const auto threads = static_cast<int>(std::min<std::int64_t>(tasks, ThreadCount()));
  if (threads <= 1) {
    for (std::int64_t task = 0; task < tasks; ++task) body(argument, task, 0);
    return;
  }
  Region region{.body = body, .argument = argument, .tasks = tasks};
  Release(&region);
  GOMP_parallel(RunRegion, &region, static_cast<unsigned>(threads), 0);
  Acquire(&region);
}

}  // namespace regroup::worker
