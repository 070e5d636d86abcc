// libcuda without a GPU: what a check of GPUs calls, refused where its rules are broken. What it is
// to be like is in the file `cuda` beside this library:
//
//   devices 4 · wrong 2 (its products are) · slow 1 (a product takes 200 ms) · full 0 (has no
//   memory) fails init 100 · fails launch 700

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/common/fake_nvml/beside.h"

namespace {

struct State {
  int devices = 0;
  std::set<int> wrong, slow, full;
  std::map<std::string, int> fails;
};

bool initialised = false;
int current = -1;
char contexts[64];                                  // By ordinal.
std::map<std::uint64_t, std::vector<char>> memory;  // Of the context that is current.

State Read() {
  const std::string folder = regroup::testing::FolderOf(reinterpret_cast<void*>(&Read));
  State state;
  std::ifstream in(folder + "/cuda");
  for (std::string word; in >> word;) {
    int number = 0;
    std::string call;
    if (word == "fails") in >> call;
    in >> number;
    if (word == "devices") state.devices = number;
    if (word == "wrong") state.wrong.insert(number);
    if (word == "slow") state.slow.insert(number);
    if (word == "full") state.full.insert(number);
    if (word == "fails") state.fails[call] = number;
  }
  return state;
}

constexpr int kFirstDevice = 10;  // Whoever takes an ordinal for it is refused.
constexpr int kInvalid = 1, kNoMemory = 2, kNotInitialised = 3, kNoContext = 201, kBadPtx = 218,
              kNotFound = 500;

int Enter(const char* call, bool in_context) {
  const State state = Read();
  if (const auto fails = state.fails.find(call); fails != state.fails.end()) return fails->second;
  if (!initialised) return kNotInitialised;
  return in_context && current < 0 ? kNoContext : 0;
}

// Of a whole matrix alone.
float* Matrix(std::uint64_t address, unsigned n) {
  const auto found = memory.find(address);
  if (found == memory.end() || found->second.size() != sizeof(float) * n * n) return nullptr;
  return reinterpret_cast<float*>(found->second.data());
}

}  // namespace

extern "C" {

int cuInit(unsigned flags) {
  initialised = flags == 0 && Read().fails.count("init") == 0;
  return initialised ? 0 : Read().fails["init"];
}

int cuGetErrorString(int code, const char** words) {
  *words = code == 100   ? "no CUDA-capable device is detected"
           : code == 700 ? "an illegal memory access was encountered"
           : code == 2   ? "out of memory"
           : code == 218 ? "a PTX JIT compilation failed"
                         : nullptr;
  return *words == nullptr ? kInvalid : 0;
}

int cuDeviceGetCount(int* count) {
  *count = Read().devices;
  return Enter("count", false);
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal + kFirstDevice;
  return ordinal < Read().devices ? Enter("get", false) : 101;
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = contexts + (device - kFirstDevice);
  return Enter("retain", false);
}
int cuDevicePrimaryCtxRelease_v2(int) {
  memory.clear();
  current = -1;
  return 0;
}
int cuCtxSetCurrent(void* context) {
  current = static_cast<int>(static_cast<char*>(context) - contexts);
  return Enter("set", true);
}
int cuCtxSynchronize() { return Enter("synchronize", true); }

int cuModuleLoadData(void** module, const void* image) {
  static int loaded = 0;
  *module = &loaded;
  const std::string ptx = static_cast<const char*>(image);
  const bool good = ptx.rfind(".version", 0) == 0 &&
                    ptx.find(".visible .entry regroup_product(") != std::string::npos;
  return good ? Enter("load", true) : kBadPtx;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  return std::strcmp(name, "regroup_product") == 0 ? Enter("function", true) : kNotFound;
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t bytes) {
  if (Read().full.count(current) > 0) return kNoMemory;
  static std::uint64_t next = 0x1000;
  *address = next;
  next += bytes + 256;
  memory[*address].resize(bytes);
  return Enter("allocate", true);
}
int cuMemcpyHtoD_v2(std::uint64_t to, const void* from, std::size_t bytes) {
  const auto found = memory.find(to);
  if (found == memory.end() || found->second.size() < bytes) return kInvalid;
  std::memcpy(found->second.data(), from, bytes);
  return Enter("copy", true);
}
int cuMemcpyDtoH_v2(void* to, std::uint64_t from, std::size_t bytes) {
  const auto found = memory.find(from);
  if (found == memory.end() || found->second.size() < bytes) return kInvalid;
  std::memcpy(to, found->second.data(), bytes);
  return Enter("copy", true);
}

int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned, void*,
                   void** arguments, void**) {
  const State state = Read();
  if (const int code = Enter("launch", true); code != 0) return code;
  const auto address = [&](int i) { return *static_cast<std::uint64_t*>(arguments[i]); };
  const unsigned n = *static_cast<unsigned*>(arguments[3]);
  const float *a = Matrix(address(0), n), *b = Matrix(address(1), n);
  float* c = Matrix(address(2), n);
  if (function == nullptr || a == nullptr || b == nullptr || c == nullptr || grid_z != 1 ||
      block_y != 1 || block_z != 1)
    return kInvalid;
  // What no thread computes stays as it was.
  const unsigned columns = std::min(n, grid_x * block_x);
  for (unsigned row = 0; row < n && row < grid_y; ++row) {
    float* sums = c + row * n;
    std::fill(sums, sums + columns, 0.0f);
    for (unsigned k = 0; k < n; ++k) {
      const float factor = a[row * n + k];
      const float* products = b + k * n;
      for (unsigned column = 0; column < columns; ++column)
        sums[column] += factor * products[column];
    }
  }
  if (state.wrong.count(current) > 0) c[3 * n + 5] += 1;
  if (state.slow.count(current) > 0) usleep(200'000);
  return 0;
}

}  // extern "C"
