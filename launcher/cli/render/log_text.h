#pragma once

// `logs`: lines of many ranks in order of time, with a separator where one generation ends and the
// next begins. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/views.h"
#include "common/report/text_style.h"

namespace regroup::cli {

struct LogEntry {
  WallTime at{};
  std::string node;
  Generation generation;
  int rank = 0;
  bool is_stderr = false;
  std::string text;  // Any bytes, without the newline.
  bool cut = false;  // Too long for one: the stream's next entry is its rest.
};

enum class LogForm { kText, kRaw, kJson };

// "14:09:29.803 node0:0  step 8107 loss 2.414". Raw: the bytes as the worker wrote them. On a
// terminal what the worker wrote can colour its line (SGR, where colour is wanted) and nothing
// else: of a line that was rewritten with carriage returns (tqdm) the last state is shown, other
// controls are escaped. Piped text has its bytes.
std::string RenderEntry(const LogEntry& entry, LogForm form, const TextStyle& style);

// Collects what arrives in any order; each stream's lines in their own order.
class LogMerge {
 public:
  LogMerge(JobView job, LogForm form, TextStyle style)
      : job_(std::move(job)), form_(form), style_(style) {}

  void Add(const LogEntry& entry);
  void Add(const JobEvent& event);  // Only ends and beginnings of generations show.

  // Everything up to `until`, in order of time, ready to print; all of it without `until`.
  std::string Take(std::optional<WallTime> until);
  // What was added before the last call of this: a follower that asks every 100 ms shows a line
  // after 100 to 200 ms, by our own clock, since those of the nodes may be apart.
  std::string TakeSettled();
  std::size_t held_bytes() const { return held_bytes_; }
  // Of what is held: up to here the older half lies.
  WallTime Median() const;

 private:
  struct Item {
    WallTime at{};
    std::string text;  // Rendered.
    std::uint64_t round = 0;
  };
  std::string Separator(const GenerationEnded& ended, WallTime at,
                        const GenerationFormed* next) const;
  void Push(WallTime at, std::string text);
  template <class Chosen>
  std::string TakeIf(Chosen chosen);

  JobView job_;
  LogForm form_;
  TextStyle style_;
  std::vector<Item> items_;
  std::size_t held_bytes_ = 0;
  std::uint64_t round_ = 0;  // Calls of TakeSettled.
  std::optional<std::pair<GenerationEnded, WallTime>>
      ended_;  // Waits for the generation that follows.
};

}  // namespace regroup::cli
