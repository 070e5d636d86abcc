#include "agent/shell/line_filter.h"

#include <algorithm>
#include <utility>

namespace regroup::agent {

void LineFilter::Judge(std::string line, std::string& out) const {
  const bool matches = std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
    return line.find(text) != std::string::npos;
  });
  if (!matches) return;
  out += prefix_;
  out += line;
  out += '\n';
}

std::string LineFilter::Add(std::string_view bytes) {
  std::string out;
  for (std::size_t end = bytes.find('\n'); end != std::string_view::npos; end = bytes.find('\n')) {
    held_.append(bytes.substr(0, end));
    Judge(std::exchange(held_, {}), out);
    bytes.remove_prefix(end + 1);
  }
  held_.append(bytes);
  if (held_.size() > kMaxLineBytes) Judge(std::exchange(held_, {}), out);
  return out;
}

std::string LineFilter::Finish() {
  std::string out;
  if (!held_.empty()) Judge(std::exchange(held_, {}), out);
  return out;
}

}  // namespace regroup::agent
