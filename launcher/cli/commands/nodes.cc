#include <algorithm>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/reader.h"
#include "launcher/cli/render/explain.h"
#include "launcher/cli/render/json.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

class Nodes : public Command {
 public:
  Nodes()
      : Command({.name = "nodes",
                 .summary =
                     "list nodes: state, address, slots, GPUs, when last heard; forget a dead one",
                 .usage = "regroup nodes [NODE | forget NODE]",
                 .text = "GPUs that fail, or whose driver has told of a critical error (Xid), come "
                         "first in a node's note; `regroup explain NODE` has a line for each. "
                         "`forget` is for a node that is certainly gone: you vouch that none of "
                         "its workers runs any "
                         "more. What waits for it goes on at once.",
                 .example = "regroup nodes\nregroup nodes forget node2",
                 .positionals = {{"NODE", "only this one, by name or id"},
                                 {"forget NODE", "it will not come back"}}}) {
    DescribeFlags(line().app(), options_);
    ScopeEnvironment(line().app(), "nodes");
  }

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 2));
    bool forget = !words.rest.empty() && words.rest[0] == "forget";
    if (forget) {
      RETURN_IF_ERROR(CheckWords(*this, words, 2, 2));
      return Forget(words.rest[1], terminal);
    }
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 1));
    ASSIGN_OR_RETURN(Reader reader, Reader::Open(options_, "regroup nodes"));
    ASSIGN_OR_RETURN(std::vector<NodeView> nodes, reader.Nodes());
    if (!words.rest.empty()) RETURN_IF_ERROR(Keep(words.rest[0], nodes));
    TellNotes(reader, terminal);
    RETURN_IF_ERROR(terminal.Print(Rendered(nodes, !words.rest.empty(), reader, terminal)));
    bool hint =
        nodes.empty() && reader.notes().empty() && !options_.json && terminal.err().terminal;
    if (hint) terminal.Say("regroup: no coordinator of this host has a node\n");
    return kDone;
  }

 private:
  std::string Rendered(const std::vector<NodeView>& nodes, bool one, const Reader& reader,
                       const Terminal& terminal) const {
    if (options_.json) return NodesDocument(nodes, reader.memory());
    if (!one) return RenderNodes(nodes, terminal.out());
    std::string text;
    for (const NodeView& node : nodes) text += RenderExplain(node, terminal.out());
    return text;
  }

  static absl::Status Keep(const std::string& name, std::vector<NodeView>& nodes) {
    std::vector<std::string> names;
    for (const NodeView& node : nodes) names.push_back(node.name);
    nodes.erase(
        std::remove_if(nodes.begin(), nodes.end(),
                       [&](const NodeView& n) { return n.name != name && n.id.value() != name; }),
        nodes.end());
    if (!nodes.empty()) return absl::OkStatus();
    std::string nearest = DidYouMean(name, names);
    return UserError(absl::StatusCode::kNotFound, Cat("no node ", ShellQuote(name)),
                     nearest.empty() ? "" : Cat("did you mean ", nearest, "?"), "regroup nodes");
  }

  absl::StatusOr<int> Forget(const std::string& name, const Terminal& terminal) {
    ASSIGN_OR_RETURN(Client client,
                     TheCoordinator(options_, Cat("regroup nodes forget ", ShellQuote(name))));
    ASSIGN_OR_RETURN(std::string forgotten, client.ForgetNode(name));
    RETURN_IF_ERROR(terminal.Print(Cat(forgotten, " forgotten\n")));
    return kDone;
  }

  ReadOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeNodes() { return std::make_unique<Nodes>(); }

}  // namespace regroup::cli
