// The tests, or with `coordinator` as the first word the coordinator itself: so that tests can kill
// one.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/user_error.h"
#include "common/config/flags.h"
#include "launcher/coordinator/shell/daemon.h"

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "coordinator") {
    regroup::CoordinatorConfig config;
    regroup::CommandLine line({.name = "coordinator"});
    regroup::DescribeFlags(line.app(), config);
    const auto parsed =
        line.Parse(std::vector<std::string>(argv + 2, argv + argc), /*program_follows=*/false);
    if (!parsed.ok()) {
      std::fputs(regroup::RenderUserError(parsed.status()).c_str(), stderr);
      return 125;
    }
    return regroup::RunCoordinator(config);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
