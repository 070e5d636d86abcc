#include "worker/train/trainer.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/io/proc.h"
#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/restore.h"
#include "worker/comm/host_communicator.h"
#include "worker/model/gpt.h"
#include "worker/train/build_id.h"
#include "worker/train/model_sizes.h"
#include "worker/train/replicas.h"
#include "worker/train/worker_exit.h"

namespace regroup::worker {
namespace {

using std::chrono::steady_clock;

// After a save for a notice, beyond what the notice said was left.
constexpr Duration kAwaitStop = std::chrono::seconds(60);
constexpr Duration kLook = std::chrono::milliseconds(10);
// Until the slowest rank has said what all of them say.
constexpr Duration kLastWords = std::chrono::seconds(2);
constexpr int kFlipStep = 6;  // Of a planted defect: early, so that training goes on with it.

void Warn(const std::string& line) {
  std::fputs(absl::StrCat("regroup-worker: warning: ", line, "\n").c_str(), stderr);
}

// Every rank comes to these ends after the same collective, so none has to be told by another.
bool AllEndAlike(WorkerExit exit) {
  return exit == WorkerExit::kRanksDisagree || exit == WorkerExit::kLossNotFinite ||
         exit == WorkerExit::kLastCheckpointFailed || exit == WorkerExit::kReplicasDiffer;
}

double SecondsSince(steady_clock::time_point begin) {
  return std::chrono::duration<double>(steady_clock::now() - begin).count();
}

// 1420.3 → "1,420".
std::string WithThousands(double value) {
  std::string digits = absl::StrFormat("%.0f", value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

const char* NameOf(Mutation mutation) {
  switch (mutation) {
    case Mutation::kNone: return "none";
    case Mutation::kSkipBatch: return "skip_batch";
    case Mutation::kRepeatBatch: return "repeat_batch";
    case Mutation::kResumeFromZero: return "resume_from_zero";
    case Mutation::kGradientScale: return "gradient_scale";
    case Mutation::kFlipBit: return "flip_bit";
  }
  return "?";
}

}  // namespace

Trainer::Trainer(TrainConfig config, WorkerEnvironment environment, Termination& termination,
                 const CudaBuild* cuda)
    : config_(std::move(config)),
      environment_(std::move(environment)),
      termination_(termination),
      cuda_(cuda) {}
Trainer::~Trainer() = default;

void Trainer::Say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

absl::Status Trainer::Run() {
  if (!environment_.socket.empty()) {
    control_ = ControlClient::Start({.socket = environment_.socket,
                                     .job = environment_.job,
                                     .generation = environment_.generation,
                                     .rank = environment_.rank,
                                     .local_rank = environment_.local_rank,
                                     .token = environment_.token,
                                     .takes_notice = !config_.checkpoint_dir.empty()});
  }
  if (environment_.mutation != Mutation::kNone) {
    Warn(absl::StrCat("REGROUP_TEST_MUTATION=", NameOf(environment_.mutation),
                      ": this training is made WRONG ON PURPOSE, to test what must notice it"));
  }
  RETURN_IF_ERROR(Prepare());
  RETURN_IF_ERROR(Join());
  report_.init_s = SecondsOfLife();
  for (const auto part : {&Trainer::Agree, &Trainer::Build, &Trainer::Restore, &Trainer::StartSaver,
                          &Trainer::Loop}) {
    if (absl::Status status = (this->*part)(); !status.ok())
      return TellOfFailure(std::move(status));
  }
  return absl::OkStatus();
}

// What can fail on this rank alone, before the others wait for it.
absl::Status Trainer::Prepare() {
  RETURN_IF_ERROR(
      WithExit(CheckWorld(environment_.world_size, config_.ShardGroup(environment_.ranks_of_node)),
               WorkerExit::kUsage));
  ASSIGN_OR_RETURN(device_, ComputeDevice::Choose({.device = config_.device,
                                                   .transport = config_.transport,
                                                   .cuda_graphs = config_.cuda_graphs,
                                                   .isa = config_.Kernels(),
                                                   .device_rank = environment_.device_rank,
                                                   .alone = environment_.world_size == 1},
                                                  cuda_));
  ASSIGN_OR_RETURN(data_, OpenTrainingData(config_));
  if (config_.batch < environment_.world_size && first()) {
    Warn(absl::StrCat("a batch of ", config_.batch, " samples leaves ",
                      environment_.world_size - config_.batch, " of ", environment_.world_size,
                      " ranks without a sample; --batch ", environment_.world_size,
                      " would use them all"));
  }
  if (!config_.checkpoint_dir.empty()) {
    absl::StatusOr<Repository> repository = Repository::OpenForTraining(config_.checkpoint_dir);
    if (!repository.ok()) return WithExit(repository.status(), WorkerExit::kCheckpointDirectory);
    repository_ = *std::move(repository);
  }
  if (!config_.sample_log.empty()) {
    absl::StatusOr<SampleLog> log = SampleLog::Open(config_.sample_log, environment_.generation,
                                                    environment_.rank, environment_.world_size);
    if (!log.ok()) {
      return WithExit(
          UserError(absl::StatusCode::kInvalidArgument,
                    absl::StrCat("sample log ", config_.sample_log, " cannot be written"),
                    std::string(log.status().message()), "--sample-log DIR"),
          WorkerExit::kUsage);
    }
    sample_log_ = *std::move(log);
  }
  return absl::OkStatus();
}

absl::Status Trainer::Join() {
  HostCommunicatorOptions options;
  options.rank = environment_.rank;
  options.world_size = environment_.world_size;
  options.build = BuildId();
  options.store_host = environment_.store_host;
  options.store_port = environment_.store_port;
  options.join_deadline = config_.join_timeout;
  options.deadline = config_.collective_timeout;
  absl::StatusOr<std::unique_ptr<Communicator>> ranks = JoinHostCommunicator(options);
  if (!ranks.ok()) {
    return WithExit(
        UserError(ranks.status().code(),
                  absl::StrCat("the group of ", environment_.world_size, " ranks was not formed"),
                  std::string(ranks.status().message()), ""),
        WorkerExit::kGroupNotFormed);
  }
  ranks_ = *std::move(ranks);
  return absl::OkStatus();
}

std::map<std::string, std::string> Trainer::Settings() const {
  std::map<std::string, std::string> settings = config_.Settings();
  settings["data"] = fingerprint_;
  settings["vocabulary"] = absl::StrCat(data_.train->vocabulary());
  if (!data_.train->tokens_are_bytes()) settings["data-format"] = "tokens";
  return settings;
}

absl::Status Trainer::ConnectDevices() {
  NcclOptions options;
  options.store_host = environment_.store_host;
  options.store_port = environment_.store_port;
  options.group = layout_->groups() == 1 ? 1 : layout_->group();
  options.init_deadline = config_.join_timeout;
  options.deadline = config_.collective_timeout;
  const bool nccl = device_->transport() == std::string_view("nccl");
  absl::StatusOr<Collectives*> moves = device_->Connect(*ranks_, options);
  if (moves.ok()) {
    moves_ = *moves;
    return absl::OkStatus();
  }
  const absl::Status why = moves.status();
  const std::string because(why.message());
  // A host's communicator fails here as it does anywhere; NCCL's was not yet made.
  if (IsCommunicatorFailure(why)) return nccl ? WithExit(why, WorkerExit::kGroupNotFormed) : why;
  if (nccl && absl::IsInternal(why)) {
    return WithExit(UserError(why.code(), "NCCL cannot be used", because,
                              "NCCL_DEBUG=WARN, which tells more, or --transport host"),
                    WorkerExit::kNoDevice);
  }
  if (!absl::IsFailedPrecondition(why)) return why;
  return WithExit(UserError(why.code(), "NCCL is not the same on all ranks", because,
                            "one version on every node"),
                  WorkerExit::kRanksDisagree);
}

absl::Status Trainer::Build() {
  absl::Status built = BuildParts();
  if (absl::IsResourceExhausted(built) || absl::IsInvalidArgument(built)) {
    return WithExit(UserError(built.code(), "this model or its batch is too large",
                              std::string(built.message()),
                              "a smaller --micro-batch, --context, --width or --layers"),
                    absl::IsInvalidArgument(built) ? WorkerExit::kUsage : WorkerExit::kFailed);
  }
  return built;
}

absl::Status Trainer::BuildParts() {
  model_ = MakeGpt(config_.Model(data_.train->vocabulary()), config_.Precision());
  const int group = config_.ShardGroup(environment_.ranks_of_node);
  ASSIGN_OR_RETURN(layout_, ParamLayout::Create(UnitSpecs(*model_), environment_.world_size,
                                                config_.strategy, group, config_.Rounds()));
  RETURN_IF_ERROR(ConnectDevices());
  ASSIGN_OR_RETURN(state_, TrainState::Create(*layout_, environment_.rank, moves_,
                                              config_.optimizer, &device_->device()));
  tensors_ = state_->Tensors(*layout_);
  copies_ = state_->Copies(*layout_);
  sampler_.emplace(config_.seed, data_.train->samples());
  // The planted defect is one that matters: AdamW does not see a factor that all gradients share.
  const bool wrong_scale = environment_.mutation == Mutation::kGradientScale && !first();
  const Backend backend{*ranks_, *moves_, device_->device(), device_->kernels()};
  const StepRunnerOptions options{.batch = config_.batch,
                                  .micro_batch = config_.micro_batch,
                                  .optimizer = config_.Optimizer(),
                                  .schedule = config_.LearningRates(),
                                  .clip = config_.clip,
                                  .gradient_factor = wrong_scale ? 3.0 : 1.0,
                                  .seed = config_.seed,
                                  .recompute = config_.recompute,
                                  .reduce_type = config_.ReduceType(),
                                  .accumulate_type = config_.accumulate_type,
                                  .reshard_after_forward = config_.reshard_after_forward,
                                  .wrap = config_.wrap};
  absl::StatusOr<std::unique_ptr<StepRunner>> runner = std::visit(
      [&](const auto& model) {
        return StepRunner::Create(backend, model, *layout_, *data_.train, *state_, options);
      },
      *model_);
  if (absl::IsFailedPrecondition(runner.status()) && !IsCommunicatorFailure(runner.status()))
    return WithExit(runner.status(), WorkerExit::kRanksDisagree);
  if (!runner.ok()) return runner.status();
  runner_ = *std::move(runner);
  return absl::OkStatus();
}

absl::Status Trainer::TakeDirectory() {
  absl::StatusOr<std::unique_ptr<Owner>> owner = Owner::Take(
      config_.checkpoint_dir,
      {.job = environment_.job,
       .generation = environment_.generation,
       .take_over = config_.take_over},
      [&](const std::string& holder, Duration left) {
        Warn(absl::StrCat(config_.checkpoint_dir, " was last written by ", holder,
                          "; waiting up to ", std::ceil(Seconds(left)),
                          " s to see whether that still runs (--take-over does not wait)"));
      });
  if (!owner.ok()) {
    return WithExit(UserError(owner.status().code(), "cannot use this checkpoint directory",
                              std::string(owner.status().message()),
                              "another --checkpoint-dir, or --take-over, which ends the other job"),
                    WorkerExit::kCheckpointDirectory);
  }
  owner_ = *std::move(owner);
  termination_.AtEnd([o = owner_.get()] { o->LeaveWithin(std::chrono::milliseconds(200)); });
  return absl::OkStatus();
}

absl::Status Trainer::LoadNewest(std::optional<Manifest>& manifest) {
  if (first() && environment_.resume_step > 0) {
    // Accepted, but who asked has died before it was published.
    const absl::Status published =
        repository_->PublishStaged(environment_.job, environment_.resume_step);
    if (!published.ok() && !absl::IsNotFound(published)) Warn(std::string(published.message()));
  }
  absl::StatusOr<Restored> restored =
      RestoreNewest(*ranks_, *repository_, tensors_, [this](const Manifest& m) -> absl::Status {
        RETURN_IF_ERROR(CheckModel(m, config_.Model(data_.train->vocabulary())));
        return CheckOptimizer(m);
      });
  // Ranks that failed each other say nothing about the checkpoints.
  if (IsCommunicatorFailure(restored.status())) return restored.status();
  if (absl::IsDataLoss(restored.status()) || absl::IsFailedPrecondition(restored.status())) {
    return WithExit(UserError(restored.status().code(), "cannot resume",
                              std::string(restored.status().message()),
                              absl::StrCat("another --checkpoint-dir, or remove ",
                                           config_.checkpoint_dir, " to start anew")),
                    WorkerExit::kCheckpointUnusable);
  }
  if (!restored.ok()) return restored.status();
  if (first()) {
    for (const std::string& why : restored->skipped) Warn(why);
  }
  if (restored->manifest) restored_ = {restored->manifest->step, std::move(restored->record)};
  manifest = std::move(restored->manifest);
  return absl::OkStatus();
}

absl::Status Trainer::Restore() {
  const auto begin = steady_clock::now();
  // Rank 0 alone takes the directory and finishes commits, and ranks read at their own pace: none
  // of that is a step. Who dies meanwhile is noticed at once all the same.
  ranks_->SetDeadline(config_.restore_timeout);
  std::optional<Manifest> manifest;
  if (repository_ && first()) RETURN_IF_ERROR(TakeDirectory());
  if (repository_ && environment_.mutation != Mutation::kResumeFromZero)
    RETURN_IF_ERROR(LoadNewest(manifest));
  if (manifest) {
    step_ = manifest->step;
    samples_ = manifest->counters.count("samples") != 0 ? manifest->counters.at("samples")
                                                        : step_ * config_.batch;
    if (samples_ < 0) {
      return WithExit(UserError(absl::StatusCode::kDataLoss, "cannot resume",
                                absl::StrCat("the commit of step ", step_, " says that ", samples_,
                                             " samples were consumed"),
                                "another --checkpoint-dir"),
                      WorkerExit::kCheckpointUnusable);
    }
    saved_step_ = step_;
    RETURN_IF_ERROR(CheckSettings(*manifest));
    if (const absl::Status scale = runner_->scaler().Restore(manifest->counters); !scale.ok()) {
      return WithExit(UserError(scale.code(), "cannot resume", std::string(scale.message()),
                                "another --checkpoint-dir"),
                      WorkerExit::kCheckpointUnusable);
    }
  } else {
    state_->InitializeWeights(*layout_, config_.seed);
  }
  RETURN_IF_ERROR(state_->CopyToDevice());
  if (first() && step_ < environment_.resume_step) {
    Warn(absl::StrCat("the coordinator has accepted a commit of step ", environment_.resume_step,
                      ", but the newest that is usable is of step ", step_));
  }
  report_.restored_step = step_;
  report_.step = step_;
  report_.samples = samples_;
  report_.tokens = samples_ * config_.context;
  report_.restore_s = SecondsSince(begin);
  if (control_) control_->Report(report_);
  if (first()) {
    if (!device_->words().empty()) Say(device_->words());
    Say(absl::StrFormat("%s, %d of %d steps, world %d, %s parameters, batch %d x %d tokens",
                        manifest ? absl::StrCat("resumed from step ", step_)
                                 : std::string("training from the start"),
                        step_, config_.steps, environment_.world_size,
                        WithThousands(static_cast<double>(layout_->param_elements())),
                        config_.batch, config_.context));
    SayWhatIsDivided();
    SayWhatIsShort();
  }
  return absl::OkStatus();
}

void Trainer::SayWhatIsDivided() const {
  if (!layout_->Divides(StateKind::kMoments)) return;
  const auto mib = [](std::int64_t elements) {
    return static_cast<double>(elements) * sizeof(float) / (1 << 20);
  };
  const auto slots = static_cast<std::int64_t>(state_->slots.size());
  const std::string groups =
      layout_->groups() == 1
          ? ""
          : absl::StrCat(" in ", layout_->groups(), " groups of ", layout_->group(), " ranks");
  Say(absl::StrFormat(
      "%s%s: rank 0 keeps %.1f of %.1f MiB of weights and moments, and %.1f MiB for "
      "gradients and gathered weights",
      NameOf(layout_->strategy()), groups,
      mib(layout_->Elements(StateKind::kWeights, 0) +
          slots * layout_->Elements(StateKind::kMoments, 0)),
      mib((1 + slots) * layout_->flat_elements()),
      static_cast<double>(runner_->memory_bytes()) / (1 << 20)));
}

// Two of them may keep state of the same names, which means something else to each.
absl::Status Trainer::CheckOptimizer(const Manifest& manifest) const {
  const auto found = manifest.settings.find("optimizer");
  const std::string before =  // Once there was only one.
      found == manifest.settings.end() ? NameOf(OptimizerKind::kAdamW) : found->second;
  if (before == NameOf(config_.optimizer)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint of step ", manifest.step, " holds the state of the optimizer ",
                   before, ", which ", NameOf(config_.optimizer),
                   " cannot go on from; with --optimizer ", before, " it can be resumed"));
}

void Trainer::SayWhatIsShort() const {
  const DType type = config_.Precision();
  if (type == DType::kF32) return;
  Say(absl::StrCat(NameOf(type), ": ",
                   device_->is_cuda() ? "products are added up in f32"
                   : MultipliesNatively(type, config_.Kernels())
                       ? "the CPU multiplies such numbers itself"
                       : "this CPU converts such numbers to f32 for each product, which is slower "
                         "than f32",
                   "; weights of the optimizer, moments and gradients are f32"));
}

absl::Status Trainer::CheckSettings(const Manifest& manifest) const {
  std::string differences;
  bool other_samples = false;
  std::map<std::string, std::string> now = Settings(), before = manifest.settings;
  for (const char* name : TrainConfig::kLeftOut) {
    for (std::map<std::string, std::string>* settings : {&now, &before})
      settings->emplace(name, "as by default");
  }
  for (const auto& [name, value] : now) {
    const auto found = before.find(name);
    if (found == before.end() || found->second == value) continue;
    absl::StrAppend(&differences, differences.empty() ? "" : ", ", name, " ", found->second, " → ",
                    value);
    other_samples |= name == "seed" || name == "data";  // Another context is another model.
  }
  if (other_samples && !config_.accept_other_settings) {
    return WithExit(
        UserError(
            absl::StatusCode::kFailedPrecondition,
            absl::StrCat("cannot resume from step ", manifest.step, " in ", config_.checkpoint_dir),
            absl::StrCat("its samples came in another order, so some would be repeated and "
                         "some left out: ",
                         differences),
            "the former settings, another --checkpoint-dir, or --accept-other-settings"),
        WorkerExit::kCheckpointUnusable);
  }
  if (!differences.empty() && first())
    Warn(absl::StrCat("the checkpoint was made with other settings: ", differences));
  return absl::OkStatus();
}

absl::Status Trainer::StartSaver() {
  if (!repository_) {
    ranks_->SetDeadline(config_.collective_timeout);
    return absl::OkStatus();
  }
  std::int64_t highest = 0;
  if (first()) {
    // A directory that can not be tidied up may still be saved to; one that was lost meanwhile is
    // another's to tidy up.
    absl::Status swept = owner_ ? owner_->Check() : absl::OkStatus();
    if (swept.ok()) swept = repository_->Sweep(environment_.generation);
    if (!swept.ok()) Warn(std::string(swept.message()));
    highest =
        static_cast<std::int64_t>(repository_->HighestAttempt(environment_.generation).value_or(0));
  }
  RETURN_IF_ERROR(ranks_->AllReduce(std::span(&highest, 1), Reduction::kMax));
  SaverOptions options;
  options.rank = environment_.rank;
  options.world_size = environment_.world_size;
  options.job = environment_.job;
  options.generation = environment_.generation;
  options.first_attempt = static_cast<std::uint64_t>(highest) + 1;
  options.keep = config_.keep;
  options.patience = config_.save_timeout;
  options.strategy = NameOf(layout_->strategy());
  options.model = SizesOf(config_.Model(data_.train->vocabulary()));
  options.settings = Settings();
  options.owner = owner_.get();
  if (layout_->Divides(StateKind::kMoments)) {
    options.part = state_->Part(*layout_);
    options.group = layout_->group();
  }
  options.known_sound = std::exchange(restored_, std::nullopt);
  ranks_->SetDeadline(config_.collective_timeout);
  ASSIGN_OR_RETURN(
      saver_, Saver::Create(*repository_, control_.get(), std::move(options), InfosOf(tensors_)));
  return absl::OkStatus();
}

absl::Status Trainer::Loop() {
  while (step_ < config_.steps) {
    waits_.Look(io::MonotonicNow());
    RETURN_IF_ERROR(Step());
    if (data_.validation && (step_ % config_.eval_every == 0 || step_ == config_.steps))
      RETURN_IF_ERROR(Evaluate());
  }
  return Finish();
}

absl::Status Trainer::Evaluate() {
  const std::int64_t batches =
      std::min<std::int64_t>(config_.eval_batches, data_.validation->samples() / config_.batch);
  ASSIGN_OR_RETURN(const double loss, runner_->Evaluate(*data_.validation, batches));
  if (first()) {
    Say(absl::StrFormat("step %d  validation loss %.4f  over %d samples", step_, loss,
                        batches * config_.batch));
  }
  return absl::OkStatus();
}

absl::Status Trainer::Step() {
  const auto begin = steady_clock::now();
  const std::vector<std::int64_t> ids = sampler_->Ids(samples_, config_.batch);
  std::vector<std::int64_t> next;
  if (step_ + 1 < config_.steps) next = sampler_->Ids(samples_ + config_.batch, config_.batch);
  const Ballot ballot{.notice = saver_ && control_ && control_->notice(),
                      .busy = saver_ && saver_->Busy()};
  absl::StatusOr<StepResult> result = runner_->Run(step_, ids, ballot, next);
  while (result.ok() && result->retry) result = runner_->Run(step_, ids, ballot, next);
  if (!result.ok()) return result.status();
  if (!result->done) {
    RETURN_IF_ERROR(LetSavesEnd());
    return ExplainNotFinite(*result);
  }
  ++step_;
  const Slice& slice = runner_->slice();
  if (sample_log_) {
    const absl::Status logged =
        sample_log_->Append(step_, samples_ + slice.begin,
                            std::span(ids).subspan(static_cast<std::size_t>(slice.begin),
                                                   static_cast<std::size_t>(slice.size)),
                            result->loss);
    if (!logged.ok()) return WithExit(logged, WorkerExit::kFailed);
  }
  samples_ += config_.batch;
  if (step_ == config_.steps / 2 && environment_.mutation == Mutation::kSkipBatch)
    samples_ += config_.batch;
  if (step_ == config_.steps / 2 && environment_.mutation == Mutation::kRepeatBatch)
    samples_ -= config_.batch;
  if (step_ == std::min(config_.steps / 2, kFlipStep) &&
      environment_.mutation == Mutation::kFlipBit)
    RETURN_IF_ERROR(FlipBit());
  ReportStep(*result, SecondsSince(begin));
  return SaveWhatIsDue(result->any);
}

absl::Status Trainer::ExplainNotFinite(const StepResult& result) const {
  const bool overflow = config_.Precision() == DType::kF16 && std::isfinite(result.loss);
  return WithExit(
      UserError(
          absl::StatusCode::kOutOfRange,
          absl::StrCat(overflow ? "the gradients" : "the loss", " of step ", step_ + 1,
                       overflow ? " overflow f16 at any loss scale" : " is not finite"),
          absl::StrFormat("loss %g, norm of the gradients %g", result.loss, result.gradient_norm),
          overflow ? "--precision bf16, or a lower --learning-rate"
                   : "a lower --learning-rate, a longer --warmup"),
      WorkerExit::kLossNotFinite);
}

std::map<std::string, std::int64_t> Trainer::Counters() const {
  std::map<std::string, std::int64_t> counters = {{"step", step_}, {"samples", samples_}};
  runner_->scaler().Save(counters);
  return counters;
}

// A bit of one weight, as a fault of the last rank's memory may do. Not the lowest: rounding undoes
// that within some steps.
absl::Status Trainer::FlipBit() {
  if (environment_.rank + 1 != environment_.world_size) return absl::OkStatus();
  const std::vector<StateSlice>& last = tensors_[layout_->params().size() - 1].slices;
  if (last.empty()) return absl::OkStatus();  // Another rank's.
  RETURN_IF_ERROR(state_->CopyToHost());
  float& weight = last[0].data[0];
  weight = std::bit_cast<float>(std::bit_cast<std::uint32_t>(weight) ^ 1U << 20);
  return state_->CopyToDevice();
}

void Trainer::ReportStep(const StepResult& result, double seconds) {
  const double tokens_per_second = static_cast<double>(config_.batch) * config_.context / seconds;
  report_.step = step_;
  report_.samples = samples_;
  report_.tokens = samples_ * config_.context;
  report_.loss = result.loss;
  report_.tokens_per_second = tokens_per_second;
  if (!report_.first_step_s) report_.first_step_s = seconds;
  if (control_) control_->Report(report_);
  if (first() && (step_ % config_.log_every == 0 || step_ == config_.steps)) {
    Say(absl::StrFormat("step %d  loss %.4f  %s tok/s", step_, result.loss,
                        WithThousands(tokens_per_second)));
  }
}

absl::Status Trainer::SaveWhatIsDue(const Ballot& any) {
  PrintOutcomes();
  if (owner_ && owner_->lost()) {
    return WithExit(UserError(absl::StatusCode::kFailedPrecondition,
                              "another job has taken the checkpoint directory",
                              std::string(owner_->Check().message()),
                              "another --checkpoint-dir for one of the two"),
                    WorkerExit::kCheckpointDirectory);
  }
  // After the last step there is nothing to leave for: what remains is the last save.
  if (any.notice && step_ < config_.steps) return LeaveForNotice();
  if (!saver_ || step_ % config_.checkpoint_every != 0 || step_ == config_.steps)
    return absl::OkStatus();
  if (any.busy) {
    if (first())
      Warn(absl::StrCat("no checkpoint of step ", step_,
                        ": two earlier ones are still being written"));
    return absl::OkStatus();
  }
  return Save(false);
}

absl::Status Trainer::Save(bool for_notice) {
  const auto begin = steady_clock::now();
  RETURN_IF_ERROR(state_->CopyToHost());
  const std::map<std::string, std::int64_t> counters = Counters();
  const std::vector<std::int64_t> by_all = HashState(copies_.by_all, counters),
                                  by_place = HashState(copies_.by_place, counters);
  // Each rank writes a part of what others hold too, or what it alone owns. Who leaves waits for no
  // collective: then rank 0 alone compares, by what the others report.
  absl::Status equal;
  if (!for_notice) equal = CompareReplicas(*ranks_, *layout_, copies_.by_all, by_all, step_);
  if (!for_notice && equal.ok()) {
    equal = CompareReplicas(*ranks_, *layout_, copies_.by_place, by_place, step_, layout_->group());
  }
  if (!equal.ok() && !IsCommunicatorFailure(equal)) {
    RETURN_IF_ERROR(LetSavesEnd());
    equal = WithExit(std::move(equal), WorkerExit::kReplicasDiffer);
  }
  RETURN_IF_ERROR(equal);
  // The save needs a free snapshot. Both may be those of saves that wait for a rank that died,
  // which only a look at the group tells.
  while (!for_notice && saver_->Busy()) {
    RETURN_IF_ERROR(ranks_->Health());
    std::this_thread::sleep_for(kLook);
  }
  saver_->Save(step_, counters, for_notice, tensors_,
               {.by_all = Xxh3Hex(std::as_bytes(std::span(by_all))),
                .by_place = Xxh3Hex(std::as_bytes(std::span(by_place)))});
  saved_step_ = step_;
  report_.checkpoint_s = report_.checkpoint_s.value_or(0) + SecondsSince(begin);
  return absl::OkStatus();
}

void Trainer::PrintOutcomes() {
  if (!saver_) return;
  for (const SaveOutcome& outcome : saver_->TakeOutcomes()) NoteOutcome(outcome);
}

void Trainer::NoteOutcome(const SaveOutcome& outcome) {
  last_outcome_ = outcome;
  if (!outcome.status.ok()) {
    // Every rank tells of its own failure; rank 0 also of those of the others.
    Warn(absl::StrCat("the checkpoint of step ", outcome.step, " was not saved (",
                      std::string(outcome.status.message()),
                      "); the training goes on, the commits before it stay"));
  } else if (first()) {
    Say(absl::StrFormat("saved step %d in %.2f s%s", outcome.step, Seconds(outcome.took),
                        outcome.for_notice ? ", for the notice" : ""));
  }
  if (!outcome.verification.ok())
    Warn(absl::StrCat("the checkpoint of step ", outcome.step, " was saved, but ",
                      std::string(outcome.verification.message()),
                      "; older ones stay until there are ", config_.keep, " sound ones"));
  if (!outcome.retention.ok())
    Warn(absl::StrCat("old checkpoints could not be tidied up: ",
                      std::string(outcome.retention.message())));
}

// Every rank comes here after the same step. What was begun earlier is given up: this save is
// newer, and waits for nothing. Then the agent stops this worker, once the commit is accepted or
// the time is over.
absl::Status Trainer::LeaveForNotice() {
  const std::optional<Duration> left = control_ ? control_->notice() : std::nullopt;
  if (first()) Say(absl::StrCat("notice of preemption: saving step ", step_, " and leaving"));
  termination_.BeginSaving();
  saver_->GiveUp();
  RETURN_IF_ERROR(Save(true));
  saver_->WaitIdle();
  PrintOutcomes();
  if (control_) control_->Report(report_);
  termination_.EndSaving();
  std::this_thread::sleep_for(left.value_or(Duration::zero()) + kAwaitStop);
  const bool saved = last_outcome_ && last_outcome_->step == step_ && last_outcome_->status.ok();
  return WithExit(
      absl::DeadlineExceededError(absl::StrCat(saved ? "saved" : "could not save", " step ", step_,
                                               " for a notice, but nobody stopped this worker")),
      WorkerExit::kNoticeExpired);
}

// A collective has to follow: rank 0 is the last to know, for it waits for the others' files and
// for the coordinator. Until then no collective would notice a rank that dies.
absl::Status Trainer::AwaitSaves() {
  while (!saver_->WaitIdle(kLook)) RETURN_IF_ERROR(ranks_->Health());
  PrintOutcomes();
  ranks_->SetDeadline(3 * config_.save_timeout + config_.collective_timeout);
  return absl::OkStatus();
}

// Where all ranks end after the same collective: what is still being written is from before that,
// and what the job will go on from.
absl::Status Trainer::LetSavesEnd() {
  if (!saver_) return absl::OkStatus();
  RETURN_IF_ERROR(AwaitSaves());
  return ranks_->Barrier();
}

// The training is done when its last checkpoint is.
absl::Status Trainer::Finish() {
  if (saver_ && saved_step_ != step_) {
    RETURN_IF_ERROR(Save(false));
    if (control_) control_->Report(report_);
  }
  // A rank that leaves is missed by those who are not yet done: gathers may stay on a host.
  if (!saver_) return ranks_->Barrier();
  RETURN_IF_ERROR(AwaitSaves());
  std::int64_t failed = last_outcome_ && last_outcome_->step == step_ &&
                                !last_outcome_->status.ok() && !last_outcome_->already_there
                            ? 1
                            : 0;
  RETURN_IF_ERROR(ranks_->AllReduce(std::span(&failed, 1), Reduction::kMax));
  if (failed == 0) {
    if (owner_) owner_->Release();
    return absl::OkStatus();
  }
  return WithExit(
      UserError(absl::StatusCode::kUnavailable,
                absl::StrCat("all ", step_,
                             " steps are done, but the last checkpoint could not be saved"),
                last_outcome_ ? std::string(last_outcome_->status.message()) : "",
                "make room in, or access to, the checkpoint directory"),
      WorkerExit::kLastCheckpointFailed);
}

absl::Status Trainer::TellOfFailure(absl::Status status) {
  if (!IsCommunicatorFailure(status)) {
    all_end_alike_ = AllEndAlike(ExitOf(status));
    if (all_end_alike_) return status;
    ranks_->Abort();  // Now, and not once this process is gone: the others wait for this rank.
    return status;
  }
  if (control_) control_->CommunicatorFailed(std::string(status.message()));
  if (ExitOf(status) != WorkerExit::kFailed) return status;
  return WithExit(std::move(status), WorkerExit::kCommunicatorFailed);
}

void Trainer::SayGoodbye() {
  if (owner_) owner_->LeaveWithin(std::chrono::milliseconds(200));
  if (control_) control_->Flush();
  if (!all_end_alike_) return;
  // An agent stops the others once the first has ended: what they have not said by then, each of
  // its own settings and directories, nobody would hear.
  ranks_->SetDeadline(kLastWords);
  (void)ranks_->Barrier();
}

double Trainer::SecondsOfLife() const {
  const auto self = io::ReadProcessStat(getpid());
  if (!self) return 0;
  return Seconds(io::BootNow().time_since_epoch()) -
         static_cast<double>(self->start_ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace regroup::worker
