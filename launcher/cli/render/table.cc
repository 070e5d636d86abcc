#include "launcher/cli/render/table.h"

#include <algorithm>

#include "common/config/text.h"

namespace regroup::cli {
namespace {

constexpr int kGap = 2, kNarrowest = 6;

int SumOf(const std::vector<int>& widths) {
  int sum = kGap * (static_cast<int>(widths.size()) - 1);
  for (int width : widths) sum += width;
  return sum;
}

// Takes from one column what is too much, down to `least` and its title.
void Take(std::vector<int>& widths, const std::vector<Table::Column>& columns, std::size_t at,
          int least, int limit) {
  if (columns[at].id) return;
  least = std::min(widths[at], std::max(least, DisplayWidth(columns[at].title)));
  widths[at] = std::max(least, widths[at] - std::max(SumOf(widths) - limit, 0));
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

void Table::LeaveOut(std::size_t column) {
  const auto at = static_cast<std::ptrdiff_t>(column);
  columns_.erase(columns_.begin() + at);
  for (std::vector<std::string>& row : rows_) row.erase(row.begin() + at);
}

bool Table::SaysNothing(std::size_t column) const {
  return std::all_of(rows_.begin(), rows_.end(), [column](const auto& row) {
    return row[column].empty() || row[column] == kNothing;
  });
}

std::vector<int> Table::Widths() const {
  std::vector<int> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    int width = std::max(DisplayWidth(columns_[i].title), static_cast<int>(columns_[i].width));
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[i]));
    widths.push_back(width);
  }
  return widths;
}

std::string Table::Render(const TextStyle& style) const {
  if (!style.terminal || SumOf(Widths()) <= style.width) return Lines(Widths(), style);
  Table table = *this;
  const auto fits = [&](int least) {
    std::vector<int> widths = table.Widths();
    Take(widths, table.columns_, widths.size() - 1, least, style.width);
    return SumOf(widths) <= style.width;
  };
  for (std::size_t i = table.columns_.size() - 1; i-- > 0;) {
    if (!table.columns_[i].id && table.SaysNothing(i)) table.LeaveOut(i);
  }
  for (int spare = 1; !fits(kReadable) && spare <= static_cast<int>(columns_.size()); ++spare) {
    const auto at = std::find_if(table.columns_.begin(), table.columns_.end(),
                                 [spare](const Column& column) { return column.spare == spare; });
    if (at != table.columns_.end())
      table.LeaveOut(static_cast<std::size_t>(at - table.columns_.begin()));
  }
  std::vector<int> widths = table.Widths();
  for (std::size_t i = widths.size(); i-- > 0;)
    Take(widths, table.columns_, i, i + 1 == widths.size() ? kReadable : kNarrowest, style.width);
  Take(widths, table.columns_, widths.size() - 1, kNarrowest, style.width);
  return table.Lines(widths, style);
}

std::string Table::Lines(const std::vector<int>& widths, const TextStyle& style) const {
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
