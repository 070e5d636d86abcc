#pragma once

// From PROGRAM as typed to what every worker executes (CLI.md, Program).

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/cli/commands/python_source.h"

namespace regroup::cli {

struct ProgramFlags {
  bool module = false;         // -m
  bool no_python = false;      // --no-python
  bool run_path = false;       // --run-path: beats both.
  bool always_python = false;  // Also what does not end in .py, but for no_python.
};

struct Program {
  std::string executable;  // Absolute.
  std::vector<std::string> argv;
  bool python = false;
  ProgramHints hints;  // Of a Python program.
};

// REQUIRES: words not empty. NOT_FOUND: there is no such program (exit 127); FAILED_PRECONDITION:
// it is there but can't be executed (126). Looks at PATH and PYTHON_EXEC.
absl::StatusOr<Program> ResolveProgram(const std::vector<std::string>& words,
                                       const ProgramFlags& flags);

// Where execvp would find it. As above.
absl::StatusOr<std::string> FindExecutable(const std::string& name);

// What a job is called that nobody named: the program's base name without .py.
std::string DefaultJobName(const std::vector<std::string>& words);

}  // namespace regroup::cli
