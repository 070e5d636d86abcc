#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "worker/checkpoint/repository.h"
#include "worker/checkpoint/shard.h"

namespace regroup::worker {

class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& below = "/tmp")
      : path_(below + "/regroup-checkpoint-test-XXXXXX") {
    CHECK(mkdtemp(path_.data()) != nullptr);
  }
  // Where thousands of files cost nothing; killed processes lose as little there as on a disk.
  static TemporaryDirectory InMemory() {
    return TemporaryDirectory(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
  }

  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A training state whose every element is a function of (tensor, element, step).
class TestState {
 public:
  explicit TestState(
      std::vector<TensorInfo> infos = {{"wte.weight", {37, 11}},
                                       {"bias", {5}},
                                       {"scalar", {}},
                                       {"exp_avg/wte.weight", {37, 11}, "F32", "exp_avg"},
                                       {"large", {3, 1000}}})
      : infos_(std::move(infos)) {
    for (const TensorInfo& info : infos_)
      data_.emplace_back(static_cast<std::size_t>(info.elements()));
  }
  const std::vector<TensorInfo>& infos() const { return infos_; }
  std::vector<StateTensor> tensors() {
    std::vector<StateTensor> tensors;
    for (std::size_t t = 0; t < infos_.size(); ++t) tensors.push_back({infos_[t], data_[t]});
    return tensors;
  }
  static float Value(std::size_t tensor, std::size_t element, std::int64_t step) {
    const std::uint64_t mixed =
        (static_cast<std::uint64_t>(step) * 1000003 + tensor * 7919 + element) *
        0x9E3779B97F4A7C15ull;
    return static_cast<float>(mixed >> 40) / 1024.0f;
  }
  void SetStep(std::int64_t step) {
    for (std::size_t t = 0; t < data_.size(); ++t) {
      for (std::size_t i = 0; i < data_[t].size(); ++i) data_[t][i] = Value(t, i, step);
    }
  }
  bool IsStep(std::int64_t step) const {
    for (std::size_t t = 0; t < data_.size(); ++t) {
      for (std::size_t i = 0; i < data_[t].size(); ++i) {
        if (data_[t][i] != Value(t, i, step)) return false;
      }
    }
    return true;
  }

 private:
  std::vector<TensorInfo> infos_;
  std::vector<std::vector<float>> data_;
};

inline absl::Status Commit(const Repository& repository, const Manifest& manifest) {
  const auto staged = repository.Stage(manifest);
  return staged.ok() ? repository.Publish(*staged) : staged.status();
}

// Commits one checkpoint without a saver.
inline Manifest CommitStep(const Repository& repository, TestState& state, std::int64_t step,
                           int world_size = 1, std::uint64_t generation = 1,
                           const std::string& job = "job-1") {
  state.SetStep(step);
  Manifest manifest{.job = job,
                    .generation = generation,
                    .attempt = 1,
                    .step = step,
                    .mesh = {world_size, 1, "ddp"},
                    .model = {{"layers", 1}},
                    .counters = {{"samples", step * 32}},
                    .settings = {{"model", "test"}},
                    .tensors = state.infos(),
                    .files = {}};
  CHECK(repository.PrepareAttempt(step, generation, 1).ok());
  for (int r = 0; r < world_size; ++r) {
    auto image = ShardImage::Create(state.infos(), r, world_size);
    CHECK(image.ok());
    image->Fill(state.tensors());
    auto info =
        WriteShard(*image, repository.AttemptPath(step, generation, 1) + "/" + image->info().name,
                   [] { return false; });
    CHECK(info.ok());
    manifest.files.push_back(*info);
  }
  CHECK(Commit(repository, manifest).ok());
  return manifest;
}

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
inline void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}
inline std::vector<std::string> AllFiles(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_directory())
      names.push_back(std::filesystem::relative(entry.path(), directory).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace regroup::worker
