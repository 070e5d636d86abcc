#include "launcher/coordinator/core/authority.h"

#include <algorithm>

namespace regroup::coordinator {
namespace {

// Whoever may open a connection at all may do everything with it: the token is the border, and
// without one the operator said that there is none (--insecure).
constexpr Authority kTable[] = {
    {"Session", true, true, true},  {"Submit", true, true, true},     {"Cancel", true, true, true},
    {"Read", true, true, true},     {"ForgetNode", true, true, true}, {"Logs", true, true, true},
    {"SendLogs", true, true, true},
};

}  // namespace

std::span<const Authority> AuthorityTable() { return kTable; }

bool MayCall(Caller caller, std::string_view call) {
  const auto* row = std::find_if(std::begin(kTable), std::end(kTable),
                                 [&](const Authority& each) { return each.call == call; });
  // A call that nobody wrote down is nobody's.
  if (row == std::end(kTable)) return false;
  switch (caller) {
    case Caller::kHost: return row->host;
    case Caller::kToken: return row->token;
    case Caller::kAnyone: return row->anyone;
  }
  return false;
}

}  // namespace regroup::coordinator
