#include "launcher/cli/render/table.h"

#include <algorithm>

#include "common/config/text.h"

namespace regroup::cli {
namespace {

constexpr int kGap = 2, kNarrowest = 6, kUsualId = 20;

int SumOf(const std::vector<int>& widths) {
  int sum = kGap * (static_cast<int>(widths.size()) - 1);
  for (int width : widths) sum += width;
  return sum;
}

// REQUIRES: the columns do not fit. Takes from the last one, then from long ids, then from the
// others, then from ids.
void Narrow(std::vector<int>& widths, const std::vector<Table::Column>& columns, int limit) {
  auto take = [&](std::size_t at, int least) {
    least = std::min(widths[at], std::max(least, DisplayWidth(columns[at].title)));
    widths[at] = std::max(least, widths[at] - std::max(SumOf(widths) - limit, 0));
  };
  take(widths.size() - 1, kNarrowest);
  struct Round {
    bool ids;
    int least;
  };
  for (const Round& round :
       {Round{true, kUsualId}, Round{false, kNarrowest}, Round{true, kNarrowest}}) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (columns[i].id == round.ids) take(i, round.least);
    }
  }
}

}  // namespace

std::string Cut(std::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  std::string out;
  int taken = 0;
  for (char c : text) {
    bool begins = (static_cast<unsigned char>(c) & 0xC0) != 0x80;
    if (begins && ++taken >= width) break;
    out += c;
  }
  return out + "…";
}

void Table::Add(std::vector<std::string> cells) {
  for (std::string& cell : cells) cell = EscapeControls(cell);
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::Render(const TextStyle& style) const {
  std::vector<int> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    int width = std::max(DisplayWidth(columns_[i].title), static_cast<int>(columns_[i].width));
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[i]));
    widths.push_back(width);
  }
  if (style.terminal && SumOf(widths) > style.width) Narrow(widths, columns_, style.width);
  auto line = [&](const std::vector<std::string>& cells) {
    std::string out;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      std::string cell = style.terminal ? Cut(cells[i], widths[i]) : cells[i];
      std::string space(static_cast<std::size_t>(std::max(widths[i] - DisplayWidth(cell), 0)), ' ');
      out += Cat(i == 0 ? "" : "  ", columns_[i].right ? space : "", cell,
                 columns_[i].right ? "" : space);
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return out;
  };
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  std::string out = Cat(Painted(style, Tone::kBold, line(titles)), "\n");
  for (const auto& row : rows_) out += Cat(line(row), "\n");
  return ForCharset(style, out);
}

}  // namespace regroup::cli
