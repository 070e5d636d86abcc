#include "agent/core/commits.h"

#include <utility>

#include "agent/core/progress.h"

namespace regroup::agent {
namespace {

bool IsSame(const CommitRequest& a, const CommitRequest& b) {
  return a.attempt == b.attempt && a.step == b.step;
}
bool IsAnswerTo(const CommitAnswer& answer, const CommitRequest& asked) {
  return answer.attempt == asked.attempt && answer.step == asked.step;
}

// Whatever was in flight before is no longer awaited. The coordinator should not hear of a
// checkpoint before the steps that led to it.
void SendNewest(Step& step, const GroupKey& key, Commit& commit) {
  FlushProgress(step, key);
  commit.in_flight = commit.newest;
  step.Do(SendCommit{commit.newest});
}

}  // namespace

void AskCommit(Step& step, const GroupKey& key, const CommitRequest& request) {
  const auto [at, first] = step.state.commits.try_emplace(key, Commit{request, {}});
  Commit& commit = at->second;
  const CommitRequest displaced = std::exchange(commit.newest, request);
  // What is in flight gets its own answer.
  const bool asked = commit.in_flight && IsSame(*commit.in_flight, displaced);
  if (!first && !asked && !IsSame(displaced, request)) {
    CommitAnswer busy;
    busy.job = key.job;
    busy.generation = key.generation;
    busy.attempt = displaced.attempt;
    busy.step = displaced.step;
    busy.why_not = "busy: a newer commit was asked for before this one could be";
    step.Do(TellCommit{key, busy});
  }
  if (step.state.attached() && !commit.in_flight) SendNewest(step, key, commit);
}

void On(Step& step, const CommitAnswered& answered) {
  const CommitAnswer& answer = answered.answer;
  const GroupKey key{answer.job, answer.generation};
  const auto asked = step.state.commits.find(key);
  if (asked == step.state.commits.end() || !asked->second.in_flight ||
      !IsAnswerTo(answer, *asked->second.in_flight))
    return;
  step.Do(TellCommit{key, answer});
  if (IsAnswerTo(answer, asked->second.newest)) {
    step.state.commits.erase(asked);
  } else {
    SendNewest(step, key, asked->second);
  }
}

void ForgetCommitsInFlight(State& state) {
  // Its answer may be lost with the session; asked again, the coordinator says the same once more.
  for (auto& [key, commit] : state.commits) commit.in_flight.reset();
}

void RepeatCommits(Step& step) {
  for (auto& [key, commit] : step.state.commits) SendNewest(step, key, commit);
}

}  // namespace regroup::agent
