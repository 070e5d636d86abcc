#include "launcher/cli/commands/python_source.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "common/config/text.h"

namespace regroup::cli {
namespace {

std::string BeginningOf(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return "";
  std::ifstream in(path, std::ios::binary);
  std::string text(std::min<std::uintmax_t>(size, kMostBytes), '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

std::string FolderOf(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::vector<std::string> WordsOf(std::string_view line) {
  std::vector<std::string> words(1);
  for (const char c : line) {
    if (c == '#') break;
    if (c != ' ' && c != '\t' && c != ',' && c != '(' && c != ')' && c != '\r' && c != ';') {
      words.back() += c;
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  if (words.back().empty()) words.pop_back();
  return words;
}

// Files of one program, each looked at once.
class Sources {
 public:
  explicit Sources(std::string root) : root_(std::move(root)) {}

  void Add(const std::string& path) {
    std::error_code error;  // A pipe, which only one can read, is left to Python.
    if (files_.size() >= kMostFiles || !std::filesystem::is_regular_file(path, error)) return;
    if (seen_.insert(path).second) files_.push_back(path);
  }
  // A module's dots are folders; it is a file, or a folder with a file of a fixed name.
  void AddModule(const std::string& folder, std::string name) {
    std::replace(name.begin(), name.end(), '.', '/');
    const std::string path = Cat(folder, "/", name);
    for (const char* end : {".py", "/__init__.py", "/__main__.py"}) Add(Cat(path, end));
  }

  ProgramHints Read() {
    ProgramHints hints;
    for (std::size_t at = 0; at < files_.size(); ++at) {
      const std::string text = BeginningOf(files_[at]);
      hints.sets_master_port = hints.sets_master_port || SetsMasterPort(text);
      hints.keeps_ranks = hints.keeps_ranks || ImportsInPlace(text);
      FollowImports(text, FolderOf(files_[at]));
    }
    return hints;
  }

 private:
  void FollowImports(std::string_view text, const std::string& folder) {
    for (const std::string_view line : Split(text, '\n')) {
      const std::vector<std::string> words = WordsOf(line);
      if (words.size() < 2) continue;
      if (words[0] == "import") {
        for (std::size_t i = 1; i < words.size(); ++i) AddModule(root_, words[i]);
      } else if (words[0] == "from") {
        FollowFrom(words, folder);
      }
    }
  }

  // from a.b import c, d: also a/b/c.py. Leading dots: this file's folder and those above it.
  void FollowFrom(const std::vector<std::string>& words, const std::string& folder) {
    const std::size_t dots = std::min(words[1].find_first_not_of('.'), words[1].size());
    std::string base = dots == 0 ? root_ : folder;
    for (std::size_t up = 1; up < dots; ++up) base += "/..";
    const std::string name = words[1].substr(dots);
    if (!name.empty()) AddModule(base, name);
    for (std::size_t i = 3; i < words.size(); ++i)
      AddModule(base, name.empty() ? words[i] : Cat(name, ".", words[i]));
  }

  const std::string root_;  // Where its own modules are looked for.
  std::vector<std::string> files_;
  std::set<std::string> seen_;
};

}  // namespace

ProgramHints HintsOfScript(const std::string& path) {
  std::error_code error;
  const bool folder = std::filesystem::is_directory(path, error);
  Sources program(folder ? path : FolderOf(path));
  program.Add(folder ? Cat(path, "/__main__.py") : path);
  return program.Read();
}

ProgramHints HintsOfModule(const std::string& name, const std::string& directory) {
  Sources program(directory);
  program.AddModule(directory, name);
  return program.Read();
}

ProgramHints HintsOfCommand(const std::vector<std::string>& command, const std::string& directory) {
  std::size_t at = 0;
  const std::string first = command.empty() ? "" : command[0];
  const std::filesystem::path executable(first);
  const bool python = executable.filename().string().substr(0, 6) == "python";
  if (python) ++at;
  for (; python && at < command.size() && command[at].substr(0, 1) == "-"; ++at) {
    if (command[at] == "-m") break;
    if (command[at] == "-c" || command[at] == "-") return {};
    if (command[at] == "-W" || command[at] == "-X") ++at;  // Their value.
  }
  if (at >= command.size()) return {};
  if (command[at] == "-m")
    return at + 1 < command.size() ? HintsOfModule(command[at + 1], directory) : ProgramHints{};
  if (!python && executable.extension() != ".py") return {};
  return HintsOfScript(std::filesystem::path(directory) / command[at]);
}

std::string OwnStoreNotice(std::string_view program) {
  return Cat("regroup: ", program,
             " sets MASTER_PORT, so its one rank serves its own store "
             "(TORCHELASTIC_USE_AGENT_STORE=False)\n");
}

std::string InPlaceNotice(std::string_view program) {
  return Cat("regroup: ", program,
             " imports regroup.inplace, so its ranks keep their process when others fail "
             "(--in-place=false: they do not)\n");
}

bool ImportsInPlace(std::string_view python) {
  constexpr std::string_view kModule = "regroup.inplace";
  for (const std::string_view line : Split(python, '\n')) {
    if (line.find("regroup") == std::string_view::npos) continue;
    const std::vector<std::string> words = WordsOf(line);
    if (words.size() < 2) continue;
    const auto names = [&](std::string_view name) {
      return std::find(words.begin() + 1, words.end(), name) != words.end();
    };
    if (words[0] == "import" && names(kModule)) return true;
    if (words[0] != "from") continue;
    if (words[1] == kModule || (words[1] == "regroup" && names("inplace"))) return true;
  }
  return false;
}

bool SetsMasterPort(std::string_view python) {
  constexpr std::string_view kName = "MASTER_PORT";
  for (std::size_t at = 0; (at = python.find(kName, at)) != std::string_view::npos;) {
    const std::string_view line = python.substr(0, at);
    const std::size_t start = line.find_last_of('\n') + 1;  // 0 when there is none.
    at += kName.size();
    if (line.find('#', start) != std::string_view::npos) continue;
    // ["MASTER_PORT"] = …, MASTER_PORT=…, {"MASTER_PORT": …}; not a comparison.
    const std::size_t sign = python.find_first_not_of("\"'] \t", at);
    if (sign == std::string_view::npos) return false;
    const bool assigned = python[sign] == '=' && python.substr(sign, 2) != "==";
    if (assigned || python[sign] == ':') return true;
  }
  return false;
}

}  // namespace regroup::cli
