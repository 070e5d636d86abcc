#pragma once

// Carries out what the core orders about groups: run directories, shims, stores, and what failed
// ranks left behind. The loop's side of agent/shim; decides nothing. Loop thread; files of workers
// are read on `disk`.
//
// group_host_scan.cc finds what an earlier life has left, group_host_in_place.cc takes a group into
// the next generation.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/core/events.h"
#include "agent/shell/group_warnings.h"
#include "agent/shell/last_words.h"
#include "agent/shell/log_keeper.h"
#include "agent/shell/nurseries.h"
#include "agent/shell/run_remover.h"
#include "agent/shell/shim_process.h"
#include "agent/shell/worker_environment.h"
#include "common/config/hardware.h"
#include "common/io/address.h"
#include "common/io/log_files.h"

namespace regroup::agent {

class GroupHost {
 public:
  struct Options {
    std::string node_base;  // Of run directories.
    std::string shim_program;
    std::string log_root;
    std::string worker_socket;
    std::string cgroup_base;  // Of groups; empty: they get no cgroup.
    io::PortRange ports;
    NodeId node;
    BootId boot;
    bool launched = false;  // Shims get the lifeline, workers this process's limits and umask;
                            // output is followed.
    bool pass_stdin = false;
    // Of a launch command's logs; a submitted job says itself what is kept.
    io::LogLimits log_limits;
    std::vector<int> cpus;
    // What the slots of a service stand for; none: every group sees what there is.
    int slots = 1;
    NodeDevices devices;
    // Of the agent as it was started: what workers get.
    std::optional<shim::ResourceLimit> descriptors;
    WorkerOptions worker;
    std::function<GroupProgram(const Prepare&)> program;
  };
  struct Handler {
    std::function<void(Event)> post;
    std::function<void(const GroupKey&)> output;  // Workers of it have written to their logs.
    std::function<void(std::string)> warn;
    std::function<void(std::string)> tell{};  // A warning that whoever started the job has to see.
    // A rank that lives on is to hear of its generation, which runs.
    std::function<void(const NewGeneration&)> new_generation{};
  };
  GroupHost(boost::asio::io_context& loop, boost::asio::thread_pool& disk, Options options,
            Handler handler);
  ~GroupHost();

  // Reads all run directories and asks all living shims; then calls `done` with what they say,
  // once. As long as they can't be read for want of descriptors or memory, or since a disk fails,
  // it warns, tries again every kScanAgain and touches nothing.
  void Scan(std::function<void(std::vector<RunRecord>)> done);
  static constexpr std::chrono::milliseconds kScanAgain{1000};
  // Whose orders the next run directories follow.
  void Follow(const ClusterId& cluster, Epoch epoch);
  // How long the next shims and stores wait for an agent that is away.
  void LetAgentsBeAway(Duration agent_restart) { agent_restart_ = agent_restart; }

  // Of a rank that ended, some output is not in its log files yet.
  bool OutputPending(const JobId& job) const;

  void Carry(const WriteRunDirectory& action);
  void Carry(const WarmUp& action);
  void Carry(const SpawnShim& action);
  void Carry(const HandOver& action);
  void Carry(const SpawnStore& action);
  void Carry(const StartRanks& action);
  void Carry(const StopRanks& action);
  void Carry(const SignalRank& action);
  void Carry(const KillRank& action);
  void Carry(const KillGroup& action);
  void Carry(const MarkKilled& action);
  void Carry(const KillShim& action);
  void Carry(const ReleaseShim& action);
  void Carry(const CloseStore& action);
  void Carry(const RemoveRunDirectory& action);
  void Carry(const EndNursery& action);
  void Carry(const ShowLateOutput& action);

  // To every running rank of this node; ends nothing by itself.
  void Forward(int signal);

  // Run directories that are forgotten, and go once no process holds their locks.
  const std::set<std::string>& removing() const { return runs_.removing(); }
  // Where the ranks of a running group write, by local rank; empty before they run.
  struct RankLog {
    int rank = 0, local_rank = 0;
    std::string directory, passing;
    io::LogLimits limits;
    pid_t pid = 0;
  };
  std::vector<RankLog> LogsOf(const GroupKey& key) const;
  std::uint64_t WarmBytes() const;  // Memory of what warm ranks are forked from.

