#pragma once

// Where coordinators are, or were: what --coordinator names, else the folders in the state
// directories.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/launch_config.h"

namespace CLI {
class App;
}

namespace regroup::cli {

// Flags that every reading command has.
struct ReadOptions {
  std::string coordinator;  // HOST[:PORT], unix:PATH, the path of a socket or of a coordinator's
                            // folder; up to kMaxCoordinators of them with commas.
  std::string state_dir;
  std::string token_file;
  bool insecure = false;
  bool json = false;
};
void DescribeFlags(CLI::App& app, ReadOptions& options,
                   std::string_view json = "one JSON object instead of text");

struct Place {
  std::string
      folder;  // coordinator-<port> or coordinator-local; empty when only an address is known.
  std::string socket;  // Unix socket, when it may be dialled.
  std::optional<Endpoint> tcp;
  std::string label;              // For people.
  std::string token = {};         // That is proved over TCP.
  bool insecure = false;          // Over TCP nothing is proved. Neither: TCP is not dialled.
  std::string command = {};       // That asks it, for an advice.
  std::string state_dir() const;  // The one that `folder` lies in.
};

// With --coordinator in its order, never empty: the first that answers is the one. Without it empty
// when there is no folder of a coordinator anywhere. Only looks at the file system. `command` is
// what the insecure rule prints.
absl::StatusOr<std::vector<Place>> FindPlaces(const ReadOptions& options, std::string_view command);

// State directories that are looked at, most likely first.
absl::StatusOr<std::vector<std::string>> StateDirectories(const ReadOptions& options);

}  // namespace regroup::cli
