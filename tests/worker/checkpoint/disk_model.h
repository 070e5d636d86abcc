#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/rng.h"
#include "tests/worker/checkpoint/io_watch.h"

namespace regroup::worker {

// What a disk may hold after a power cut, as POSIX allows it: data of a file is safe once the file
// was synced, a name once its directory was; of everything else any part may be there.
class DiskModel {
 public:
  // `root` exists, is durable and empty.
  explicit DiskModel(std::string root) : root_(std::move(root)) {
    nodes_.push_back({.directory = true, .data = {}, .names = {}, .writes = {}, .changes = {}});
  }

  void Apply(const IoCall& call) {
    switch (call.kind) {
      case IoCall::kMakeDirectory:
      case IoCall::kCreate:
        nodes_.push_back({.directory = call.kind == IoCall::kMakeDirectory,
                          .data = {},
                          .names = {},
                          .writes = {},
                          .changes = {}});
        return Change(call.path, {{NameOf(call.path), static_cast<int>(nodes_.size()) - 1}});
      case IoCall::kWrite:
      case IoCall::kTruncate: nodes_[Find(call.path)].writes.push_back(call); return;
      case IoCall::kSync: return Sync(nodes_[Find(call.path)]);
      case IoCall::kLink: return Change(call.other, {{NameOf(call.other), Find(call.path)}});
      case IoCall::kRename: {
        CHECK(ParentOf(call.path) == ParentOf(call.other));
        const int node = Find(call.path);
        return Change(call.path, {{NameOf(call.path), std::nullopt}, {NameOf(call.other), node}});
      }
      case IoCall::kUnlink: return Change(call.path, {{NameOf(call.path), std::nullopt}});
    }
  }

  // Makes below `target`, which exists and is empty, what may be left: each thing that is not
  // durable is there with this probability.
  void WriteCrashState(double probability, Rng& rng, const std::string& target) const {
    Write(nodes_[0], probability, rng, target);
  }

 private:
  using NameChange = std::vector<std::pair<std::string, std::optional<int>>>;  // Together or not.
  struct Node {
    bool directory = false;
    std::string data;                  // Durable.
    std::map<std::string, int> names;  // Durable.
    std::vector<IoCall> writes;        // Since the last sync.
    std::vector<NameChange> changes;   // Since the last sync.
  };

  static std::string ParentOf(const std::string& path) {
    return std::filesystem::path(path).parent_path().string();
  }
  static std::string NameOf(const std::string& path) {
    return std::filesystem::path(path).filename().string();
  }

  static void Apply(const NameChange& change, std::map<std::string, int>& names) {
    for (const auto& [name, node] : change) {
      if (node) {
        names[name] = *node;
      } else {
        names.erase(name);
      }
    }
  }
  static void Apply(const IoCall& write, std::string& data) {
    if (write.kind == IoCall::kTruncate) return data.resize(write.offset);
    if (data.size() < write.offset + write.bytes.size())
      data.resize(write.offset + write.bytes.size());
    data.replace(write.offset, write.bytes.size(), write.bytes);
  }
  static void Sync(Node& node) {
    for (const IoCall& write : node.writes) Apply(write, node.data);
    for (const NameChange& change : node.changes) Apply(change, node.names);
    node.writes.clear();
    node.changes.clear();
  }

  void Change(const std::string& path, NameChange change) {
    nodes_[Find(ParentOf(path))].changes.push_back(std::move(change));
  }
  // As the running system sees it.
  int Find(const std::string& path) const {
    CHECK(path.rfind(root_, 0) == 0);
    int node = 0;
    for (const auto& part : std::filesystem::path(path).lexically_relative(root_)) {
      if (part == ".") continue;
      std::map<std::string, int> names = nodes_[node].names;
      for (const NameChange& change : nodes_[node].changes) Apply(change, names);
      const auto found = names.find(part.string());
      CHECK(found != names.end());
      node = found->second;
    }
    return node;
  }

  void Write(const Node& node, double probability, Rng& rng, const std::string& target) const {
    const auto survives = [&] { return rng.Unit() < probability; };
    if (!node.directory) {
      std::string data = node.data;
      for (const IoCall& write : node.writes) {
        if (survives()) Apply(write, data);
      }
      std::ofstream(target, std::ios::binary) << data;
      return;
    }
    std::filesystem::create_directories(target);
    std::map<std::string, int> names = node.names;
    for (const NameChange& change : node.changes) {
      if (survives()) Apply(change, names);
    }
    for (const auto& [name, child] : names)
      Write(nodes_[static_cast<std::size_t>(child)], probability, rng,
            absl::StrCat(target, "/", name));
  }

  const std::string root_;
  std::vector<Node> nodes_;  // The root first.
};

}  // namespace regroup::worker
