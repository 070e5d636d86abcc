#pragma once

// The only place that reads and changes the environment.

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace regroup {

std::optional<std::string> GetEnv(std::string_view name);
// For libraries that are told things in no other way. REQUIRES: no other thread uses the
// environment meanwhile.
void SetEnv(const std::string& name, const std::string& value);
// Everything, as the process has it now. Entries without '=' are dropped.
std::map<std::string, std::string> AllEnv();

// What a job that was submitted gets from its agent's environment (CLI.md, Environment): PATH,
// HOME, locale, time zone, temporary directory, proxies and library paths; never our secrets.
bool OnSubmitAllowList(std::string_view name);
// What every worker gets from Regroup, whatever a job says: RANK, MASTER_ADDR, REGROUP_JOB and so
// on.
bool IsSetByRegroup(std::string_view name);
// REGROUP_TOKEN and others that no worker may see.
bool IsRegroupSecret(std::string_view name);

}  // namespace regroup
