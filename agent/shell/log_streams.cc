#include "agent/shell/log_streams.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/shell/log_selection.h"
#include "common/io/thread.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::agent {
namespace {

using namespace std::chrono_literals;
constexpr auto kLookAgain = 50ms, kLookAgainPerStream = 1ms;
constexpr auto kEndLimit = 5s;
constexpr std::size_t kMaxRefusals = 64;  // At a time; a stream that is not opened says less.

}  // namespace

// A client stream whose writer is a thread that may wait. gRPC's callbacks only set flags.
class LogStreams::Call final : public grpc::ClientWriteReactor<v1::SendLogsRequest> {
 public:
  explicit Call(const Connection& connection)
      : connection_(connection), stub_(v1::Coordinator::NewStub(connection.channel)) {
    stub_->async()->SendLogs(&context_, &reply_, this);
    AddHold();
    StartCall();
  }

  // False: the other side is gone, or has ended the stream.
  bool Write(const v1::SendLogsRequest& request) {
    std::unique_lock lock(mutex_);
    if (over_ || cut_) return false;
    written_ = false;
    lock.unlock();
    StartWrite(&request);
    lock.lock();
    changed_.wait(lock, [this] { return written_; });
    return written_ok_ && !over_ && !cut_;
  }
  // Sleeps; false when there is nobody to write to any more.
  template <class Time>
  bool Wait(Time time, const std::atomic<bool>& until) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, time, [&] { return over_ || cut_ || until; });
    return !over_ && !cut_;
  }
  void Cut() {
    std::lock_guard lock(mutex_);
    cut_ = true;
    context_.TryCancel();
    changed_.notify_all();
  }
  void Wake(std::atomic<bool>& flag) {
    std::lock_guard lock(mutex_);
    flag = true;
    changed_.notify_all();
  }
  // Ends the stream; on return gRPC has let go of this object.
  void End() {
    std::unique_lock lock(mutex_);
    if (!over_ && !cut_) {
      lock.unlock();
      StartWritesDone();
      lock.lock();
    }
    lock.unlock();
    RemoveHold();
    lock.lock();
    if (!changed_.wait_for(lock, kEndLimit, [this] { return ended_; })) context_.TryCancel();
    changed_.wait(lock, [this] { return ended_; });
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    written_ = true;
    written_ok_ = ok;
    changed_.notify_all();
  }
  // The coordinator says nothing before it ends the stream; OnDone would wait for our hold.
  void OnReadInitialMetadataDone(bool) override {
    std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  void OnDone(const grpc::Status&) override {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }

 private:
  Connection connection_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  v1::SendLogsReply reply_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool written_ = true, written_ok_ = true, over_ = false, ended_ = false, cut_ = false;
};

class LogStreams::Feeder {
 public:
  // `refusal`: sent instead of lines, unless it is empty.
  Feeder(const Connection& connection, std::string log_root, std::string name,
         const v1::OpenLogs& asked, bool unfinished, std::atomic<int>& serving, std::string refusal)
      : call_(connection),
        stream_(asked.stream_id()),
        follow_(asked.selection().follow()),
        unfinished_(unfinished),
        reader_(std::move(log_root), std::move(name), asked.selection()),
        serving_(serving),
        refusal_(std::move(refusal)) {
    absl::StatusOr<std::thread> thread = io::StartThread([this] { Run(); });
    if (thread.ok()) {
      thread_ = *std::move(thread);
      return;
    }
    // Its reader is told, by the coordinator, that this node sends nothing.
    call_.Cut();
    call_.End();
    finished_ = true;
  }
  ~Feeder() {
    call_.Cut();
    if (thread_.joinable()) thread_.join();
  }
  void StopFollowing() { call_.Wake(stop_following_); }
  void SayUnfinished() { unfinished_ = true; }
  bool finished() const { return finished_; }

 private:
  void Run() {
    v1::SendLogsRequest request;
    request.set_stream_id(stream_);
    if (!refusal_.empty()) {
      request.set_problem(refusal_);
      call_.Write(request);
    } else {
      ++serving_;
      Serve(request);
      --serving_;
    }
    call_.End();
    finished_ = true;
  }
  void Serve(v1::SendLogsRequest& request) {
    bool connected = call_.Write(request);
    request.clear_stream_id();
    for (bool last = false; connected;) {
      std::vector<v1::LogChunk> chunks = reader_.Next(last);
      for (v1::LogChunk& chunk : chunks) {
        *request.mutable_chunk() = std::move(chunk);
        if (!(connected = call_.Write(request))) break;
      }
      if (!connected || !chunks.empty()) continue;
      if (last) break;
      if (!follow_) {
        last = true;
        continue;
      }
      connected = call_.Wait(
          std::max<std::chrono::milliseconds>(kLookAgain, serving_.load() * kLookAgainPerStream),
          stop_following_);
      // What was written before the end was asked for is read once more.
      if (stop_following_) follow_ = false;
    }
    std::string problem = reader_.problem();
    if (problem.empty() && unfinished_)
      problem = "what its ranks wrote last is not in its log files yet: its disk may hang";
    if (connected && !problem.empty()) {
      request.clear_chunk();
      request.set_problem(std::move(problem));
      call_.Write(request);
    }
  }

  Call call_;
  const std::uint64_t stream_;
  bool follow_;  // Thread.
  std::atomic<bool> stop_following_ = false, unfinished_ = false;
  LogSelectionReader reader_;
  std::atomic<int>& serving_;
  const std::string refusal_;
  std::atomic<bool> finished_ = false;
  std::thread thread_;
};

LogStreams::LogStreams(std::string log_root) : log_root_(std::move(log_root)) {}
LogStreams::~LogStreams() = default;

void LogStreams::Open(const Connection& connection, const NodeId& node, const std::string& name,
                      const v1::OpenLogs& asked, bool unfinished) {
  std::erase_if(feeders_, [](const auto& entry) { return entry.second->finished(); });
  const auto known = feeders_.find(asked.stream_id());
  if (known != feeders_.end()) {
    if (unfinished) known->second->SayUnfinished();
    if (!asked.selection().follow()) known->second->StopFollowing();
    return;
  }
  // Not opening it says as much as opening one that carries nothing; the coordinator waits for
  // neither for long.
  const std::string& only = asked.selection().node();
  if (!only.empty() && only != name && only != node.value()) return;
  if (feeders_.size() >= kMaxStreams + kMaxRefusals) return;
  std::string refusal;
  if (feeders_.size() >= kMaxStreams)
    refusal = absl::StrCat("its agent serves ", kMaxStreams, " readers of logs already");
  feeders_.emplace(asked.stream_id(),
                   std::make_unique<Feeder>(connection, log_root_, name, asked, unfinished,
                                            serving_, std::move(refusal)));
}

}  // namespace regroup::agent
