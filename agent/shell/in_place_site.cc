#include "agent/shell/in_place_site.h"

#include <sys/stat.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/io/files.h"

namespace regroup::agent {

std::string SiteFolder(const std::string& run_directory) {
  return absl::StrCat(run_directory, "/python");
}

absl::Status WriteSite(const std::string& run_directory) {
  const std::string folder = SiteFolder(run_directory);
  if (::mkdir(folder.c_str(), 0700) < 0)
    return io::ErrnoStatus(errno, absl::StrCat("make folder ", folder));
  return io::ReplaceFile(absl::StrCat(folder, "/sitecustomize.py"), std::string(kSiteCustomizeText),
                         io::Durability::kVolatile);
}

void PutFirstOnPythonPath(const std::string& folder, Environment& environment) {
  environment["REGROUP_SITE"] = folder;
  const auto there = environment.find("PYTHONPATH");
  environment["PYTHONPATH"] =
      there == environment.end() ? folder : absl::StrCat(folder, ":", there->second);
}

}  // namespace regroup::agent
