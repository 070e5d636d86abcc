#include "launcher/cli/commands/places.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/agent_config.h"
#include "common/config/flags.h"
#include "common/config/network_rule.h"
#include "common/config/state_dir.h"
#include "common/config/text.h"
#include "common/config/token.h"
#include "common/config/values.h"
#include "common/rpc/local_coordinator.h"
#include "common/rpc/places.h"

namespace regroup::cli {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";
constexpr std::string_view kFolderPrefix = "coordinator-";

bool IsDirectory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Place PlaceOfFolder(const std::string& folder) {
  return {folder, Cat(folder, "/", kCoordinatorSocketName), std::nullopt, folder};
}

absl::StatusOr<Place> PlaceOfPath(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  if (IsDirectory(path)) return PlaceOfFolder(path);
  std::string folder = path.substr(0, path.find_last_of('/'));
  bool of_coordinator = folder.substr(folder.find_last_of('/') + 1).rfind(kFolderPrefix, 0) == 0;
  if (of_coordinator)
    return PlaceOfFolder(folder);  // Its journal can be read when nobody serves it.
  return Place{"", path, std::nullopt, path};
}

// On its own host a coordinator is asked by its socket, which needs no token: it knows whose a
// caller is. Where none runs here, a folder of that port has what it has left.
absl::StatusOr<Place> PlaceOfEndpoint(const ReadOptions& options, const Endpoint& endpoint,
                                      std::string_view command) {
  ASSIGN_OR_RETURN(std::string token, GivenToken(options.token_file));
  const std::string line = Cat(command, " --coordinator ", options.coordinator);
  Place place{"", "", endpoint, FormatEndpoint(endpoint.host, endpoint.port)};
  place.token = token;
  place.insecure = options.insecure;
  place.command = line;
  if (std::optional<LocalCoordinator> local =
          FindLocalCoordinator({endpoint.host, endpoint.port})) {
    place.folder = local->folder;
    place.socket = local->Socket();
    return place;
  }
  const absl::Status allowed = CheckNetworkRule(endpoint, options.insecure, token, line);
  if (!allowed.ok()) {
    const UserErrorParts parts = PartsOf(allowed);
    return UserError(
        allowed.code(), parts.what,
        Cat(parts.because, "; the coordinator's own user needs nothing on its host, or ",
            "--state-dir DIRECTORY there"),
        parts.try_this);
  }
  if (!IsLoopback(endpoint.host)) return place;
  ASSIGN_OR_RETURN(std::vector<std::string> directories, StateDirectories(options));
  for (const std::string& directory : directories) {
    std::string folder = CoordinatorFolder(directory, endpoint.port);
    if (!IsDirectory(folder)) continue;
    place.folder = folder;
    place.socket = Cat(folder, "/", kCoordinatorSocketName);
    break;
  }
  return place;
}

absl::StatusOr<Place> PlaceOf(const ReadOptions& options, std::string_view name,
                              std::string_view command) {
  const bool prefixed = name.starts_with(kUnixPrefix);
  if (prefixed) name.remove_prefix(kUnixPrefix.size());
  if (prefixed || name.find('/') != std::string_view::npos) return PlaceOfPath(std::string(name));
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(name);
  if (!endpoint.ok()) return AtField("--coordinator", endpoint.status());
  return PlaceOfEndpoint(options, *endpoint, command);
}

}  // namespace

std::string Place::state_dir() const {
  return folder.empty() ? "" : folder.substr(0, folder.find_last_of('/'));
}

void DescribeFlags(CLI::App& app, ReadOptions& options, std::string_view json) {
  AddText(app, "--coordinator", options.coordinator,
          "coordinator to ask: HOST[:PORT], or the path of its socket or folder; up to 8 with "
          "commas, tried in turn; none: all in the state directory",
          "ADDRESS");
  AddText(app, "--state-dir", options.state_dir,
          "where runs and coordinators of this host are looked for", "DIRECTORY");
  AddTokenFile(app, options.token_file);
  AddSwitch(app, "--insecure", options.insecure,
            "dial without a token, a coordinator that takes everybody");
  AddSwitch(app, "--json", options.json, json);
}

absl::StatusOr<std::vector<std::string>> StateDirectories(const ReadOptions& options) {
  ASSIGN_OR_RETURN(StateDirectory own, DefaultStateDirectory(options.state_dir, false));
  std::vector<std::string> directories = {own.path};
  const std::string service = "/var/lib/regroup";
  bool readable = options.state_dir.empty() && ::access(service.c_str(), R_OK | X_OK) == 0;
  if (readable && own.path != service) directories.push_back(service);
  return directories;
}

absl::StatusOr<std::vector<Place>> FindPlaces(const ReadOptions& options,
                                              std::string_view command) {
  std::vector<Place> places;
  if (!options.coordinator.empty()) {
    const std::vector<std::string> names = absl::StrSplit(options.coordinator, ',');
    if (names.size() > kMaxCoordinators) {
      return UserError(
          absl::StatusCode::kInvalidArgument, Cat("--coordinator: ", names.size(), " addresses"),
          Cat("at most ", kMaxCoordinators, " are tried in turn"), "--coordinator HOST1,HOST2");
    }
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(Place place, PlaceOf(options, name, command));
      places.push_back(std::move(place));
    }
    return places;
  }
  ASSIGN_OR_RETURN(std::vector<std::string> directories, StateDirectories(options));
  for (const std::string& directory : directories) {
    std::vector<std::string> folders;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      if (entry.path().filename().string().rfind(kFolderPrefix, 0) == 0 &&
          entry.is_directory(error)) {
        folders.push_back(entry.path().string());
      }
    }
    std::sort(folders.begin(), folders.end());
    for (const std::string& folder : folders) places.push_back(PlaceOfFolder(folder));
  }
  return places;
}

}  // namespace regroup::cli
