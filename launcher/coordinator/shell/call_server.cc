#include "launcher/coordinator/shell/call_server.h"

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>
#include <grpcpp/support/time.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/convert.h"

namespace regroup::coordinator {
namespace {

constexpr int kFewLooks = 8, kMostLooks = 128;
constexpr int kShortPauses = 32;                  // After a message of a call that is watched.
constexpr std::string_view kUnreadable = "\xff";  // Of any kind.
// The details of a status, where gRPC's C++ clients look for them.
constexpr char kStatusDetails[] = "grpc-status-details-bin";

std::string_view Text(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

grpc_slice Borrowed(std::string_view text) {
  return grpc_slice_from_static_buffer(text.data(), text.size());
}

}  // namespace

// Operations that are started together and end as one event. What they point to is copied as they
// start, but for what a call owns.
class ServerCall::Batch {
 public:
  grpc_op& Add(grpc_op_type type) {
    CHECK(count_ < ops_.size());
    grpc_op& op = ops_[count_++];
    op = {};
    op.op = type;
    return op;
  }
  void Start(grpc_call* call, Tag& tag) {
    CHECK(grpc_call_start_batch(call, ops_.data(), count_, &tag, nullptr) == GRPC_CALL_OK);
  }

 private:
  std::array<grpc_op, 3> ops_;
  std::size_t count_ = 0;
};

ServerCall::ServerCall() {
  grpc_call_details_init(&details_);
  grpc_metadata_array_init(&metadata_);
}

ServerCall::~ServerCall() {
  handler_.reset();
  grpc_byte_buffer_destroy(incoming_);
  grpc_byte_buffer_destroy(outgoing_);
  grpc_metadata_array_destroy(&metadata_);
  grpc_call_details_destroy(&details_);
  if (call_ != nullptr) grpc_call_unref(call_);
}

std::string_view ServerCall::method() const { return Text(details_.method); }

std::string ServerCall::peer() const {
  char* const name = grpc_call_get_peer(call_);
  std::string peer(name);
  gpr_free(name);
  return peer;
}

std::chrono::system_clock::time_point ServerCall::deadline() const {
  return grpc::Timespec2Timepoint(details_.deadline);
}

void ServerCall::Watch() {
  ++awaited_;
  watched_ = true;
  Batch batch;
  batch.Add(GRPC_OP_RECV_CLOSE_ON_SERVER).data.recv_close_on_server.cancelled = &cancelled_;
  batch.Start(call_, over_);
}

void ServerCall::Read() {
  ++awaited_;
  Batch batch;
  batch.Add(GRPC_OP_RECV_MESSAGE).data.recv_message.recv_message = &incoming_;
  batch.Start(call_, read_);
}

void ServerCall::Send(Batch& batch, const grpc::Slice* message) {
  if (!std::exchange(begun_, true)) batch.Add(GRPC_OP_SEND_INITIAL_METADATA);
  if (message == nullptr) return;
  grpc_slice bytes = message->c_slice();
  outgoing_ = grpc_raw_byte_buffer_create(&bytes, 1);
  grpc_slice_unref(bytes);
  batch.Add(GRPC_OP_SEND_MESSAGE).data.send_message.send_message = outgoing_;
}

void ServerCall::Write(const grpc::Slice& message) {
  ++awaited_;
  Batch batch;
  Send(batch, &message);
  batch.Start(call_, written_);
}

void ServerCall::Finish(const grpc::Status& status) {
  const std::string text = status.error_message(), details = status.error_details();
  grpc_slice shown = Borrowed(text);
  grpc_metadata last = {};
  last.key = Borrowed(kStatusDetails);
  last.value = grpc_slice_from_copied_buffer(details.data(), details.size());
  Batch batch;
  Send(batch, nullptr);
  auto& op = batch.Add(GRPC_OP_SEND_STATUS_FROM_SERVER).data.send_status_from_server;
  op.status = static_cast<grpc_status_code>(status.error_code());
  op.status_details = text.empty() ? nullptr : &shown;
  op.trailing_metadata_count = details.empty() ? 0 : 1;
  op.trailing_metadata = &last;
  batch.Start(call_, finished_);
  grpc_slice_unref(last.value);
}

void ServerCall::Refuse(const absl::Status& why) { Finish(ToGrpcStatus(why)); }

void ServerCall::Reply(const grpc::Slice& message) {
  Batch batch;
  Send(batch, &message);
  batch.Add(GRPC_OP_SEND_STATUS_FROM_SERVER).data.send_status_from_server.status = GRPC_STATUS_OK;
  batch.Start(call_, finished_);
}

void ServerCall::Cancel() {
  grpc_call_cancel_with_status(call_, GRPC_STATUS_CANCELLED, "cut by the coordinator", nullptr);
}

bool ServerCall::On(Event event, bool ok) {
  switch (event) {
    case Event::kRead: HearRead(ok); break;
    case Event::kWritten:
      grpc_byte_buffer_destroy(std::exchange(outgoing_, nullptr));
      if (handler_) handler_->OnWritten(ok);
      break;
    case Event::kOver:
      if (handler_ && cancelled_ != 0) handler_->OnCancelled();
      break;
    case Event::kFinished: break;
    case Event::kOpened: return true;  // It never was: the server stops.
  }
  return --awaited_ == 0;
}

// From the handler's call on another Read may write to incoming_.
void ServerCall::HearRead(bool ok) {
  grpc_byte_buffer* const message = std::exchange(incoming_, nullptr);
  grpc_byte_buffer_reader reader;
  const bool whole =
      ok && message != nullptr && grpc_byte_buffer_reader_init(&reader, message) != 0;
  const bool packed = whole && message->data.raw.compression != GRPC_COMPRESS_NONE;
  grpc_slice bytes = grpc_empty_slice();
  if (whole) {
    bytes = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
  }
  grpc_byte_buffer_destroy(message);
  if (handler_)
    handler_->OnRead(whole ? std::optional(packed ? kUnreadable : Text(bytes)) : std::nullopt);
  grpc_slice_unref(bytes);
}

CallServer::~CallServer() { CHECK(!thread_.joinable()); }

void CallServer::Start(grpc::ServerBuilder& builder) {
  builder.RegisterAsyncGenericService(
      &all_methods_);  // Else gRPC refuses those that it is not told.
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr);  // It binds nothing: it can't fail.
  const grpc_completion_queue_attributes unpolled = {GRPC_CQ_CURRENT_VERSION, GRPC_CQ_NEXT,
                                                     GRPC_CQ_NON_POLLING, nullptr};
  grpc_channel* const nowhere =
      grpc_lame_client_channel_create("nowhere", GRPC_STATUS_UNAVAILABLE, "nothing is sent");
  for (auto& [queue, marker] : apart_) {
    queue = grpc_completion_queue_create(grpc_completion_queue_factory_lookup(&unpolled), &unpolled,
                                         nullptr);
    marker = grpc_channel_create_call(nowhere, nullptr, 0, queue, Borrowed("/marker"), nullptr,
                                      gpr_inf_future(GPR_CLOCK_REALTIME), nullptr);
  }
  grpc_channel_destroy(nowhere);  // Once its calls are.
  Await();
  thread_ = std::thread([this] { Serve(); });
}

void CallServer::Stop(std::chrono::system_clock::time_point deadline) {
  server_->Shutdown(deadline);
  // A call that is cancelled, and not finished yet, keeps neither gRPC's server nor its queue.
  while (const int calls = calls_) calls_.wait(calls);
  queue_->Shutdown();
  thread_.join();
  for (const auto& [queue, marker] : apart_) {
    grpc_call_unref(marker);
    grpc_completion_queue_shutdown(queue);
    CHECK(!Hear(queue, gpr_inf_future(GPR_CLOCK_REALTIME)));
    grpc_completion_queue_destroy(queue);
  }
}

void CallServer::Await() {
  auto* call = new ServerCall;
  call->apart_ = ++calls_ > many_;
  grpc_completion_queue* const queue =
      call->apart_ ? apart_[opened_apart_++ % apart_.size()].queue : queue_->cq();
  CHECK(grpc_server_request_call(server_->c_server(), &call->call_, &call->details_,
                                 &call->metadata_, queue, queue_->cq(),
                                 &call->opened_) == GRPC_CALL_OK);
}

void CallServer::Serve() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  for (;;) {
    if (calls_apart_ > 0) {
      HearMany();
    } else if (!Hear(queue_->cq(), gpr_inf_future(GPR_CLOCK_REALTIME))) {
      return;
    }
  }
}

