#pragma once

// The `regroup:` lines of a launch command (CLI.md, Screens). Pure: every call returns text to be
// written to stderr as it is, zero or more whole lines. Owner: the agent's loop thread.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/control.h"
#include "common/base/reasons.h"
#include "common/base/time.h"
#include "common/base/views.h"
#include "common/config/launch_config.h"
#include "common/report/reasons.h"
#include "common/report/text_style.h"

namespace regroup {

// The literal command for the other nodes, broken into lines of at most `width` columns that a
// shell joins again. Indented by four. REQUIRES: endpoint is an address that others reach.
// `token`: that they have to show; empty: none, or they were given one.
std::string CommandForOthers(const LaunchConfig& launch, const Address& endpoint,
                             const std::string& token, int width);

struct RunStart {
  JobId job;
  std::string node_name;               // As the coordinator named it: Welcome::name.
  std::optional<Address> coordinator;  // As the others have to dial it; unset: coordinator-local.
  std::string token;                   // For the others; empty: they need none, or have it.
  std::string log_path;                // This job's; shown with ~ for the home directory.
  bool hosts_coordinator = false;      // On this host: it prints the command for the others.
};

class RunScreen {
 public:
  RunScreen(const LaunchConfig& launch, TextStyle style);

  // The coordinator does not answer yet, or no longer: patient and visible. The first line at once
  // for a first dial
  // (`before_start`), after 2 s else; then one every 30 s from Tick. `why` as in "connection
  // refused".
  std::string CoordinatorAway(Duration now, std::string_view why);
  std::string Warning(std::string_view text) const;
  std::string CoordinatorBack(Duration now);
  // Worker output that cannot be shown, also under --quiet. Any thread.
  std::string OutputTrouble(std::string_view stream, std::string_view why,
                            std::string_view log_path) const;
  // Not all of it could be shown. `directory`: its log.
  std::string OutputGap(std::string_view stream, std::string_view what,
                        std::string_view directory) const;

  // The job is known. Once; a later call (the agent reconnected) prints nothing and updates the
  // names.
  std::string Started(Duration now, const RunStart& start);

  // Events in order; one already seen (its number) prints nothing.
  std::string OnEvent(Duration now, const JobEvent& event);

  // This node leaves on a signal; `left` until its workers are killed. `again`: the second signal,
  // now.
  std::string Leaving(Duration now, int signal, Duration left, bool again);

  // The last words: end line or FAILED report, then "worker exit N" where a worker's own code is >=
  // 120. `view` with detail (generations). `code` is what the launch command exits with.
  std::string Ended(Duration now, const JobView& view, int code);
  // --join-timeout passed: why, as error: / because: / try:.
  std::string JoinTimedOut(Duration now);

  // Lines that are due: every 30 s while something is missing, and lines held back to be merged.
  // `now` = since start.
  std::string Tick(Duration now);
  // When Tick has something to say; unset: nothing pending.
  std::optional<Duration> NextTick() const;

  // This node has left, and how its job goes on is not its business any more.
  std::string LeftJob(Duration now);

 private:
  std::string Line(std::string_view text) const;
  std::string Lines(const std::vector<std::string>& texts) const;
  std::vector<std::string> FlushHeld();
  std::vector<std::string> FlushJoined();
  std::vector<std::string> On(Duration now, const JobEventBody& body);
  std::vector<std::string> OnJoined(Duration now, const NodeJoined& joined);
  std::vector<std::string> OnFormed(Duration now, const GenerationFormed& formed);
  std::vector<std::string> OnRunning(const GenerationRunning& running);
  std::vector<std::string> OnGenerationEnded(Duration now, const GenerationEnded& ended);
  std::vector<std::string> OnWaits(Duration now, const WaitReason& reason);
  std::string AwayText(Duration now) const;  // REQUIRES: away_since_.
  std::string Reminder(Duration now) const;
  std::string Arrivals();
  bool IsMe(const std::string& node) const;
  ReasonContext Context() const;
  void HoldUntil(Duration when);

  const LaunchConfig launch_;
  const TextStyle style_;
  const std::string home_;
  std::optional<RunStart> start_;
  std::uint64_t last_event_ = 0;
  bool taught_ = false;
  std::vector<NodeJoined> joined_;   // Arrivals that go into the generation's line.
  std::optional<NodeJoined> spare_;  // This node's own, one too many: until it is known to stay so.
  std::optional<GenerationFormed>
      formed_;                          // Formed, not yet running: its line waits for the phases.
  std::optional<std::string> held_;     // A failure that the final report may be about.
  std::optional<Duration> held_until_;  // When joined_ and held_ are printed at the latest.
  std::optional<WaitReason> waits_;
  Duration waits_since_{}, waits_told_{};
  std::optional<Duration> next_reminder_;
  std::optional<Duration> away_since_;
  std::string away_why_;
  bool away_shown_ = false;
};

}  // namespace regroup
