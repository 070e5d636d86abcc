#include <algorithm>
#include <string>

#include "common/base/status_macros.h"
#include "common/config/text.h"
#include "launcher/cli/commands/all.h"
#include "launcher/coordinator/core/authority.h"

namespace regroup::cli {
namespace {

class Authz : public Command {
 public:
  Authz()
      : Command({.name = "authz",
                 .summary = "print who may call what of a coordinator",
                 .usage = "regroup authz",
                 .text =
                     "The table that every call is checked against; what is not in it is denied. "
                     "SOCKET: the coordinator's own user and root, over its Unix socket. TOKEN: "
                     "over TCP, with the token shown (regroup token). INSECURE: over TCP to a "
                     "coordinator with --insecure.",
                 .example = "regroup authz"}) {
    ScopeEnvironment(line().app(), "authz");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 0));
    const auto word = [](bool may) { return std::string(may ? "yes" : "no"); };
    constexpr std::size_t kWidth = 12;
    const auto row = [&](std::string call, const std::string& a, const std::string& b,
                         const std::string& c) {
      std::string text;
      for (std::string cell : {std::move(call), a, b}) {
        cell.resize(std::max(cell.size(), kWidth), ' ');
        text += cell;
      }
      return Cat(text, c, "\n");
    };
    std::string text = row("CALL", "SOCKET", "TOKEN", "INSECURE");
    for (const coordinator::Authority& each : coordinator::AuthorityTable())
      text += row(std::string(each.call), word(each.host), word(each.token), word(each.anyone));
    text += row("(store)", "-", "members", "yes");
    RETURN_IF_ERROR(terminal.Print(
        Cat(text,
            "(store): torchrun's c10d clients cannot show a token; a member's address, or the "
            "coordinator's host, is what they need.\n")));
    return kDone;
  }
};

}  // namespace

std::unique_ptr<Command> MakeAuthz() { return std::make_unique<Authz>(); }

}  // namespace regroup::cli
