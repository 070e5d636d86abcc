#pragma once

#include <google/protobuf/util/json_util.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/check.h"
#include "common/io/unix_socket.h"
#include "proto/local.pb.h"

namespace regroup::worker {

// The agent's end of proto/local.proto, in a thread of the test: keeps every line, answers commits,
// tells notices.
class FakeAgent {
 public:
  struct Said {
    int rank = -1;
    local::WorkerLine line;
  };
  // What a commit is answered; nullopt: nothing.
  using Judge = std::function<std::optional<local::CommitAnswer>(const local::CommitRequest&)>;

  explicit FakeAgent(std::string path) : path_(std::move(path)), judge_(&Accept) { Open(); }
  ~FakeAgent() { Close(); }

  static std::optional<local::CommitAnswer> Accept(const local::CommitRequest& request) {
    local::CommitAnswer answer;
    answer.set_attempt(request.attempt());
    answer.set_step(request.step());
    answer.set_accepted(true);
    return answer;
  }
  static std::optional<local::CommitAnswer> Refuse(const local::CommitRequest& request) {
    local::CommitAnswer answer = *Accept(request);
    answer.set_accepted(false);
    answer.set_why_not("no reason");
    return answer;
  }
  static std::optional<local::CommitAnswer> KeepSilent(const local::CommitRequest&) {
    return std::nullopt;
  }

  const std::string& path() const { return path_; }
  void SetJudge(Judge judge) {
    const std::scoped_lock lock(mutex_);
    judge_ = std::move(judge);
  }
  // To every connection of `rank`, and to those that it opens later.
  void Notice(int rank, double left_s) {
    local::AgentLine line;
    line.mutable_notice()->set_left_s(left_s);
    const std::scoped_lock lock(mutex_);
    notices_.push_back({rank, line});
    for (const Peer& p : peers_) {
      if (p.rank == rank) Send(p.fd, line);
    }
  }
  // Like an agent that is killed, and one that comes back.
  void Close() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    for (const Peer& p : peers_) close(p.fd);
    peers_.clear();
    listener_.reset();
  }
  void Open() {
    auto listener = io::ListenUnix(path_);
    CHECK(listener.ok());
    listener_ = *std::move(listener);
    stop_ = false;
    thread_ = std::thread([this] { Serve(); });
  }
  // Until what was said so far satisfies `enough`.
  void Await(const std::function<bool(const std::vector<Said>&)>& enough) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return enough(said_); }));
  }
  void AwaitStep(int rank, std::int64_t step) {
    Await([&](const std::vector<Said>& said) {
      return std::any_of(said.begin(), said.end(), [&](const Said& s) {
        return s.rank == rank && s.line.progress().step() >= step;
      });
    });
  }
  std::vector<Said> said() const {
    const std::scoped_lock lock(mutex_);
    return said_;
  }
  std::size_t Count(const std::function<bool(const local::WorkerLine&)>& of) const {
    const auto all = said();
    return static_cast<std::size_t>(
        std::count_if(all.begin(), all.end(), [&](const Said& s) { return of(s.line); }));
  }

 private:
  struct Peer {
    int fd = -1;
    int rank = -1;
    std::string input;
  };

  static void Send(int fd, const local::AgentLine& line) {
    std::string text;
    CHECK(google::protobuf::util::MessageToJsonString(line, &text).ok());
    text += "\n";
    CHECK(send(fd, text.data(), text.size(), MSG_NOSIGNAL) >= -1);
  }

  void Serve() {
    while (!stop_) {
      std::vector<pollfd> items{{listener_.get(), POLLIN, 0}};
      for (const Peer& p : peers_) items.push_back({p.fd, POLLIN, 0});
      if (poll(items.data(), items.size(), 5) <= 0) continue;
      for (std::size_t i = items.size() - 1; i > 0; --i) {
        if (items[i].revents == 0) continue;
        const std::scoped_lock lock(mutex_);
        if (!Read(peers_[i - 1])) {
          close(peers_[i - 1].fd);
          peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(i - 1));
        }
        changed_.notify_all();
      }
      if (items[0].revents != 0) {
        const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
        const std::scoped_lock lock(mutex_);
        if (fd >= 0) peers_.push_back({fd, -1, {}});
      }
    }
  }

  bool Read(Peer& peer) {
    char buffer[4096];
    const ssize_t got = recv(peer.fd, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    peer.input.append(buffer, static_cast<std::size_t>(got));
    for (std::size_t end; (end = peer.input.find('\n')) != std::string::npos;
         peer.input.erase(0, end + 1)) {
      local::WorkerLine line;
      if (!google::protobuf::util::JsonStringToMessage(peer.input.substr(0, end), &line).ok())
        return false;
      if (line.has_hello()) {
        peer.rank = line.hello().rank();
        local::AgentLine welcome;
        welcome.mutable_welcome()->set_version(1);
        Send(peer.fd, welcome);
        for (const auto& [rank, notice] : notices_) {
          if (rank == peer.rank) Send(peer.fd, notice);
        }
      }
      if (line.has_commit()) {
        if (const auto answer = judge_(line.commit())) {
          local::AgentLine reply;
          *reply.mutable_commit() = *answer;
          Send(peer.fd, reply);
        }
      }
      said_.push_back({peer.rank, line});
    }
    return true;
  }

  const std::string path_;
  io::UniqueFd listener_;
  std::atomic<bool> stop_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Judge judge_;  // Guarded by mutex_, as is all below.
  std::vector<Peer> peers_;
  std::vector<Said> said_;
  std::vector<std::pair<int, local::AgentLine>> notices_;
  std::thread thread_;
};

}  // namespace regroup::worker
