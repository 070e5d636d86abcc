#include "launcher/coordinator/shell/repute.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace regroup::coordinator {
namespace {

using namespace std::chrono_literals;

class ReputeTest : public ::testing::Test {
 protected:
  // From when on `ip` is heard again, if nothing happens, to 10 ms.
  Duration HeardIn(const std::string& ip) const {
    for (Duration later{}; later < 60s; later += 10ms) {
      if (!repute_.Refuses(ip, now_ + later)) return later;
    }
    return 60s;
  }
  void Owe(const std::string& ip, Duration each, int times = 1) {
    for (int i = 0; i < times; ++i) repute_.Owes(ip, each, now_);
  }
  Repute repute_;
  Instant now_{1h};
};

TEST_F(ReputeTest, ADebtIsWaitedForFromItsLimitOn) {
  Owe("10.0.0.1", kDebtOfNoCall, 49);
  EXPECT_EQ(HeardIn("10.0.0.1"), 0s);
  Owe("10.0.0.1", kDebtOfNoCall);
  EXPECT_EQ(HeardIn("10.0.0.1"), 10ms);
  Owe("10.0.0.1", kDebtOfNoCall, 10);
  EXPECT_EQ(HeardIn("10.0.0.1"), 1010ms);
  EXPECT_EQ(HeardIn("10.0.0.2"), 0s) << "another's";
}

TEST_F(ReputeTest, ACutCostsAsMuchAsIsTakenAnotherMoreAndNoneMoreThanTheMost) {
  repute_.WasCut("10.0.0.1", now_);
  EXPECT_EQ(HeardIn("10.0.0.1"), 10ms);
  now_ += 4990ms;
  EXPECT_EQ(HeardIn("10.0.0.1"), 0s);
  repute_.WasCut("10.0.0.1", now_);
  EXPECT_EQ(HeardIn("10.0.0.1"), 15s + 20ms);
  now_ += 1min;
  repute_.WasCut("10.0.0.1", now_);
  EXPECT_EQ(HeardIn("10.0.0.1"), 10ms) << "what is paid is forgotten";
  now_ += 1min;
  Owe("10.0.0.1", kDebtOfNoWord);
  for (int i = 0; i < 3; ++i) repute_.WasCut("10.0.0.1", now_ + i * 400ms);
  EXPECT_EQ(HeardIn("10.0.0.1"), 10s + 20ms)
      << "a small debt is no cut, and one incident no second";
  for (int i = 0; i < 100; ++i) repute_.WasCut("10.0.0.1", now_);
  EXPECT_EQ(HeardIn("10.0.0.1"), kMostDebt - kDebtLimit + 10ms);
}

TEST_F(ReputeTest, TimeAndCallsPay) {
  Owe("10.0.0.1", kDebtOfACut, 2);
  now_ += 4s;
  EXPECT_EQ(HeardIn("10.0.0.1"), 1010ms);
  for (int i = 0; i < 10; ++i) repute_.Pays("10.0.0.1", now_);
  EXPECT_EQ(HeardIn("10.0.0.1"), 10ms);
  for (int i = 0; i < 1000; ++i) repute_.Pays("10.0.0.1", now_);
  Owe("10.0.0.1", kDebtOfNoCall, 50);
  EXPECT_EQ(HeardIn("10.0.0.1"), 10ms) << "nothing is paid ahead";
  now_ += 1h;
  Owe("10.0.0.1", kDebtOfNoCall, 49);
  EXPECT_EQ(HeardIn("10.0.0.1"), 0s) << "nor by time";
}

TEST_F(ReputeTest, OfIpv6TheNetworkOwes) {
  Owe("2001:db8::1", kDebtOfACut, 2);
  EXPECT_GT(HeardIn("2001:db8::ffff"), 0s);
  EXPECT_EQ(HeardIn("2001:db8:0:1::1"), 0s);
  Owe("fe80::1%eth0", kDebtOfACut, 2);
  EXPECT_GT(HeardIn("fe80::2%eth1"), 0s);
}

TEST_F(ReputeTest, OfTooManyWhoOwesLeastIsForgiven) {
  Owe("10.1.0.1", kDebtOfACut, 2);
  Owe("10.1.0.2", kDebtOfACut);
  for (std::size_t i = 0; i < kMaxDebtors; ++i)
    Owe(absl::StrCat("10.2.", i / 256, ".", i % 256), kDebtOfACut, 2);
  EXPECT_EQ(HeardIn("10.1.0.2"), 0s);
  EXPECT_GT(HeardIn("10.2.15.255"), 0s);
  now_ += kMostDebt;  // Who has paid makes room before.
  Owe("10.1.0.3", kDebtOfACut, 2);
  EXPECT_GT(HeardIn("10.1.0.3"), 0s);
}

}  // namespace
}  // namespace regroup::coordinator
