#pragma once

// What a failed rank left behind for people: its error file, else the end of its stderr. Reads
// files; off the loop.

#include <string>
#include <string_view>

namespace regroup::agent {

// Of TORCHELASTIC_ERROR_FILE's contents, in both shapes PyTorch accepts; empty when it is neither.
std::string TextOfErrorFile(std::string_view json);
// The last Python traceback and what follows it when there is one, else the last 20 lines.
std::string TailOfStderr(std::string_view text);

// At most kMaxErrorBytes; empty when there is nothing. `log_directory` is the rank's.
std::string ReadExitError(const std::string& error_file, const std::string& log_directory);

}  // namespace regroup::agent
