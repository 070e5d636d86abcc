// Collectives of local ranks: one JSON line per case, samples in seconds. The same all-reduce by
// Gloo, in the same run, where Gloo is there.

#include <sched.h>
#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "common/base/rng.h"
#include "tests/bench/gloo_peer.h"
#include "tests/worker/comm/processes.h"

namespace regroup::worker {
namespace {

constexpr int kMaxSamples = 4096, kMaxWorld = 4;

struct Times {
  std::array<std::array<std::atomic<double>, kMaxSamples>, kMaxWorld> seconds{};
  std::array<std::atomic<double>, kMaxWorld> back{};
  std::atomic<double> aborted{0};
  std::atomic<int> ready{0};
};

int Cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  return CPU_COUNT(&allowed);
}

// As the agent does it: a core of its own for every rank where there are enough.
void Pin(int rank, int world_size) {
  if (Cores() < world_size) return;
  cpu_set_t allowed, own;
  CPU_ZERO(&allowed);
  CPU_ZERO(&own);
  sched_getaffinity(0, sizeof allowed, &allowed);
  for (int c = 0, seen = 0; c < CPU_SETSIZE; ++c) {
    if (CPU_ISSET(c, &allowed) && seen++ == rank) CPU_SET(c, &own);
  }
  sched_setaffinity(0, sizeof own, &own);
}

void Print(const std::string& name, std::vector<double> samples, const std::string& setup) {
  nlohmann::ordered_json line{
      {"name", name}, {"unit", "s"}, {"n", samples.size()}, {"samples", samples}, {"setup", setup}};
  std::sort(samples.begin(), samples.end());
  if (!samples.empty()) {
    line["p50"] = samples[samples.size() / 2];
    line["p99"] = samples[samples.size() * 99 / 100];
    line["max"] = samples.back();
  }
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

std::string Setup(int world_size, const std::string& what) {
  return std::to_string(world_size) + " processes on " + std::to_string(Cores()) + " cores, " +
         what;
}

// Each sample is that of the slowest rank.
std::vector<double> SlowestOf(const Times& times, int world_size, int n) {
  std::vector<double> samples;
  for (int i = 0; i < n; ++i) {
    double slowest = 0;
    for (int r = 0; r < world_size; ++r) slowest = std::max(slowest, times.seconds[r][i].load());
    samples.push_back(slowest);
  }
  return samples;
}

using Call = absl::Status (*)(Communicator&, Tensor);

absl::Status Sum(Communicator& c, Tensor arena) { return c.AllReduceSum(arena); }

// A half for each of two ranks.
std::array<Stretch, 2> Halves(Tensor arena) {
  const auto half = static_cast<std::int64_t>(arena.size / 2);
  return {Stretch{0, 0, 0, half}, Stretch{1, half, half, half}};
}
absl::Status Scatter(Communicator& c, Tensor arena) {
  return c.ReduceScatter(arena, Halves(arena), arena, 2);
}
absl::Status Gather(Communicator& c, Tensor arena) {
  return c.AllGather(arena, Halves(arena), arena, 2);
}

void Fill(Tensor arena, float (*number)(std::size_t)) {
  WithType(arena.type, [&](auto one) {
    std::size_t i = 0;
    for (auto& element : arena.Elements<decltype(one)>()) element = decltype(one)(number(i++));
  });
}

// Of both signs, each sixteenth so small that f16 holds it with fewer digits.
float Gradient(std::size_t i) {
  const float number = 1e-4f * static_cast<float>(i % 2048) - 0.1f;
  return i % 16 == 0 ? number * 1e-4f : number;
}

const std::vector<int> kOneHost{}, kTwoHosts{1, 1};

bool Time(const std::string& name, std::size_t elements, int n, Call call,
          const std::vector<int>& hosts = kOneHost, DType type = DType::kF32,
          bool refills = false) {
  Shared<Times> times;
  RankProcesses ranks(
      2,
      [&](int rank, Communicator& c) {
        auto arena = c.AllocateTensor(type, elements);
        if (!arena.ok()) return 1;
        Fill(*arena, [](std::size_t) { return 1e-30f; });
        for (int i = -n / 4 - 3; i < n; ++i) {
          if (refills) Fill(*arena, Gradient);
          if (!c.Barrier().ok()) return 2;
          const double begin = NowSeconds();
          if (!call(c, *arena).ok()) return 3;
          if (i >= 0) times->seconds[rank][i] = NowSeconds() - begin;
        }
        return 0;
      },
      // Gloo's are not pinned either.
      std::chrono::seconds(30), hosts.empty() ? Pin : nullptr, hosts);
  for (int code : ranks.WaitAll()) {
    if (code != 0) return false;
  }
  Print(
      name, SlowestOf(*times, 2, n),
      Setup(2, hosts.empty() ? "numbers in a shared arena, slowest rank of each call"
                             : "each a host of its own, TCP between two addresses of the loopback "
                               "network, slowest rank of each call"));
  return true;
}

// A word of each line of both, asked for as early as the sums do it.
std::uint64_t Touch(const float* a, const float* b, std::size_t count) {
  constexpr std::size_t kLine = 64 / sizeof(float), kAhead = 4096 / sizeof(float);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; i += kLine) {
    __builtin_prefetch(a + std::min(i + kAhead, count - 1));
    __builtin_prefetch(b + std::min(i + kAhead, count - 1));
    sum += std::bit_cast<std::uint32_t>(a[i]) + std::bit_cast<std::uint32_t>(b[i]);
  }
  return sum;
}

// What no reduce-scatter of two ranks can do without: each reads its half of both parts, as the
// timed one finds them, its own half of its own part written by the call before.
bool ReadHalves(const std::string& name, int n) {
  constexpr std::size_t kHalf = 8 << 20, kSkew = 320;  // Parts are at other places of a page.
  Shared<Times> times;
  RankProcesses ranks(
      2,
      [&](int rank, Communicator& c) {
        const auto memory = c.AllocateShared(DType::kF32, 4 * kHalf + kSkew, /*group=*/2);
        if (!memory.ok()) return 1;
        const auto half_of = [&](int part) {
          return memory->Elements<float>().data() +
                 static_cast<std::size_t>(part) * (2 * kHalf + kSkew) +
                 static_cast<std::size_t>(rank) * kHalf;
        };
        std::uint64_t sum = 0;
        for (int i = -n / 4 - 3; i < n; ++i) {
          std::fill_n(half_of(rank), kHalf, static_cast<float>(i));
          if (!c.Barrier().ok()) return 2;
          const double begin = NowSeconds();
          sum += Touch(half_of(0), half_of(1), kHalf);
          if (i >= 0) times->seconds[rank][i] = NowSeconds() - begin;
        }
        return sum == 1 ? 3 : 0;  // So that the reading is done.
      },
      std::chrono::seconds(30), Pin);
  for (int code : ranks.WaitAll()) {
    if (code != 0) return false;
  }
  Print(name, SlowestOf(*times, 2, n), Setup(2, "reading alone, slowest rank of each"));
  return true;
}

bool Gloo(const std::string& name, std::size_t floats, int n) {
  std::vector<double> samples;
  if (!GlooAllReduce(floats, n, samples)) return true;
  Print(name + " gloo", samples, Setup(2, "Debian's Gloo, ring over loopback"));
  return true;
}

// Ranks reduce until a call fails, and note when they are back from it.
int ReduceUntilFailure(int rank, Communicator& c, Times& times, std::size_t floats) {
  auto arena = c.AllocateArena(floats);
  if (!arena.ok()) return 1;
  std::fill(arena->begin(), arena->end(), 1e-30f);
  for (int i = 0;; ++i) {
    if (!c.AllReduceSum(*arena).ok()) break;
    if (i == 2) ++times.ready;
  }
  times.back[rank] = NowSeconds();
  return 0;
}

void SpinFor(double seconds) {
  for (const double end = NowSeconds() + seconds; NowSeconds() < end;) std::this_thread::yield();
}

bool AbortCase(int n) {
  constexpr std::size_t kFloats = 16 << 20;
  std::vector<double> samples;
  Rng rng(1);
  for (int i = 0; i < n; ++i) {
    Shared<Times> times;
    const double pause = rng.Unit() * 0.02;
    RankProcesses ranks(
        3,
        [&](int rank, Communicator& c) {
          std::thread aborter;
          if (rank == 2) {
            aborter = std::thread([&] {
              while (times->ready < 3) std::this_thread::yield();
              SpinFor(pause);
              times->aborted = NowSeconds();
              c.Abort();
            });
          }
          const int code = ReduceUntilFailure(rank, c, *times, kFloats);
          if (aborter.joinable()) aborter.join();
          return code;
        },
        std::chrono::seconds(30), Pin);
    for (int code : ranks.WaitAll()) {
      if (code != 0) return false;
    }
    const double last =
        std::max({times->back[0].load(), times->back[1].load(), times->back[2].load()});
    samples.push_back(last - times->aborted);
  }
  Print("abort", samples,
        Setup(3,
              "in an all-reduce of 64 MiB, from the call of Abort on one rank until the last of "
              "them is back"));
  return true;
}

bool KillCase(int n) {
  constexpr std::size_t kFloats = 16 << 20;
  std::vector<double> samples;
  Rng rng(2);
  for (int i = 0; i < n; ++i) {
    Shared<Times> times;
    RankProcesses ranks(
        3, [&](int rank, Communicator& c) { return ReduceUntilFailure(rank, c, *times, kFloats); },
        std::chrono::seconds(30), Pin);
    while (times->ready < 3) std::this_thread::yield();
    SpinFor(rng.Unit() * 0.02);
    const int victim = i % 3;
    const double killed = NowSeconds();
    kill(ranks.pid(victim), SIGKILL);
    double last = 0;
    for (int r = 0; r < 3; ++r) {
      if (r == victim) continue;
      if (ranks.Wait(r) != 0) return false;
      last = std::max(last, times->back[r].load());
    }
    samples.push_back(last - killed);
  }
  Print("peer_killed", samples,
        Setup(3,
              "in an all-reduce of 64 MiB, from the call of kill until the last survivor is back"));
  return true;
}

int Run(int argc, char** argv) {
  std::string only;
  int failures = 20;
  CLI::App app("Times collectives of local ranks.");
  app.add_option("--only", only,
                 "allreduce_64MiB, allreduce_1KiB, hosts_64MiB, hosts_1KiB, types, halves, abort "
                 "or peer_killed");
  app.add_option("--failures", failures, "how often ranks are aborted or killed")
      ->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  bool ok = true;
  if (wanted("allreduce_64MiB"))
    ok &= Time("allreduce_64MiB", 16 << 20, 60, Sum) && Gloo("allreduce_64MiB", 16 << 20, 20);
  if (wanted("allreduce_1KiB"))
    ok &= Time("allreduce_1KiB", 256, 4000, Sum) && Gloo("allreduce_1KiB", 256, 400);
  if (wanted("hosts_64MiB"))
    ok &= Time("hosts_64MiB", 16 << 20, 20, Sum, kTwoHosts) && Gloo("hosts_64MiB", 16 << 20, 20);
  if (wanted("hosts_1KiB"))
    ok &= Time("hosts_1KiB", 256, 400, Sum, kTwoHosts) && Gloo("hosts_1KiB", 256, 400);
  if (wanted("types")) {
    ok &= Time("types: f32", 16 << 20, 60, Sum, kOneHost, DType::kF32, true) &&
          Time("types: bf16", 16 << 20, 60, Sum, kOneHost, DType::kBF16, true) &&
          Time("types: f16", 16 << 20, 60, Sum, kOneHost, DType::kF16, true);
  }
  if (wanted("halves")) {
    ok &= Time("halves: allreduce_64MiB", 16 << 20, 60, Sum) &&
          Time("halves: reducescatter_64MiB", 16 << 20, 60, Scatter) &&
          Time("halves: allgather_64MiB", 16 << 20, 60, Gather) &&
          ReadHalves("halves: read_64MiB", 60);
  }
  if (wanted("abort")) ok &= AbortCase(failures);
  if (wanted("peer_killed")) ok &= KillCase(failures);
  if (!ok) std::fputs("error: a rank failed\n", stderr);
  return ok ? 0 : 1;
}

}  // namespace
}  // namespace regroup::worker

int main(int argc, char** argv) { return regroup::worker::Run(argc, argv); }
