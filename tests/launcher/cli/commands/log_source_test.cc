// Whose output is whose, where one state directory holds that of several coordinators.

#include "launcher/cli/commands/log_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace regroup::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(OwnLogRoots, JobsOfOneNameOfSeveralCoordinatorsDoNotMix) {
  const std::vector<std::string> roots = {"/s/logs/local", "/s/logs/node0-29400",
                                          "/s/logs/node0-29401", "/s/node-0/logs"};
  auto own = [&](const std::string& folder, JobOrigin origin) {
    Place place;
    place.folder = "/s/" + folder;
    return OwnLogRoots(roots, place, origin);
  };
  EXPECT_THAT(own("coordinator-local", JobOrigin::kLaunched), ElementsAre("/s/logs/local"));
  EXPECT_THAT(own("coordinator-29400", JobOrigin::kLaunched), ElementsAre("/s/logs/node0-29400"));
  EXPECT_THAT(own("coordinator-29400", JobOrigin::kSubmitted), ElementsAre("/s/node-0/logs"));
  EXPECT_THAT(own("coordinator-2940", JobOrigin::kLaunched), IsEmpty());
}

}  // namespace
}  // namespace regroup::cli
