#include "agent/shell/node_folder.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"

namespace regroup::agent {
namespace {

using nlohmann::json;

constexpr char kLockName[] = "lock", kNodeFile[] = "node.json";
constexpr int kMaxFolders = 1024;
constexpr std::size_t kMaxFileBytes = 64 << 10;
constexpr std::size_t kIdBytes = 16;

}  // namespace

absl::StatusOr<NodeFolder> NodeFolder::Take(const std::string& state_dir, io::Durability durability,
                                            const std::function<bool(const NodeId&)>& usable) {
  for (int k = 0; k < kMaxFolders; ++k) {
    const std::string path = absl::StrCat(state_dir, "/node-", k);
    RETURN_IF_ERROR(io::MakePrivateDirectory(path));
    absl::StatusOr<io::FileLock> lock =
        io::FileLock::TryAcquire(absl::StrCat(path, "/", kLockName));
    if (absl::IsUnavailable(lock.status())) continue;
    RETURN_IF_ERROR(lock.status());
    NodeFolder folder(path, *std::move(lock), durability);
    RETURN_IF_ERROR(folder.Load());
    if (!usable(folder.node_)) continue;
    folder.incarnation_ = folder.incarnation_.Next();
    RETURN_IF_ERROR(folder.Save());
    return folder;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("all of node-0 to node-", kMaxFolders - 1, " in ", state_dir, " are in use"));
}

absl::Status NodeFolder::Load() {
  absl::StatusOr<std::string> text =
      io::ReadFile(absl::StrCat(path_, "/", kNodeFile), kMaxFileBytes);
  if (absl::IsNotFound(text.status())) {
    node_ = NodeId(io::RandomHex(kIdBytes));
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(text.status());
  const json file = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const auto text_of = [&file](const char* name) -> std::optional<std::string> {
    const auto found = file.find(name);
    if (found == file.end() || !found->is_string()) return std::nullopt;
    return found->get<std::string>();
  };
  const auto number_of = [&file](const char* name) -> std::uint64_t {
    const auto found = file.find(name);
    return found != file.end() && found->is_number_unsigned() ? found->get<std::uint64_t>() : 0;
  };
  if (!file.is_object() || !text_of("node") || text_of("node")->empty()) {
    return UserError(absl::StatusCode::kDataLoss,
                     absl::StrCat("the node's file ", path_, "/", kNodeFile, " is damaged"),
                     "it does not say which node this is",
                     absl::StrCat("restore it, or remove ", path_, " to make this a new node"));
  }
  node_ = NodeId(*text_of("node"));
  incarnation_ = Incarnation(number_of("incarnation"));
  cluster_ = ClusterId(text_of("cluster").value_or(""));
  epoch_ = Epoch(number_of("highest_epoch"));
  return absl::OkStatus();
}

absl::Status NodeFolder::Save() const {
  const json file = {{"node", node_.value()},
                     {"incarnation", incarnation_.value()},
                     {"cluster", cluster_.value()},
                     {"highest_epoch", epoch_.value()}};
  const absl::Status written =
      io::ReplaceFile(absl::StrCat(path_, "/", kNodeFile), file.dump(2) + "\n", durability_);
  if (written.ok()) return written;
  return UserError(written.code(), absl::StrCat("this node cannot keep its state in ", path_),
                   std::string(written.message()),
                   absl::StrCat("df ", path_, ", or --state-dir DIRECTORY"));
}

absl::Status NodeFolder::Remember(const ClusterId& cluster, Epoch epoch) {
  cluster_ = cluster;
  epoch_ = epoch;
  return Save();
}

}  // namespace regroup::agent
