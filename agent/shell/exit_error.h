#pragma once

// What a failed rank left behind for people: its error file, else the end of its stderr. Reads
// files; off the loop.

#include <string>
#include <string_view>

#include "common/base/reasons.h"

namespace regroup::agent {

// Of TORCHELASTIC_ERROR_FILE's contents, in both shapes PyTorch accepts; empty when it is neither.
std::string TextOfErrorFile(std::string_view json);
// The last Python traceback and what follows it when there is one; of what Python's fault handler
// wrote after it, the headline and the thread that failed. Else the last 20 lines.
std::string TailOfStderr(std::string_view text);
// Whether these words of a failed rank tell of the loss of its peers, as Gloo, NCCL and the
// TCPStore put it.
bool TellsOfLostPeers(std::string_view text);

struct ExitError {
  std::string text;  // At most kMaxErrorBytes; empty when there is nothing.
  ErrorEvidence evidence = ErrorEvidence::kNone;
};
// `log_directory` is the rank's; the error file is kept there, since the run directory goes. What
// is no error file, whatever it is, counts as absent.
ExitError ReadExitError(const std::string& error_file, const std::string& log_directory);

// The error file of a failed job, for the launcher above this one: PyTorch's shape, with errorCode
// as its launcher sets it (negative: a signal).
std::string ErrorFileOf(const RankCause& cause);

}  // namespace regroup::agent
