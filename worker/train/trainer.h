#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/owner.h"
#include "worker/checkpoint/repository.h"
#include "worker/checkpoint/saver.h"
#include "worker/comm/communicator.h"
#include "worker/data/sampler.h"
#include "worker/model/gpt.h"
#include "worker/train/compute_device.h"
#include "worker/train/control_client.h"
#include "worker/train/environment.h"
#include "worker/train/sample_log.h"
#include "worker/train/step_runner.h"
#include "worker/train/termination.h"
#include "worker/train/thread_waits.h"
#include "worker/train/train_config.h"
#include "worker/train/train_state.h"
#include "worker/train/training_data.h"

namespace regroup::worker {

// One rank's training from start to end: joins its group, resumes from the newest commit, steps,
// saves. The object is meant to live until the process ends: after a failure its threads may still
// be at a disk that does not answer.
class Trainer {
 public:
  // `termination` outlives the trainer, and so does `cuda`, what the program has for GPUs; null:
  // nothing.
  Trainer(TrainConfig config, WorkerEnvironment environment, Termination& termination,
          const CudaBuild* cuda = nullptr);
  ~Trainer();

  // OK, or a status that bears a WorkerExit. The agent has been told of a communicator's failure by
  // then.
  absl::Status Run();
  // After this rank has said why it ends. Sends what the agent has not heard yet, and where all
  // ranks end alike, waits until all have said so; takes a moment at most.
  void SayGoodbye();

 private:
  absl::Status Prepare();
  absl::Status Join();
  absl::Status Agree();
  absl::Status AgreeOnMachine();
  absl::Status AgreeOnSettings();
  absl::Status AgreeOnDirectory();
  absl::StatusOr<int> FirstElsewhere(std::string mark);
  absl::Status Elsewhere(int rank) const;
  absl::Status ConnectDevices();
  absl::Status Build();
  absl::Status BuildParts();
  void SayWhatIsDivided() const;
  void SayWhatIsShort() const;
  absl::Status TakeDirectory();
  absl::Status Restore();
  absl::Status LoadNewest(std::optional<Manifest>& manifest);
  absl::Status StartSaver();
  absl::Status Loop();
  absl::Status Step();
  absl::Status Evaluate();
  absl::Status SaveWhatIsDue(const Ballot& any);
  absl::Status Save(bool for_notice);
  absl::Status FlipBit();
  absl::Status AwaitSaves();
  absl::Status LetSavesEnd();
  absl::Status LeaveForNotice();
  absl::Status Finish();
  absl::Status TellOfFailure(absl::Status status);
  void ReportStep(const StepResult& result, double seconds);
  void PrintOutcomes();
  void NoteOutcome(const SaveOutcome& outcome);
  // Refuses a checkpoint whose order of samples is another; warns rank 0 of other differences.
  absl::Status CheckSettings(const Manifest& manifest) const;
  absl::Status CheckOptimizer(const Manifest& manifest) const;
  std::map<std::string, std::string> Settings() const;
  std::map<std::string, std::int64_t> Counters() const;
  absl::Status ExplainNotFinite(const StepResult& result) const;
  double SecondsOfLife() const;
  static void Say(const std::string& line);  // On standard output.
  bool first() const { return environment_.rank == 0; }

  TrainConfig config_;  // As told, but for the precision where that is to fit the device.
  const WorkerEnvironment environment_;
  Termination& termination_;
  const CudaBuild* const cuda_;
  std::unique_ptr<ControlClient> control_;  // Null without an agent.
  TrainingData data_;
  std::string fingerprint_;               // Of the data; once the group has formed.
  std::optional<Repository> repository_;  // None: no checkpoints.
  std::unique_ptr<Owner> owner_;          // Of the repository; rank 0's.
  std::optional<SampleLog> sample_log_;
  std::unique_ptr<Communicator> ranks_;
  std::optional<ComputeDevice> device_;
  Collectives* moves_ = nullptr;  // Tensors between ranks: one of those two.
  std::optional<AnyModel> model_;
  std::optional<ParamLayout> layout_;
  std::optional<TrainState> state_;
  std::vector<StateTensor> tensors_;  // Into state_, as are the next.
  TrainState::Held copies_;
  std::unique_ptr<StepRunner> runner_;
  ThreadWaits waits_;  // Of its regions.
  std::optional<Sampler> sampler_;
  bool all_end_alike_ = false;  // This end is one that every rank comes to.
  // The commit that was restored, until the saver knows of it: step and record.
  std::optional<std::pair<std::int64_t, std::string>> restored_;
  std::unique_ptr<Saver> saver_;  // After what it refers to.

  std::int64_t step_ = 0;         // Updates made.
  std::int64_t samples_ = 0;      // Consumed by them.
  std::int64_t saved_step_ = -1;  // The last one that a save was begun for.
  std::optional<SaveOutcome> last_outcome_;
  WorkerReport report_;
};

}  // namespace regroup::worker
