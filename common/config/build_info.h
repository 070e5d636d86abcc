#pragma once

// Of library common_build_info, which is linked into programs only: it changes with every commit.

#include <string>
#include <string_view>

namespace regroup {

std::string_view ReleaseVersion();  // "0.1.0"
std::string_view
BuildCommit();  // "28c982a", "28c982a+" where files were changed; "unknown" outside git.
std::string_view BuildType();  // "Release", "Debug address,undefined"
// What Version::build carries and people see: "0.1.0 28c982a Release".
std::string BuildId();

}  // namespace regroup
