#pragma once

// A screen against a file of folder golden/. REGROUP_UPDATE_GOLDEN=1 writes the file instead: look
// at the difference before you commit it.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>
#include <string>

namespace regroup {

inline void ExpectGolden(const std::string& name, const std::string& text) {
  std::string path = std::string(REGROUP_GOLDEN_DIR) + "/" + name;
  if (::getenv("REGROUP_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream in(path);
  ASSERT_TRUE(in.is_open()) << path;
  std::ostringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(text, expected.str()) << path;
}

}  // namespace regroup
