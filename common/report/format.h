#pragma once

// Times and numbers as people read them. Pure.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/control.h"
#include "common/base/time.h"

namespace regroup {

std::string AgeText(Duration d);    // Coarse, in two units: "2h14m", "41m", "12s", "0.4s", "3d04h".
std::string SpanText(Duration d);   // To the second: "2h13m06s", "14m02s", "41s", "2.1s".
std::string ShortText(Duration d);  // "0.31 s", "41 ms", "12 s", "14m02s".
std::string PhaseText(
    Duration d);  // Seconds without the leading zero, three places: ".004", "1.250".
std::string PhaseTextShort(Duration d);  // Without zeros at the end: ".22".

std::string Rfc3339(WallTime t);    // "2026-11-21T14:09:30.114Z"
std::string ClockText(WallTime t);  // "14:09:30.114"

std::string SignalName(int signal);  // "SIGKILL"; "signal 64" where it has none.
// What kept a program from being started: "Permission denied", "its interpreter: No such file …".
std::string ObstacleText(int error_number, ExecObstacle obstacle);
std::string ExitText(
    const RankExit& e);  // "exit 1", "SIGKILL", "could not start: No such file or directory"
// "SIGKILL, not by us, no OOM kill counted"; "exit 1".
std::string ExitTextWithSender(const RankExit& e);
// The last line of what a failed rank said that is not blank, "ValueError: boom": escaped, at most
// 100 bytes of it. Empty: it said nothing.
std::string LastLine(std::string_view error);
// The same where it goes beside an exit code, ": ValueError: boom"; empty for any other end.
std::string SaidAtExit(const RankExit& e);

std::string Count(long long n, std::string_view one,
                  std::string_view many = "");  // "1 node", "2 nodes".
std::string RanksText(
    const std::vector<int>& ranks);  // "rank 3", "ranks 0 1 2", long lists as "0-63".
std::string JoinWords(const std::vector<std::string>& words, std::string_view between = ", ");

// The user's home directory as ~.
std::string WithTilde(std::string_view path, std::string_view home);

}  // namespace regroup
