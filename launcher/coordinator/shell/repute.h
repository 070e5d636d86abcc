#pragma once

// What the connections of each address were good for. One that is cut, that ends without a call, or
// whose reader leaves without the reply that it asked for puts its address into debt, one that
// makes a call pays some of it back, and time pays the rest. Whose debt has reached the limit is
// not heard until some is paid: dialling anew costs a flood nothing, and us a connection of gRPC
// each time. Kept as the instant by which all is paid (the generic cell rate algorithm, ITU-T
// I.371). Any thread.

#include <chrono>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "common/base/time.h"

namespace regroup::coordinator {

inline constexpr Duration kDebtLimit = std::chrono::seconds(5);
inline constexpr Duration kDebtOfNoWord = std::chrono::milliseconds(10);   // It never reached gRPC.
inline constexpr Duration kDebtOfNoCall = std::chrono::milliseconds(100);  // And what a call pays.
inline constexpr Duration kDebtOfUntaken = std::chrono::seconds(1);        // A reply that was made.
inline constexpr Duration kDebtOfACut = std::chrono::seconds(5);           // By us, or by gRPC.
inline constexpr Duration kDebtOfAnotherCut =
    std::chrono::seconds(20);  // While an earlier one is not paid.
inline constexpr Duration kMostDebt = std::chrono::seconds(60);
inline constexpr std::size_t kMaxDebtors = 4096;  // Beyond it the one that owes least is forgiven.

class Repute {
 public:
  // `ip`: canonical. Of IPv6 the first 64 bits count: one host has the rest to choose from.
  bool Refuses(const std::string& ip, Instant now) const;
  void Owes(const std::string& ip, Duration more, Instant now);
  // Those of one second are one incident: each costs as much as a first one.
  void WasCut(const std::string& ip, Instant now);
  void Pays(const std::string& ip, Instant now);

 private:
  struct Debtor {
    Instant paid_by{};
    std::optional<Instant> cut_at;  // The last time.
  };
  Debtor& Add(const std::string& network, Duration more, Instant now);

  mutable std::mutex mutex_;
  std::map<std::string, Debtor> debtors_;  // By network.
};

}  // namespace regroup::coordinator
