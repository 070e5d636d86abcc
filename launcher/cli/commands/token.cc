#include <string>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/rpc/local_coordinator.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/places.h"

namespace regroup::cli {
namespace {

class TokenCommand : public Command {
 public:
  TokenCommand()
      : Command({.name = "token",
                 .summary = "print the secret that agents and commands elsewhere show",
                 .usage = "regroup token",
                 .text =
                     "Who reaches a coordinator over TCP proves that it knows this, and so does "
                     "the coordinator; it is "
                     "never sent. On other hosts: REGROUP_TOKEN, or --token-file. On this host "
                     "nobody needs it: the Unix socket knows whose a caller is.",
                 .example = "regroup token > token && chmod 600 token"}) {
    AddText(line().app(), "--coordinator", options_.coordinator,
            "coordinator of this host: HOST[:PORT], or its folder; none: the one in the state "
            "directory",
            "ADDRESS");
    AddText(line().app(), "--state-dir", options_.state_dir,
            "where runs and coordinators of this host are looked for", "DIRECTORY");
    ScopeEnvironment(line().app(), "token");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 0));
    options_.insecure = true;  // Nothing is dialled.
    ASSIGN_OR_RETURN(std::vector<Place> places, FindPlaces(options_, "regroup token"));
    std::vector<std::string> tokens;
    std::string with;
    for (const Place& place : places) {
      if (place.folder.empty()) continue;
      absl::StatusOr<std::string> token = ReadCoordinatorToken(place.folder);
      if (!token.ok()) continue;
      tokens.push_back(*std::move(token));
      with += Cat(with.empty() ? "" : ", ", place.folder);
    }
    if (tokens.empty()) {
      return UserError(absl::StatusCode::kNotFound, "no coordinator of this host has a token",
                       "one makes it when it first listens on TCP",
                       "regroup coordinator, or --state-dir DIRECTORY");
    }
    if (tokens.size() > 1) {
      return UserError(absl::StatusCode::kFailedPrecondition,
                       "more than one coordinator of this host has a token", with,
                       Cat("regroup token --coordinator ", with.substr(0, with.find(','))));
    }
    RETURN_IF_ERROR(terminal.Print(Cat(tokens.front(), "\n")));
    return kDone;
  }

 private:
  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeToken() { return std::make_unique<TokenCommand>(); }

}  // namespace regroup::cli
