#pragma once

// One sentence per typed reason: who, what, numbers, since when, and one next step. Log, CLI and
// JSON render this. Texts hold
// no control character and are UTF-8, whatever the reason was made of.

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/reasons.h"

namespace regroup {

struct ReasonContext {  // What the next step has to name.
  JobId job;
  Generation generation;
  JobOrigin origin = JobOrigin::kSubmitted;
};

struct ReasonText {
  std::string_view kind;  // "below_minimum": stable; JSON, metrics and the runbook's rows.
  std::string brief;      // For a table or the middle of a line: no capital, no full stop.
  std::string sentence;   // One or two full sentences.
  std::string next;       // What to do: a command, or words where nothing is to be done.
};

ReasonText Explain(const WaitReason& reason, const ReasonContext& context);
ReasonText Explain(const EndReason& reason, const ReasonContext& context);
ReasonText Explain(const FailReason& reason, const ReasonContext& context);

// Every kind, in the order of the variants: for tests and the runbook.
std::vector<std::string_view> AllReasonKinds();

}  // namespace regroup
