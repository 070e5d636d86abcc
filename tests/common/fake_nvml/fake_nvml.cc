// libnvidia-ml without a GPU. What it says is in the file `gpus` beside this library, read anew at
// each call, a line each:
//
//   gpu name=NVIDIA_H100 memory=81920 used=512 celsius=41 ecc=0 pid=77
//       Memory is in MiB. dead=1: it cannot be opened; foreign=1: not by us; old=1: it knows no
//       MIG.
//   divided              The last GPU has MIG on.
//   mig name=NVIDIA_H100_MIG_1g.10gb uuid=MIG-a memory=9856
//   lost                 The last GPU is.
//   xid 79               Happens to the last GPU, once for each line.
//   fails init 9         Of a call, as long as it says so; likewise `hangs count`.
//
// Underscores of names are blanks.

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

#include "tests/common/fake_nvml/beside.h"

namespace {

struct Device {
  std::map<std::string, std::string> has;
  bool divided = false, lost = false;
  std::vector<unsigned long long> xids;
  std::vector<Device> instances;
};
struct State {
  std::vector<Device> gpus;
  std::map<std::string, int> fails;
  std::string hangs;
};

std::mutex mutex;
bool open_now = false;
// Xids, by GPU. Not destroyed: threads that nobody waits for are in here when their process ends.
auto& told = *new std::map<std::size_t, std::size_t>;

State Read() {
  const std::string folder = regroup::testing::FolderOf(reinterpret_cast<void*>(&Read));
  State state;
  std::ifstream in(folder + "/gpus");
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string kind;
    words >> kind;
    if (kind == "hangs") words >> state.hangs;
    if (kind == "fails") {
      std::string call;
      words >> call >> state.fails[call];
    }
    if (kind == "gpu" || kind == "mig") {
      Device device;
      for (std::string word; words >> word;)
        device.has[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
      (kind == "gpu" ? state.gpus : state.gpus.back().instances).push_back(device);
    }
    if (kind == "divided") state.gpus.back().divided = true;
    if (kind == "lost") state.gpus.back().lost = true;
    if (kind == "xid") words >> state.gpus.back().xids.emplace_back();
  }
  return state;
}

// Handles are places in it: a row for each GPU, whose first column is itself, the others its
// instances.
constexpr std::size_t kColumns = 8;
char handles[512 * kColumns];

const Device* Find(const State& state, void* handle) {
  const auto number = static_cast<std::size_t>(static_cast<char*>(handle) - handles);
  const std::size_t gpu = number / kColumns, instance = number % kColumns;
  if (gpu >= state.gpus.size()) return nullptr;
  if (instance == 0) return &state.gpus[gpu];
  const auto& instances = state.gpus[gpu].instances;
  return instance <= instances.size() ? &instances[instance - 1] : nullptr;
}
void* HandleOf(std::size_t gpu, std::size_t instance) {
  return handles + gpu * kColumns + instance;
}

constexpr int kUninitialized = 1, kInvalid = 2, kNotSupported = 3, kNotFound = 6, kTimeout = 10,
              kLost = 15;

int Enter(const State& state, const std::string& call) {
  while (Read().hangs == call) usleep(10'000);
  const auto fails = state.fails.find(call);
  if (fails != state.fails.end()) return fails->second;
  return call == "init" || open_now ? 0 : kUninitialized;
}

int Number(void* handle, const char* call, const char* name, unsigned long long* value) {
  const State state = Read();
  if (const int code = Enter(state, call); code != 0) return code;
  const Device* device = Find(state, handle);
  if (device == nullptr) return kInvalid;
  if (device->lost) return kLost;
  const auto found = device->has.find(name);
  if (found == device->has.end()) return kNotSupported;
  *value = std::stoull(found->second);
  return 0;
}

int Text(void* handle, const char* call, const char* name, char* text, unsigned bytes) {
  const State state = Read();
  if (const int code = Enter(state, call); code != 0) return code;
  const Device* device = Find(state, handle);
  if (device == nullptr || !device->has.contains(name)) return kInvalid;
  if (device->lost) return kLost;
  std::string value = device->has.at(name);
  if (std::strcmp(name, "name") == 0)
    for (char& letter : value) letter = letter == '_' ? ' ' : letter;
  if (value.size() >= bytes) return 7;
  std::memcpy(text, value.c_str(), value.size() + 1);
  return 0;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  const std::lock_guard lock(mutex);
  const int code = Enter(Read(), "init");
  open_now = code == 0;
  return code;
}
int nvmlShutdown() { return 0; }

const char* nvmlErrorString(int code) {
  switch (code) {
    case kLost: return "GPU is lost";
    case 9: return "Driver Not Loaded";
    case 999: return "Unknown Error";
    default: return "an error";
  }
}

int nvmlSystemGetDriverVersion(char* text, unsigned) {
  std::strcpy(text, "580.65.06");
  return 0;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  const State state = Read();
  *count = static_cast<unsigned>(state.gpus.size());
  return Enter(state, "count");
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  const State state = Read();
  if (const int code = Enter(state, "handle"); code != 0) return code;
  if (index >= state.gpus.size()) return kInvalid;
  *handle = HandleOf(index, 0);
  const auto& has = state.gpus[index].has;
  return has.contains("dead") ? 999 : has.contains("foreign") ? 4 : 0;
}

int nvmlDeviceGetName(void* handle, char* text, unsigned bytes) {
  return Text(handle, "name", "name", text, bytes);
}
int nvmlDeviceGetUUID(void* handle, char* text, unsigned bytes) {
  return Text(handle, "uuid", "uuid", text, bytes);
}

struct Memory {
  unsigned long long total, free, used;
};
int nvmlDeviceGetMemoryInfo(void* handle, Memory* memory) {
  unsigned long long total = 0, used = 0;
  if (const int code = Number(handle, "memory", "memory", &total); code != 0) return code;
  Number(handle, "memory", "used", &used);
  *memory = {total << 20, (total - used) << 20, used << 20};
  return 0;
}

int nvmlDeviceGetTemperature(void* handle, int sensor, unsigned* celsius) {
  unsigned long long value = 0;
  const int code = sensor == 0 ? Number(handle, "temperature", "celsius", &value) : kInvalid;
  *celsius = static_cast<unsigned>(value);
  return code;
}

int nvmlDeviceGetTotalEccErrors(void* handle, int kind, int counter, unsigned long long* errors) {
  return kind == 1 && counter == 0 ? Number(handle, "ecc", "ecc", errors) : kInvalid;
}

int nvmlDeviceGetMigMode(void* handle, unsigned* now, unsigned* after) {
  const State state = Read();
  const Device* device = Find(state, handle);
  if (device == nullptr) return kInvalid;
  *now = *after = device->divided ? 1 : 0;
  return device->has.contains("old") ? kNotSupported : 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return 0;
}
int nvmlDeviceGetMigDeviceHandleByIndex(void* handle, unsigned index, void** instance) {
  const State state = Read();
  const Device* device = Find(state, handle);
  if (device == nullptr || index >= device->instances.size()) return kNotFound;
  *instance = static_cast<char*>(handle) + index + 1;
  return 0;
}

struct Process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
int nvmlDeviceGetComputeRunningProcesses_v3(void* handle, unsigned* count, Process* processes) {
  unsigned long long pid = 0;
  if (Number(handle, "processes", "pid", &pid) != 0) {
    *count = 0;
    return 0;
  }
  if (*count < 1) return 7;
  *count = 1;
  processes[0] = {static_cast<unsigned>(pid), 1, ~0u, ~0u};
  return 0;
}

int nvmlEventSetCreate(void** set) {
  *set = &told;
  return Enter(Read(), "events");
}
int nvmlDeviceRegisterEvents(void*, unsigned long long types, void* set) {
  return types == 8 && set == &told ? 0 : kInvalid;
}
int nvmlEventSetFree(void*) { return 0; }

struct Event {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};
int nvmlEventSetWait_v2(void*, Event* event, unsigned milliseconds) {
  const State state = Read();
  if (const int code = Enter(state, "wait"); code != 0) return code;
  {
    const std::lock_guard lock(mutex);
    for (std::size_t gpu = 0; gpu < state.gpus.size(); ++gpu) {
      if (told[gpu] >= state.gpus[gpu].xids.size()) continue;
      *event = {HandleOf(gpu, 0), 8, state.gpus[gpu].xids[told[gpu]++], 0, 0};
      return 0;
    }
  }
  usleep(1000 * (milliseconds < 20 ? milliseconds : 20));
  return kTimeout;
}

}  // extern "C"
