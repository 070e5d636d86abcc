#pragma once

// What a Python program seems to do, read from its text before it starts. A guess: nothing depends
// on it but a default.

#include <string>
#include <string_view>
#include <vector>

namespace regroup::cli {

struct ProgramHints {
  bool sets_master_port = false;  // It says by itself where its processes meet.
  bool keeps_ranks = false;       // It imports regroup.inplace.
  friend bool operator==(const ProgramHints&, const ProgramHints&) = default;
};

// Look at the script, or at the module that `python -m` would run from the working directory, and
// at what they import from beside them: at most kMostFiles files, the first kMostBytes of each.
// What cannot be read says nothing.
inline constexpr int kMostFiles = 64;
inline constexpr int kMostBytes = 1 << 20;
ProgramHints HintsOfScript(const std::string& path);
ProgramHints HintsOfModule(const std::string& name, const std::string& directory = ".");
// What a submitted job executes in `directory`: a script, -m and a module, or either after a Python
// and its options. Anything else says nothing.
ProgramHints HintsOfCommand(const std::vector<std::string>& command, const std::string& directory);

// What a person is told of a job with one rank whose program serves its own store, ...
std::string OwnStoreNotice(std::string_view program);
// ... and of one that is taken to have been given --in-place.
std::string InPlaceNotice(std::string_view program);

// One file's text: is MASTER_PORT assigned in it, as a variable or a key? Comments do not count. It
// may be for other cases than this one.
bool SetsMasterPort(std::string_view python);
// Does a line of it import regroup.inplace? It may stand in a function or a text.
bool ImportsInPlace(std::string_view python);

}  // namespace regroup::cli