  // Whether that token was given to that rank of a group of this node, also in an earlier
  // generation out of which its process may have come.
  bool IsRank(const GroupKey& key, int rank, int local_rank, const std::string& token) const;
  // What a rank is to hear that lives on and still is in that generation.
  std::optional<NewGeneration> NewerThan(const GroupKey& key, int local_rank) const;

  // See LogKeeper.
  void SetShown(std::map<GroupKey, shim::Shown> shown) { logs_.SetShown(std::move(shown)); }

 private:
  struct Hosted;
  absl::Status Write(const GroupKey& key, const Prepare& prepare, const std::vector<int>& slots);
  shim::Spec SpecOf(const GroupKey& key, const Prepare& prepare, const WorkerOptions& worker,
                    const std::vector<std::string>& devices) const;
  void MakeCgroup(const shim::Spec& spec);
  absl::Status Spawn(Hosted& hosted);
  absl::Status SpawnFromNursery(Hosted& hosted, Nursery& nursery, shim::ShimStart start,
                                const shim::RunDirectory& directory);
  void KeepNursery(Hosted& hosted);
  absl::Status HandOverTo(const GroupKey& from, Hosted& to);
  void TakeLineage(Hosted& to, const Hosted& from);
  void AwaitRanks(Hosted& hosted, const StartRanks& action, const shim::StartRanks& start);
  void TellNewGeneration(Hosted& hosted, const shim::State& state);
  void TakeLastWords(const GroupKey& from);
  bool AwaitsSuccessor(const Hosted& hosted) const;
  void OnSuccessor(const GroupKey& successor);
  bool SharesLife(const Hosted& hosted) const;
  const Hosted* FindLineage(const GroupKey& key) const;
  absl::Status SpawnStoreOf(Hosted& hosted);
  std::shared_ptr<ShimProcess> MakeProcess(const GroupKey& key, std::string path, shim::Spec spec);
  void Adopt(shim::RunScan scan);
  void AdoptRecord(shim::RunRecord record);
  void AdoptStore(const shim::RunRecord& record);
  void AdoptUnreadable(shim::UnreadableRun run);
  void CheckScan(bool time_is_up);
  RunRecord Describe(const Hosted& hosted) const;

  void OnState(Hosted& hosted, const shim::State& state);
  void OnGone(Hosted& hosted, const shim::RunRecord& record);
  void OnStoreGone(Hosted& hosted);
  void See(Hosted& hosted);  // Tells what it is by now, where that is another than was told last.
  bool AwaitsWords(const Hosted& hosted) const;
  static bool AwaitsOutput(const Hosted& hosted, const shim::RankState& rank);
  static bool EndedAwaitingOutput(const Hosted& hosted);
  void NoteFinishing(const Hosted& hosted);
  void SaveNotes(const Hosted& hosted);
  Hosted* Find(const GroupKey& key) const;
  void Fail(const GroupKey& key, const absl::Status& why);

  boost::asio::io_context& loop_;
  boost::asio::thread_pool& disk_;
  const Options options_;
  Handler handler_;
  ClusterId cluster_;
  Epoch epoch_;
  Duration agent_restart_ = std::chrono::minutes(2);
  std::optional<shim::Lifeline> lifeline_;
  std::map<GroupKey, std::unique_ptr<Hosted>> groups_;
  struct Finishing {
    JobId job;
    pid_t pid;
    std::uint64_t start_ticks;
  };
  std::vector<Finishing> finishing_;  // Shims of groups that are gone, which may still write logs.
  LogKeeper logs_;
  LastWords words_;
  Nurseries nurseries_;  // Of jobs with `warm`.
  MeetingWarnings meeting_;
  RunRemover runs_;

  std::function<void(std::vector<RunRecord>)> scan_done_;
  boost::asio::steady_timer scan_timer_;
  std::shared_ptr<bool> alive_;  // Held by handlers that may run after this object.
};

}  // namespace regroup::agent
