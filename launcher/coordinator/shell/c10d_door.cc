#include "launcher/coordinator/shell/c10d_door.h"

#include <fcntl.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"
#include "common/io/spawn.h"
#include "common/io/unix_socket.h"

namespace regroup::coordinator {
namespace {

constexpr int kBacklog = 4096;  // All of a large job's torchruns may come before it has started.

}  // namespace

void C10dDoor::Admit(io::UniqueFd client) {
  absl::Status passed = PassOn(client);
  if (absl::IsUnavailable(passed) || absl::IsNotFound(passed)) {
    passed = StartHost();
    if (passed.ok()) passed = PassOn(client);
  }
  if (!passed.ok()) {
    log_.Warning("a torchrun could not be let in", {{"because", std::string(passed.message())}});
  }
}

absl::Status C10dDoor::PassOn(const io::UniqueFd& client) {
  ASSIGN_OR_RETURN(const io::UniqueFd socket,
                   io::ConnectUnix(absl::StrCat(folder_, "/", kC10dSocketName)));
  return io::SendFd(socket.get(), client.get());
}

absl::Status C10dDoor::StartHost() {
  ASSIGN_OR_RETURN(const io::UniqueFd listener,
                   io::ListenUnix(absl::StrCat(folder_, "/", kC10dSocketName), kBacklog));
  const std::string path = absl::StrCat(folder_, "/", kC10dLogName);
  ASSIGN_OR_RETURN(const io::UniqueFd log,
                   io::OpenRegular(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND));
  ASSIGN_OR_RETURN(const pid_t pid,
                   io::SpawnDetached(absl::StrCat(io::ProgramFolder(), "/regroup-shim"), {"--c10d"},
                                     log.get(), listener.get()));
  log_.Info("a process for torchrun's connections was started", {{"pid", std::to_string(pid)}});
  return absl::OkStatus();
}

}  // namespace regroup::coordinator
