#include "common/config/env.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "common/base/check.h"

namespace regroup {

std::optional<std::string> GetEnv(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

void SetEnv(const std::string& name, const std::string& value) {
  CHECK(setenv(name.c_str(), value.c_str(), /*replace=*/1) == 0);
}

std::map<std::string, std::string> AllEnv() {
  std::map<std::string, std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

bool OnSubmitAllowList(std::string_view name) {
  constexpr std::array<std::string_view, 27> kAllowed = {"PATH",
                                                         "HOME",
                                                         "USER",
                                                         "LOGNAME",
                                                         "SHELL",
                                                         "LANG",
                                                         "LANGUAGE",
                                                         "TZ",
                                                         "TERM",
                                                         "TMPDIR",
                                                         "TEMP",
                                                         "TMP",
                                                         "HTTP_PROXY",
                                                         "HTTPS_PROXY",
                                                         "NO_PROXY",
                                                         "http_proxy",
                                                         "https_proxy",
                                                         "no_proxy",
                                                         "LD_LIBRARY_PATH",
                                                         "CUDA_HOME",
                                                         "CUDA_PATH",
                                                         "VIRTUAL_ENV",
                                                         "CONDA_PREFIX",
                                                         "PYTHONPATH",
                                                         "PYTHON_EXEC",
                                                         "SSL_CERT_FILE",
                                                         "SSL_CERT_DIR"};
  bool locale = name.substr(0, 3) == "LC_";
  return locale || std::find(kAllowed.begin(), kAllowed.end(), name) != kAllowed.end();
}

bool IsSetByRegroup(std::string_view name) {
  constexpr std::array<std::string_view, 23> kSet = {"RANK",
                                                     "LOCAL_RANK",
                                                     "WORLD_SIZE",
                                                     "LOCAL_WORLD_SIZE",
                                                     "GROUP_RANK",
                                                     "GROUP_WORLD_SIZE",
                                                     "ROLE_RANK",
                                                     "ROLE_WORLD_SIZE",
                                                     "ROLE_NAME",
                                                     "MASTER_ADDR",
                                                     "MASTER_PORT",
                                                     "TORCHELASTIC_RESTART_COUNT",
                                                     "TORCHELASTIC_MAX_RESTARTS",
                                                     "TORCHELASTIC_RUN_ID",
                                                     "TORCHELASTIC_USE_AGENT_STORE",
                                                     "TORCHELASTIC_ERROR_FILE",
                                                     "REGROUP_JOB",
                                                     "REGROUP_GENERATION",
                                                     "REGROUP_SOCKET",
                                                     "REGROUP_RESUME_STEP",
                                                     "REGROUP_LOCAL_RANK",
                                                     "REGROUP_WORKER_TOKEN",
                                                     "REGROUP_GROUP"};
  return std::find(kSet.begin(), kSet.end(), name) != kSet.end();
}

bool IsRegroupSecret(std::string_view name) {
  constexpr std::array<std::string_view, 2> kSecrets = {"REGROUP_TOKEN", "REGROUP_KEY_PASSWORD"};
  return std::find(kSecrets.begin(), kSecrets.end(), name) != kSecrets.end();
}

}  // namespace regroup
