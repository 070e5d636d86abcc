#include "common/rpc/server.h"

#include <grpcpp/resource_quota.h>

#include <limits>

#include "common/rpc/channel.h"

namespace regroup {

void ConfigureServer(grpc::ServerBuilder& builder) {
  constexpr std::size_t kMaxBufferBytes = 512u << 20;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  // A probe is a ping and its answer behind what was read: of an agent that beats once a second it
  // doubles what its session costs. The window that it would have found is given here.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  // Each read would put the timer of the next keepalive off, two hours from then. Sessions have
  // heartbeats, other calls deadlines.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, std::numeric_limits<int>::max());
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 256 << 10);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  // A message that is packed would be unpacked, and nothing asks how large it has become. So it
  // stays as it is; who reads it refuses it.
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0);
  builder.SetMaxReceiveMessageSize(kMaxAgentMessageBytes);
  builder.SetMaxSendMessageSize(kMaxReplyBytes);
  grpc::ResourceQuota quota("regroup");
  quota.Resize(kMaxBufferBytes);
  builder.SetResourceQuota(quota);
}

}  // namespace regroup
