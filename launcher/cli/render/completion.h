#pragma once

// Completion scripts, written from the same declarations as --help. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "common/config/flags.h"

namespace regroup::cli {

// What stands where: which words of a command are jobs, nodes or files.
enum class WordKind { kNone, kJob, kNode, kFile, kProgram, kShell, kCommand };
WordKind WordKindOf(std::string_view command);

// REQUIRES: shell is bash, zsh or fish.
std::string RenderCompletion(std::string_view shell,
                             const std::vector<CommandDescription>& commands);

}  // namespace regroup::cli
