#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/time.h"
#include "common/config/flags.h"
#include "worker/data/open_dataset.h"
#include "worker/kernels/kernels.h"
#include "worker/layout/layout.h"
#include "worker/model/gpt.h"
#include "worker/optim/optimizer.h"
#include "worker/optim/schedule.h"
#include "worker/plan/wrap.h"

namespace regroup::worker {

// What a rank computes on. kAuto: a GPU where there is one that it can use.
enum class DeviceChoice : std::uint8_t { kAuto, kCpu, kCuda };
// What moves tensors of GPUs: NCCL, or what moves those of CPUs, by way of the host's memory.
// kAuto: NCCL, or where also the device is kAuto and there is none, the host.
enum class Transport : std::uint8_t { kAuto, kNccl, kHost };

// What `regroup-worker train` is told. Lengths are in tokens, batches in samples.
struct TrainConfig {
  std::string config;             // A YAML file of the same names.
  std::vector<std::string> data;  // Text or token files, or directories of such.
  DataFormat data_format = DataFormat::kAuto;
  int vocabulary = 0;                  // 0: what fits the data.
  std::vector<std::string> eval_data;  // As data; empty: none.
  int eval_every = 100, eval_batches = 20;
  int layers = 6, width = 384, heads = 6, context = 256;
  int steps = 1000;
  int batch = 8;                                 // Global: of one step of all ranks together.
  int micro_batch = 8;                           // Largest that one forward pass of one rank takes.
  Strategy strategy = Strategy::kReplicated;     // What of the state the ranks divide.
  int shard_group = 0;                           // How many ranks divide it; 0: all.
  bool hybrid = false;                           // 0: those of one host.
  bool reshard_after_forward = true;             // Of zero-3: gathered twice.
  WrapPolicy wrap{};                             // Of zero-3: what is gathered together.
  Recompute recompute = Recompute::kNone;        // Of activations.
  std::optional<DType> precision = DType::kF32;  // None: bf16 where the device multiplies that.
  DType accumulate_type = DType::kF32;           // What gradients are kept and added up as.
  std::optional<DType> reduce_type;              // What ranks exchange of them. None: the same.
  double learning_rate = 3e-4, min_learning_rate = 3e-5;
  int warmup = 0;
  ScheduleKind schedule = ScheduleKind::kCosine;
  ScalingRule scaling = ScalingRule::kNone;  // Of both learning rates, if batches are not of
  int base_batch = 256;                      // this many samples.
  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, clip = 1.0;
  double momentum = 0.9, trust = 1e-3;
  std::uint64_t seed = 1;
  std::string checkpoint_dir;  // Empty: no checkpoints.
  int checkpoint_every = 100;
  int keep = 2;
  bool take_over = false;              // The checkpoint directory, from another job.
  bool accept_other_settings = false;  // Resumes although the order of samples is another.
  std::string sample_log;              // Directory; empty: none.
  int log_every = 1;
  DeviceChoice device = DeviceChoice::kAuto;
  Transport transport = Transport::kAuto;
  bool cuda_graphs = true;
  std::optional<Isa> kernels;  // On a CPU. None: the best that it has.
  Duration collective_timeout = std::chrono::seconds(120);
  Duration join_timeout = std::chrono::seconds(60);
  Duration restore_timeout = std::chrono::minutes(30);
  Duration save_timeout = std::chrono::minutes(10);

  Isa Kernels() const { return kernels.value_or(BestIsa()); }
  // 0: all ranks.
  int ShardGroup(int ranks_of_host) const {
    return shard_group == 0 && hybrid ? ranks_of_host : shard_group;
  }
  DType Precision() const;
  DType ReduceType() const { return reduce_type.value_or(accumulate_type); }
  bool Rounds() const { return Precision() != DType::kF32; }  // Weights, for a step.
  GptConfig Model(int vocabulary) const;
  GptConfig Model() const;  // As far as is known without the data: of text, unless told otherwise.
  OptimizerConfig Optimizer() const;
  Schedule LearningRates() const;
  // What decides the result, by name; in commit records, and compared between ranks. Those of
  // kLeftOut are not in it where they are as they were before there was a choice.
  std::map<std::string, std::string> Settings() const;
  static constexpr const char* kLeftOut[] = {"lr-schedule", "lr-scale", "accumulate-type",
                                             "reduce-type"};
};

CommandDescription DescribeTrain();
void DescribeTrainFlags(CLI::App& app, TrainConfig& config);
// Everything that needs no file but the configuration: UserError in three parts.
absl::Status Validate(const TrainConfig& config);
// That groups of so many ranks, or of all (0), make up the world. UserError in three parts.
absl::Status CheckWorld(int world, int group);

// What the file named by config.config says, if it names one.
absl::Status ReadTrainFile(TrainConfig& config);
// Flags over environment over --config's file over defaults, validated. None: --help was asked for.
absl::StatusOr<std::optional<TrainConfig>> ReadTrainConfig(const std::vector<std::string>& args);

}  // namespace regroup::worker
