#include "launcher/cli/commands/waiting.h"

#include <algorithm>
#include <thread>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "common/io/proc.h"
#include "common/report/failure_report.h"
#include "launcher/cli/render/json.h"
#include "launcher/cli/render/lists.h"

namespace regroup::cli {
namespace {

using namespace std::chrono_literals;
constexpr Duration kPoll = 30s, kPatience = 60s, kShownAfter = 2s, kRetry = 200ms;

}  // namespace

absl::StatusOr<JobView> WaitForEnd(const Client& client, const std::string& job,
                                   std::optional<Duration> limit, const Terminal& terminal) {
  regroup::v1::ReadRequest request;
  request.set_what(regroup::v1::ReadRequest::WHAT_JOBS);
  request.set_selector(job);
  request.set_detail(true);
  request.set_wait_for_end(true);
  const Instant begun = io::MonotonicNow();
  std::optional<Instant> away_since;
  bool told = false;
  while (true) {
    Instant now = io::MonotonicNow();
    Duration left = limit ? *limit - (now - begun) : kPoll;
    if (left <= Duration::zero()) {
      return UserError(absl::StatusCode::kDeadlineExceeded,
                       Cat(job, " is not over after ", FormatDuration(*limit)),
                       "--timeout has passed", Cat("regroup explain ", job));
    }
    absl::StatusOr<Reading> reading =
        client.Read(request, std::clamp<Duration>(left + 300ms, 500ms, kPoll));
    now = io::MonotonicNow();
    if (reading.ok() && !reading->jobs.empty()) {
      if (IsOver(reading->jobs[0])) return std::move(reading->jobs[0]);
      away_since.reset();
      continue;
    }
    if (reading.ok()) return absl::NotFoundError(Cat(job, " is gone"));
    bool away = reading.status().code() == absl::StatusCode::kUnavailable;
    if (reading.status().code() == absl::StatusCode::kDeadlineExceeded) continue;
    if (!away) return reading.status();
    if (!away_since) away_since = now;
    if (now - *away_since > kPatience) return reading.status();
    if (!told && now - *away_since > kShownAfter) {
      terminal.Say("regroup: the coordinator does not answer; waiting for it\n");
      told = true;
    }
    std::this_thread::sleep_for(kRetry);
  }
}

absl::StatusOr<int> TellEnd(const JobView& job, bool json, const Terminal& terminal) {
  if (json) {
    RETURN_IF_ERROR(terminal.Print(ExplainDocument(job)));
  } else if (job.state == "failed") {
    terminal.Say(FailureReport(job, terminal.err()));
  } else {
    terminal.Say(ForCharset(terminal.err(), Cat("regroup: ", EndLine(job), "\n")));
  }
  if (std::optional<int> code = AmbiguousWorkerExit(job))
    terminal.Say(Cat("regroup: worker exit ", *code, "\n"));
  return job.exit_code;
}

}  // namespace regroup::cli
