#pragma once

#include <cstdint>

namespace regroup::worker {

// Threads that a parallel region gets on the calling thread: OMP_NUM_THREADS, else the allowed
// cores.
int ThreadCount();
// For the calling thread only, oneDNN's regions included. REQUIRES: threads >= 1.
void SetThreadCount(int threads);
// Cores that this process may run on.
int CoreCount();

// Calls body(argument, task, thread) once for every task in [0, tasks), on at most ThreadCount()
// threads, and returns when all are done. Which thread (0 <= thread < ThreadCount()) runs which
// task is open, so a body may keep only scratch by thread, and writes results by task. Execution
// thread only, not nested. The pool is libgomp's, which oneDNN uses too: a second pool would take
// half of the cores from each.
void RunTasks(std::int64_t tasks, void (*body)(const void* argument, std::int64_t task, int thread),
              const void* argument);

// From a thread without regions: gives it a pool of `threads`, itself among them, which sleep there
// until it ends.
void EnterEmptyRegion(int threads);

// body(task, thread).
template <typename Body>
void ParallelFor(std::int64_t tasks, const Body& body) {
  RunTasks(
      tasks,
      [](const void* argument, std::int64_t task, int thread) {
        (*static_cast<const Body*>(argument))(task, thread);
      },
      &body);
}

}  // namespace regroup::worker
