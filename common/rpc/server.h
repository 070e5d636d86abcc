#pragma once

#include <grpcpp/server_builder.h>

namespace regroup {

// What every gRPC server of Regroup sets: no SO_REUSEPORT (a second server on the port must fail),
// an unfinished handshake is closed after 5 s, a connection without calls after 60 s, bounded
// messages, metadata, streams per connection and memory, nothing packed.
void ConfigureServer(grpc::ServerBuilder& builder);

}  // namespace regroup
