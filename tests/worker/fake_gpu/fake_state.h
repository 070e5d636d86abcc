#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/fake_gpu/fake_gpu.h"

// What the two halves of the library have in common.
namespace fake {

// Whatever a rule forbids; `rule` is a short name of it.
void Refuse(const std::string& rule, const std::string& text);
void ForgetRefusals();

struct Instance {  // Of an event's record.
  std::atomic<bool> over{false};
};

struct Graph {
  std::vector<std::function<void()>> work;
};

class Stream {
 public:
  explicit Stream(int device);
  ~Stream();
  void Push(std::function<void()> work);
  // What is pushed from here on is kept; none that is kept already is begun anew. End: null where
  // nothing was.
  bool BeginCapture();
  std::unique_ptr<Graph> EndCapture();
  void Fail(int error) { error_ = error; }
  int error() const { return error_; }
  int device() const { return device_; }

 private:
  void Loop();
  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::atomic<int> error_{0};
  bool stop_ = false;
  std::unique_ptr<Graph> captured_;
  std::thread thread_;
};

// Null, and a refusal, where it is none that lives.
Stream* StreamOf(void* handle, const char* call);
// Of one allocation, on that device.
bool IsDeviceMemory(const void* memory, std::size_t bytes, int device);
// That, or the host's that it allocated.
bool IsReachable(const void* memory, std::size_t bytes, int device);
// What the calling thread asks is meant for this one.
int CurrentDevice();
// False, and a refusal: the calling thread is a stream's, inside what the host was asked to call.
bool MayCall(const char* call);
void ResetProducts();  // Of cuBLASLt, before each test.
// The device has failed, for all that is asked of it from here on.
void FailDevice(int error);

}  // namespace fake
