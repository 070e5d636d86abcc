#include "agent/shell/session.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <boost/asio/post.hpp>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "proto/coordinator.grpc.pb.h"

namespace regroup::agent {

class Session::Call final
    : public grpc::ClientBidiReactor<v1::AgentMessage, v1::CoordinatorMessage>,
      public std::enable_shared_from_this<Call> {
 public:
  Call(boost::asio::io_context& loop, const Connection& connection, Handler handler)
      : loop_(loop),
        connection_(connection),
        stub_(v1::Coordinator::NewStub(connection.channel)),
        handler_(std::move(handler)) {}

  void Start() {
    self_ = shared_from_this();
    context_.set_wait_for_ready(false);
    stub_->async()->Session(&context_, this);
    AddHold();  // Writes start outside of reactions.
    StartRead(&incoming_);
    StartCall();
  }
  void Send(v1::AgentMessage message) {
    if (closing_) return;
    if (queue_.size() >= kMaxQueued) {
      Cancel();
      return;
    }
    queue_.push_back(std::move(message));
    WriteNext();
  }
  void Finish() {
    finish_ = true;
    WriteNext();
  }
  void Forget() {
    handler_ = {};
    Cancel();
  }
  std::size_t queued() const { return queue_.size(); }

  // gRPC's threads. The posted handlers keep the call alive.
  void OnReadDone(bool ok) override {
    boost::asio::post(loop_, [call = shared_from_this(), ok] { call->HandleRead(ok); });
  }
  void OnWriteDone(bool ok) override {
    boost::asio::post(loop_, [call = shared_from_this(), ok] { call->HandleWrite(ok); });
  }
  void OnDone(const grpc::Status& status) override {
    boost::asio::post(loop_, [call = std::move(self_), status] { call->HandleDone(status); });
  }

 private:
  void HandleRead(bool ok) {
    if (!ok) {
      read_all_ = closing_ = true;
      return ReleaseIfOver();
    }
    v1::CoordinatorMessage message = std::move(incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
    // A copy: the handler may give up this session, and with it the function it runs in.
    if (auto handle = handler_.message) handle(std::move(message));
  }
  void HandleWrite(bool ok) {
    writing_ = false;
    if (!ok) {
      closing_ = true;
    } else if (!queue_.empty()) {
      queue_.pop_front();
    }
    WriteNext();
    ReleaseIfOver();
  }
  void HandleDone(const grpc::Status& status) {
    closing_ = true;
    absl::Status why = status.ok() ? absl::UnavailableError("the coordinator ended the session")
                                   : FromGrpcStatus(status);
    if (auto broken = std::exchange(handler_, {}).broken) broken(std::move(why));
  }
  void WriteNext() {
    if (writing_ || closing_) return;
    if (!queue_.empty()) {
      writing_ = true;
      StartWrite(&queue_.front());
    } else if (finish_) {
      closing_ = true;
      StartWritesDone();  // Reads go on until their side ends too.
    }
  }
  void Cancel() {
    closing_ = true;
    context_.TryCancel();  // The read in flight fails.
  }
  // gRPC tells the end of a stream only once all that came before it is read: who stops reading at
  // a failed write may never hear that the session was cut. So the hold stays until a read fails.
  void ReleaseIfOver() {
    if (read_all_ && !writing_) RemoveHold();
  }

  boost::asio::io_context& loop_;
  Connection connection_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
  grpc::ClientContext context_;
  Handler handler_;
  std::shared_ptr<Call> self_;  // gRPC's share, until OnDone.
  v1::CoordinatorMessage incoming_;
  std::deque<v1::AgentMessage> queue_;  // The front one is being written while `writing_`.
  bool writing_ = false;
  bool closing_ = false;  // Nothing more is written.
  bool finish_ = false;
  bool read_all_ = false;  // The last read has failed; none follows.
};

Session::Session(boost::asio::io_context& loop, const Connection& connection, Handler handler)
    : call_(std::make_shared<Call>(loop, connection, std::move(handler))) {
  call_->Start();
}

Session::~Session() { call_->Forget(); }

void Session::Send(v1::AgentMessage message) { call_->Send(std::move(message)); }
std::size_t Session::queued() const { return call_->queued(); }
void Session::Finish() { call_->Finish(); }

}  // namespace regroup::agent
