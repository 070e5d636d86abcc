#include "worker/checkpoint/reports.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/io/files.h"

namespace regroup::worker {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kMaxReportBytes = 64u << 20, kMaxWordsBytes = 4096;
constexpr milliseconds kLongestPause{20};
constexpr std::string_view kReport = ".report", kFailed = ".failed", kVerified = ".verified";

std::string NameOf(int rank, std::string_view kind) {
  return absl::StrCat("rank-", rank, std::string(kind));
}

absl::Status Late(const std::vector<int>& ranks, std::string_view done, Duration patience) {
  const bool one = ranks.size() == 1;
  return absl::DeadlineExceededError(absl::StrCat(
      one ? "rank " : "ranks ", absl::StrJoin(ranks, ", "), one ? " has not " : " have not ",
      std::string(done), one ? " its file" : " their files", " within ", Seconds(patience),
      " s; --save-timeout waits longer"));
}

}  // namespace

std::string Reports::PathOf(int rank, std::string_view kind) const {
  return absl::StrCat(directory_, "/", NameOf(rank, kind));
}

absl::Status Reports::Tell(const ShardReport& report) const {
  return io::ReplaceFile(PathOf(report.rank, kReport), SerializeReport(report),
                         io::Durability::kVolatile, 0644);
}

void Reports::TellFailure(int rank, std::string_view why) const {
  (void)io::ReplaceFile(PathOf(rank, kFailed), why.substr(0, kMaxWordsBytes),
                        io::Durability::kVolatile, 0644);
}

void Reports::TellVerdict(int rank, const absl::Status& sound) const {
  (void)io::ReplaceFile(PathOf(rank, kVerified),
                        std::string(sound.message()).substr(0, kMaxWordsBytes),
                        io::Durability::kVolatile, 0644);
}

absl::StatusOr<std::map<int, std::string>> Reports::Await(std::string_view kind,
                                                          std::string_view done, int world_size,
                                                          const Patience& patience) const {
  const auto end = steady_clock::now() + patience.at_most;
  std::map<int, std::string> said;
  for (milliseconds pause(1);; pause = std::min(pause * 2, kLongestPause)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> listed, io::ListDirectory(directory_));
    const std::set<std::string> names(listed.begin(), listed.end());
    std::vector<int> silent;
    for (int r = 1; r < world_size; ++r) {
      if (said.count(r) != 0) continue;
      // What is listed and cannot be read yet is looked for again.
      if (names.count(NameOf(r, kFailed)) != 0) {
        const auto why = io::ReadFile(PathOf(r, kFailed), kMaxWordsBytes);
        if (why.ok()) {
          return absl::UnavailableError(
              absl::StrCat("rank ", r, " could not write its file: ", *why));
        }
      }
      const absl::StatusOr<std::string> text =
          names.count(NameOf(r, kind)) != 0 ? io::ReadFile(PathOf(r, kind), kMaxReportBytes)
                                            : absl::StatusOr<std::string>(absl::NotFoundError(""));
      if (text.ok()) {
        said[r] = *text;
      } else {
        silent.push_back(r);
      }
    }
    if (silent.empty()) return said;
    if (patience.given_up()) return absl::CancelledError("the save was given up");
    if (steady_clock::now() > end) return Late(silent, done, patience.at_most);
    std::this_thread::sleep_for(pause);
  }
}

absl::StatusOr<std::vector<ShardReport>> Reports::AwaitFiles(int world_size,
                                                             const Patience& patience) const {
  std::vector<ShardReport> reports;
  if (world_size == 1) return reports;
  ASSIGN_OR_RETURN(const auto said, Await(kReport, "written", world_size, patience));
  for (const auto& [rank, text] : said) {
    ASSIGN_OR_RETURN(ShardReport report, ParseReport(text));
    if (report.rank != rank) {
      return absl::DataLossError(
          absl::StrCat("the report of rank ", rank, " is one of rank ", report.rank));
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

absl::Status Reports::AwaitVerdicts(int world_size, const Patience& patience) const {
  if (world_size == 1) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto said, Await(kVerified, "read back", world_size, patience));
  for (const auto& [rank, why] : said) {
    if (!why.empty())
      return absl::DataLossError(absl::StrCat("rank ", rank, " cannot read back its file: ", why));
  }
  return absl::OkStatus();
}

absl::Status Reports::Remove() const {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDirectory(directory_));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(directory_, "/", name);
    const bool told =
        name.ends_with(kReport) || name.ends_with(kFailed) || name.ends_with(kVerified);
    if (told && unlink(path.c_str()) != 0 && errno != ENOENT) return io::ErrnoStatus(errno, path);
  }
  return absl::OkStatus();
}

}  // namespace regroup::worker
