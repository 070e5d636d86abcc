#include "common/rpc/local_coordinator.h"

#include <gtest/gtest.h>

namespace regroup {
namespace {

TEST(CoordinatorLock, SaysWhereItListensAndWhatStartsItAgain) {
  for (const CoordinatorLock& lock :
       {CoordinatorLock{7, {}, ""}, CoordinatorLock{7, {}, "regroup coordinator --local"},
        CoordinatorLock{4'194'304, {{"127.0.0.1", 29400}, {"::1", 1}}, ""},
        CoordinatorLock{7, {{"10.0.0.4", 29400}}, "regroup coordinator --state-dir 'a b'"}}) {
    EXPECT_EQ(ParseCoordinatorLock(FormatCoordinatorLock(lock)), lock);
  }
}

TEST(CoordinatorLock, AnythingElseIsNone) {
  for (const char* text : {"", "pid", "pid x", "pid 0\n", "7\n", "pid 7 listens on nowhere\n",
                           "pid 7 listens on 127.0.0.1\n", "pid 7 listens on  \n"}) {
    EXPECT_FALSE(ParseCoordinatorLock(text)) << text;
  }
}

TEST(ServedBy, AddressesOfThisHost) {
  struct Row {
    const char* name;
    std::vector<Address> listening;
    Address asked;
    bool served;
  };
  const std::vector<Row> rows = {
      {"the same", {{"10.9.9.9", 1}}, {"10.9.9.9", 1}, true},
      {"the second", {{"127.0.0.1", 1}, {"10.9.9.9", 1}}, {"10.9.9.9", 1}, true},
      {"another port", {{"127.0.0.1", 1}}, {"127.0.0.1", 2}, false},
      {"another loopback address", {{"127.0.0.1", 1}}, {"127.0.0.2", 1}, false},
      {"everywhere", {{"0.0.0.0", 1}}, {"127.0.0.2", 1}, true},
      {"everywhere is not on other hosts", {{"0.0.0.0", 1}}, {"203.0.113.9", 1}, false},
      {"of the other family", {{"0.0.0.0", 1}}, {"::1", 1}, false},
      {"a socket only", {}, {"127.0.0.1", 1}, false},
  };
  for (const Row& row : rows) EXPECT_EQ(ServedBy(row.listening, row.asked), row.served) << row.name;
}

}  // namespace
}  // namespace regroup
