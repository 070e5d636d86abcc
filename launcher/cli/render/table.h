#pragma once

#include <string>
#include <vector>

#include "common/report/text_style.h"

namespace regroup::cli {

// Columns of text. Piped, nothing is ever cut. On a terminal the last column gives way first, then
// ids longer than usual, then the others, then ids.
class Table {
 public:
  struct Column {
    std::string title;
    bool right = false;     // Aligned to the right.
    bool id = false;        // Cut last.
    std::size_t width = 0;  // At least.
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Add(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }
  // Lines without trailing spaces, control bytes escaped.
  std::string Render(const TextStyle& style) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// At most `width` columns; what was cut is shown by "…".
std::string Cut(std::string_view text, int width);

}  // namespace regroup::cli
