#include "common/rpc/server.h"

#include <grpcpp/resource_quota.h>

#include "common/rpc/channel.h"

namespace regroup {

void ConfigureServer(grpc::ServerBuilder& builder) {
  constexpr std::size_t kMaxBufferBytes = 512u << 20;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 60'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 256);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  builder.SetMaxReceiveMessageSize(kMaxAgentMessageBytes);
  builder.SetMaxSendMessageSize(kMaxReplyBytes);
  grpc::ResourceQuota quota("regroup");
  quota.Resize(kMaxBufferBytes);
  builder.SetResourceQuota(quota);
}

}  // namespace regroup
