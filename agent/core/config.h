#pragma once

// What one agent is told at its start, and how long its core waits for what.

#include <chrono>
#include <optional>
#include <string>

#include "common/base/control.h"
#include "common/base/ids.h"
#include "common/base/job_spec.h"
#include "common/base/time.h"

namespace regroup::agent {

// Every wait of the core that no message sets. No wait is without an end: what follows it is said
// here.
struct Waits {
  // Of one rank's progress, between two messages; the newest goes.
  Duration progress = std::chrono::milliseconds(100);
  // For a Welcome, unless the last lease was longer: the session is broken.
  Duration welcome = std::chrono::seconds(5);
  // Between two starts of a coordinator that this host hosts and that does not answer.
  Duration coordinator_restart = std::chrono::seconds(1);
  // For what ranks are forked from to have imported: they start cold.
  Duration warm_up = kWarmUpLimit;
  // For another group of a job with warm ranks: then what they were forked from ends.
  Duration nursery = std::chrono::minutes(1);
  // For a shim's word, after the deadline of a stop: the shim is killed, as often as it takes. For
  // the end of a rank that has not retired and was killed: the group is stopped as a whole.
  Duration shim_silence = std::chrono::seconds(2);
  // For what the failed ranks of an empty group left behind; where people watch, for all that its
  // ranks printed: its slots are free then, whatever was read.
  Duration words = std::chrono::milliseconds(200);
  Duration output = std::chrono::seconds(5);
  // Between two rounds over what a lost shim left, and twice as long after each that still finds
  // something, at most `kill_limit`; two in a row that find nothing end it. After `stuck` the group
  // is unkillable: its slots stay taken, and the rounds go on.
  Duration kill_again = std::chrono::milliseconds(5);
  Duration kill_limit = std::chrono::seconds(1);
  Duration stuck = std::chrono::seconds(10);
  // For ranks that could retire before and have no connection now, at most half of a stop in place:
  // then they are signalled. On a busy host it takes longer to import PyTorch anew.
  Duration redial = std::chrono::seconds(3);
  // For a kept rank's hello in a generation that was started: it is killed, and has failed.
  Duration adopt = std::chrono::seconds(10);
  // One Ctrl-C under `timeout` arrives twice within 1 ms; a person's second one is later than this.
  Duration same_signal = std::chrono::milliseconds(500);
  // For the coordinator's word that the whole job has ended with this node's groups: this command
  // leaves without it.
  Duration result = std::chrono::milliseconds(500);
  // A launch command that has belonged to a job, and of which nothing runs, is refused for so long
  // before it ends: a stranger may have the port of its coordinator for a moment.
  Duration refusal = std::chrono::seconds(30);
  // Beyond a deadline that shims keep: everything is stopped, whatever the coordinator says.
  Duration slack = std::chrono::seconds(1);
  // After that, for groups that do not end: the agent leaves without them.
  Duration kill = std::chrono::seconds(3);
};

struct Config {
  NodeId node;
  Incarnation incarnation;
  BootId boot;
  std::string name;
  bool name_explicit = false;
  int slots = 1;
  bool gpu_slots = false;  // Each stands for a GPU, or for several.
  Version version;
  std::string no_cgroup;                      // Why groups get none; empty: they get one.
  bool launched = false;                      // By `regroup run`; else a service.
  bool sigterm_is_notice = false;             // Of a service.
  bool starts_coordinator = false;            // This host hosts the launch command's coordinator.
  Duration grace = std::chrono::seconds(30);  // What a notice or a first signal gives the workers.
  std::optional<Duration> join_timeout;       // Of a launch command.
  // The coordinator that was followed in an earlier life; an empty cluster: none was.
  ClusterId cluster;
  Epoch highest_epoch;
  Waits waits;
};

}  // namespace regroup::agent
