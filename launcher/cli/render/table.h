#pragma once

#include <string>
#include <vector>

#include "common/report/text_style.h"

namespace regroup::cli {

// Columns of text. Piped, nothing is ever cut. On a terminal that is too narrow columns that say
// nothing are left out, then the last one gives way down to kReadable columns, then columns that
// one can do without are left out, then the last and the others give way. Ids are never cut.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;     // Aligned to the right.
    bool id = false;        // Never cut.
    std::size_t width = 0;  // At least.
    int spare = 0;          // Left out where there is no room, 1 first; 0: never.
  };
  static constexpr int kReadable = 24;
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  // A cell that says nothing is empty or kNothing.
  static constexpr char kNothing[] = "–";
  void Add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // Lines without trailing spaces, control bytes escaped.
  std::string Render(const TextStyle& style) const;

 private:
  void LeaveOut(std::size_t column);
  bool SaysNothing(std::size_t column) const;
  std::vector<int> Widths() const;
  std::string Lines(const std::vector<int>& widths, const TextStyle& style) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// At most `width` columns; what was cut is shown by "…".
std::string Cut(std::string_view text, int width);

}  // namespace regroup::cli
