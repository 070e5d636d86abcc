#pragma once

// The server's side of gRPC: every call of every method on one thread, by gRPC's core
// (grpc/grpc.h). Its C++ interfaces watch each call for its end by one more operation than is
// needed here, and the threads of the callback interface wake each other.
//
// A call that is opened while there are kManyCalls is one apart: it has one of eight more queues,
// which poll nothing, for Debian's gRPC searches all operations under way on a queue for each that
// ends. With one queue that was a fifth of what 10,000 sessions cost. As long as such a call lives,
// the thread does as network cards do that moderate their interrupts: it takes what has come, then
// pauses. To sleep and be woken for each message costs more than to hear it.
//
// A call is raw bytes here. Its handler hears of it on the server's thread; what is asked of it may
// be asked from any, one of a kind at a time.

#include <grpc/grpc.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include <google/protobuf/message_lite.h>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"

namespace regroup::coordinator {

inline constexpr int kManyCalls = 1024;
inline constexpr std::chrono::microseconds kPauseForMore(2'000);
// Instead of it, while messages of calls that are watched come and go: each waits for the one
// before.
inline constexpr std::chrono::microseconds kPauseForStreams(100);

// What a call tells. On the server's thread, for which every other call waits: none may block.
// While there are calls apart, it tells what has happened up to a pause later.
class CallHandler {
 public:
  // gRPC has done with the call, and ServerCall goes with this.
  virtual ~CallHandler() = default;
  // Of a Read. None: nothing comes any more, since the caller has half-closed or the call is over.
  virtual void OnRead(std::optional<std::string_view> message) = 0;
  virtual void OnWritten(bool /*ok*/) {}
  // Of a call that is watched, which was over before all of it was sent: the caller left, its
  // deadline passed, its connection broke, or it was cancelled here. Once at most, also after
  // Finish. What is in flight then fails.
  virtual void OnCancelled() {}
};

// Lives until it was finished and all that was asked of it is over.
class ServerCall {
 public:
  ~ServerCall();
  ServerCall(const ServerCall&) = delete;
  ServerCall& operator=(const ServerCall&) = delete;

  std::string_view method() const;  // "/regroup.v1.Coordinator/Read".
  std::string peer() const;         // As gRPC names it.
  // time_point::max(): none.
  std::chrono::system_clock::time_point deadline() const;

  // As it is opened: OnCancelled is wanted. A handler that always has a Read in flight hears of the
  // end by that, at half of the cost.
  void Watch();
  // Before Finish. One of each may be in flight.
  void Read();
  void Write(const grpc::Slice& message);
  // Once, with no Write in flight; a Read fails by it. Whoever calls this may not use the call
  // again.
  void Finish(const grpc::Status& status);
  // The same on the server's thread, of a call that only its handler knows yet, if any.
  void Refuse(const absl::Status& why);
  // The same of a call that has one reply.
  void Reply(const grpc::Slice& message);
  // Best effort. Also after Finish, while the handler lives.
  void Cancel();

 private:
  friend class CallServer;
  enum class Event { kOpened, kRead, kWritten, kFinished, kOver };
  struct Tag {
    ServerCall* call;
    Event event;
  };
  class Batch;

  ServerCall();
  bool On(Event event, bool ok);  // Whether it was the last.
  void HearRead(bool ok);
  void Send(Batch& batch, const grpc::Slice* message);

  grpc_call* call_ = nullptr;  // Owned, as are the next ones.
  grpc_call_details details_;
  grpc_metadata_array metadata_;
  grpc_byte_buffer *incoming_ = nullptr, *outgoing_ = nullptr;
  bool begun_ = false;  // Something was sent.
  int cancelled_ = 0;
  bool apart_ = false, watched_ = false;
  std::unique_ptr<CallHandler> handler_;
  std::atomic<int> awaited_{1};  // Events, before nothing of it is used: kFinished, and others.
  Tag opened_{this, Event::kOpened}, read_{this, Event::kRead}, written_{this, Event::kWritten},
      finished_{this, Event::kFinished}, over_{this, Event::kOver};
};

class CallServer {
 public:
  // Of a new call, on the server's thread. Null: it was finished there and then.
  using Open = std::function<std::unique_ptr<CallHandler>(ServerCall& call)>;

  // `many`: so many calls live at a time before one is apart, the one that is awaited included.
  explicit CallServer(Open open, int many = kManyCalls) : open_(std::move(open)), many_(many) {}
  ~CallServer();  // REQUIRES: Stop has returned, or Start was never called.
  CallServer(const CallServer&) = delete;
  CallServer& operator=(const CallServer&) = delete;

  // `builder` is configured, and has no service.
  void Start(grpc::ServerBuilder& builder);
  // Takes no more calls, cancels what is not over by `deadline`, and returns once all are: each has
  // to be finished by then or as it is cancelled.
  void Stop(std::chrono::system_clock::time_point deadline);

  // Of calls that are watched only: no others end there as they do over a socket.
  std::shared_ptr<grpc::Channel> InProcessChannel() { return server_->InProcessChannel({}); }

 private:
  void Await();
  void Serve();
  // The next event of a queue, once it has happened. False: it is a marker, nothing has happened by
  // `deadline`, or the queue is shut down.
  bool Hear(grpc_completion_queue* queue, gpr_timespec deadline);
  // What has happened of calls apart, and of others as much as looks_ allows; then the pause.
  void HearMany();

  // Made by Start, of the server's thread, and gone with Stop. What ends on this queue is found by
  // whoever polls queue_. `marker` is a call to nowhere: each batch of nothing ends at once, so
  // that whoever has come to it has heard all that was there, and did not ask an empty queue, which
  // waits whatever the deadline is.
  struct Apart {
    grpc_completion_queue* queue;
    grpc_call* marker;
  };

  const Open open_;
  const int many_;
  grpc::AsyncGenericService all_methods_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::array<Apart, 8> apart_{};
  std::unique_ptr<grpc::Server> server_;
  std::atomic<int> calls_ = 0;  // Those that live, and the one that is awaited.
  // Of the server's thread.
  std::size_t opened_ = 0, opened_apart_ = 0;  // So far.
  int calls_apart_ = 0;
  int looks_ = 0;         // At sockets: each takes what one has that has something.
  int short_pauses_ = 0;  // Still to come.
  std::thread thread_;
};

// REQUIRES: it is ours, and below 2 GiB.
grpc::Slice Serialised(const google::protobuf::MessageLite& message);
// False: these bytes are no such message.
[[nodiscard]] bool Parse(std::string_view bytes, google::protobuf::MessageLite& message);

}  // namespace regroup::coordinator
