#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/worker/gpu/visible_memory.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  return regroup::worker::OnVisibleStack([] { return RUN_ALL_TESTS(); });
}
