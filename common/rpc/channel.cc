#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <algorithm>
#include <filesystem>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/io/address.h"
#include "common/io/files.h"
#include "common/io/unix_socket.h"

namespace regroup {
namespace {

int Milliseconds(Duration duration) {
  return static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(duration).count());
}

grpc::ChannelArguments Arguments(const DialOptions& options, bool loopback) {
  grpc::ChannelArguments arguments = TransportArguments(options);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(options.first_backoff));
  // gRPC's name for how long one attempt to connect may take.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, Milliseconds(options.connect_limit));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS,
                   Milliseconds(loopback ? options.first_backoff
                                         : std::max(options.first_backoff, options.max_backoff)));
  return arguments;
}

}  // namespace

grpc::ChannelArguments TransportArguments(const DialOptions& options) {
  grpc::ChannelArguments arguments;
  // server.cc says why. Lists and logs come this way.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 20);
  // Keepalive stays off: sessions have heartbeats of their own, other calls have deadlines.
  arguments.SetMaxReceiveMessageSize(options.max_receive_bytes);
  return arguments;
}

Connection Dial(const Address& address, const DialOptions& options) {
  CHECK(io::IsIp(address.host));
  const bool v6 = address.host.find(':') != std::string::npos;
  Connection connection;
  connection.target = io::FormatAddress(address);
  // A zone's percent sign has to be written as an escape in a URI.
  std::string literal = connection.target;
  if (const std::size_t zone = literal.find('%'); zone != std::string::npos)
    literal.insert(zone + 1, "25");
  connection.channel = grpc::CreateCustomChannel((v6 ? "ipv6:" : "ipv4:") + literal,
                                                 grpc::InsecureChannelCredentials(),
                                                 Arguments(options, io::IsLoopback(address.host)));
  return connection;
}

absl::StatusOr<Connection> DialUnix(const std::string& path, const DialOptions& options) {
  const std::filesystem::path file(path);
  const std::string directory = file.parent_path().empty() ? "." : file.parent_path().string();
  ASSIGN_OR_RETURN(io::UniqueFd opened, io::OpenDirectory(directory));
  auto keep = std::make_shared<io::UniqueFd>(std::move(opened));
  Connection connection;
  connection.target = path;
  connection.channel = grpc::CreateCustomChannel(
      "unix:" + io::ShortSocketPath(keep->get(), file.filename().string()),
      grpc::InsecureChannelCredentials(), Arguments(options, true));
  connection.keep = std::move(keep);
  return connection;
}

}  // namespace regroup
