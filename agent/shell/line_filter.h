#pragma once

// The lines of a stream in which one of some texts stands.

#include <string>
#include <string_view>
#include <vector>

namespace regroup::agent {

// Pure.
class LineFilter {
 public:
  // `prefix`: before each line.
  explicit LineFilter(std::vector<std::string> texts, std::string prefix = "")
      : texts_(std::move(texts)), prefix_(std::move(prefix)) {}
  // The matching ones among the lines that `bytes` finishes, each with its newline.
  std::string Add(std::string_view bytes);
  // The unfinished last line, if it matches.
  std::string Finish();

  static constexpr std::size_t kMaxLineBytes = 64 << 10;  // A longer one is cut there.

 private:
  void Judge(std::string line, std::string& out) const;

  const std::vector<std::string> texts_;
  const std::string prefix_;
  std::string held_;
};

}  // namespace regroup::agent
