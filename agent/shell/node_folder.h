#pragma once

// A node's own folder: <state>/node-<k>/, flocked for the life of its agent. It makes a node a
// node: its random id, how often an agent of it has started, and which coordinator it follows.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/io/files.h"

namespace regroup::agent {

class NodeFolder {
 public:
  // Takes the first free folder that `usable` (asked with the node's id) accepts, or makes one;
  // raises the incarnation. kDurable for services: after a power cut they must still know whom they
  // follow.
  static absl::StatusOr<NodeFolder> Take(const std::string& state_dir, io::Durability durability,
                                         const std::function<bool(const NodeId&)>& usable);
  NodeFolder(NodeFolder&&) = default;

  const std::string& path() const { return path_; }
  const NodeId& node() const { return node_; }
  Incarnation incarnation() const { return incarnation_; }
  const ClusterId& cluster() const { return cluster_; }
  Epoch highest_epoch() const { return epoch_; }
  // On disk on return.
  absl::Status Remember(const ClusterId& cluster, Epoch epoch);

 private:
  NodeFolder(std::string path, io::FileLock lock, io::Durability durability)
      : path_(std::move(path)), lock_(std::move(lock)), durability_(durability) {}
  absl::Status Load();
  absl::Status Save() const;

  std::string path_;
  io::FileLock lock_;
  io::Durability durability_;
  NodeId node_;
  Incarnation incarnation_;
  ClusterId cluster_;
  Epoch epoch_;
};

}  // namespace regroup::agent