// Where calls are opened there is more to read than is heard of here, so it doesn't pause.
void CallServer::HearMany() {
  const std::size_t opened = opened_;
  const int looks = looks_;
  int heard = 0;
  for (int i = 0; i < looks; ++i)
    heard += Hear(queue_->cq(), gpr_inf_past(GPR_CLOCK_REALTIME)) ? 1 : 0;
  for (const auto& [queue, marker] : apart_) {
    CHECK(grpc_call_start_batch(marker, nullptr, 0, nullptr, nullptr) == GRPC_CALL_OK);
    while (Hear(queue, gpr_inf_future(GPR_CLOCK_REALTIME))) ++heard;
  }
  looks_ = std::clamp(heard + kFewLooks, kFewLooks, kMostLooks);
  if (heard >= looks || opened != opened_) return;
  const bool is_short = short_pauses_ > 0;
  if (is_short) --short_pauses_;
  std::this_thread::sleep_for(is_short ? kPauseForStreams : kPauseForMore);
}

bool CallServer::Hear(grpc_completion_queue* queue, gpr_timespec deadline) {
  const grpc_event heard = grpc_completion_queue_next(queue, deadline, nullptr);
  if (heard.type != GRPC_OP_COMPLETE || heard.tag == nullptr) return false;
  const ServerCall::Tag& tag = *static_cast<ServerCall::Tag*>(heard.tag);
  ServerCall* const call = tag.call;
  using Event = ServerCall::Event;
  if (call->watched_ && (tag.event == Event::kRead || tag.event == Event::kWritten))
    short_pauses_ = kShortPauses;
  if (tag.event == Event::kOpened && heard.success != 0) {
    ++opened_;
    if (call->apart_) ++calls_apart_;
    Await();
    call->handler_ = open_(*call);
  } else if (call->On(tag.event, heard.success != 0)) {
    if (call->apart_ && tag.event != Event::kOpened) --calls_apart_;
    delete call;
    if (--calls_ == 0) calls_.notify_all();
  }
  return true;
}

grpc::Slice Serialised(const google::protobuf::MessageLite& message) {
  const std::size_t size = message.ByteSizeLong();
  grpc_slice bytes = grpc_slice_malloc(size);
  CHECK(message.SerializeToArray(GRPC_SLICE_START_PTR(bytes), static_cast<int>(size)));
  return grpc::Slice(bytes, grpc::Slice::STEAL_REF);
}

bool Parse(std::string_view bytes, google::protobuf::MessageLite& message) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace regroup::coordinator
