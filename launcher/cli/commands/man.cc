#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/build_info.h"
#include "common/config/text.h"
#include "common/config/values.h"
#include "launcher/cli/commands/all.h"
#include "launcher/cli/commands/exec.h"
#include "launcher/cli/commands/program.h"

namespace regroup::cli {
namespace {

struct Page {
  std::string name, text;
};

std::vector<Page> AllPages() {
  std::vector<Page> pages = {{"regroup", RenderManPage(DescribeProgram(), ReleaseVersion())}};
  for (const CommandEntry& entry : AllCommands()) {
    if (entry.hidden) continue;
    const CommandDescription description = entry.make()->line().Describe();
    pages.push_back({description.Page(), RenderManPage(description, ReleaseVersion())});
  }
  return pages;
}

class Man : public Command {
 public:
  Man()
      : Command({.name = "man",
                 .summary = "show the manual page of a command",
                 .usage = "regroup man [COMMAND | DIRECTORY]",
                 .text = "On a terminal through man(1), else as roff. With a directory (it has a "
                         "'/') all pages are "
                         "written there as regroup.1, regroup-run.1 and so on.",
                 .example = "regroup man run",
                 .positionals = {{"COMMAND", "none: regroup itself"},
                                 {"DIRECTORY", "where pages are written"}}}) {}

  absl::StatusOr<int> Run(const ParsedLine& words, const Terminal& terminal) override {
    RETURN_IF_ERROR(CheckWords(*this, words, 0, 1));
    std::string word = words.rest.empty() ? "regroup" : words.rest[0];
    std::vector<Page> pages = AllPages();
    if (word.find('/') != std::string::npos) return WriteAll(pages, word);
    auto page = std::find_if(pages.begin(), pages.end(), [&](const Page& p) {
      return p.name == word || p.name == Cat("regroup-", word);
    });
    if (page == pages.end()) {
      std::vector<std::string> names;
      for (const CommandEntry& entry : AllCommands()) {
        if (!entry.hidden) names.emplace_back(entry.name);
      }
      std::string nearest = DidYouMean(word, names);
      return UserError(absl::StatusCode::kNotFound, Cat("no manual page of ", ShellQuote(word)),
                       nearest.empty() ? "" : Cat("did you mean ", nearest, "?"), "regroup man");
    }
    if (terminal.out().terminal) ShowWithMan(page->text);
    RETURN_IF_ERROR(terminal.Print(page->text));
    return kDone;
  }

 private:
  static absl::StatusOr<int> WriteAll(const std::vector<Page>& pages, const std::string& folder) {
    for (const Page& page : pages) {
      std::string path = Cat(folder, "/", page.name, ".1");
      std::ofstream out(path);
      out << page.text;
      out.close();
      if (!out) {
        return UserError(absl::StatusCode::kFailedPrecondition, Cat("cannot write ", path),
                         std::strerror(errno), "");
      }
    }
    return kDone;
  }

  // Returns when there is no man(1): the page is printed as it is then.
  static void ShowWithMan(const std::string& text) {
    absl::StatusOr<std::string> man = FindExecutable("man");
    int fd = man.ok() ? ::memfd_create("regroup-man", 0) : -1;
    if (fd < 0) return;
    bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    std::string path = Cat("/proc/self/fd/", fd);
    if (written) ::execl(man->c_str(), "man", "-l", path.c_str(), static_cast<char*>(nullptr));
    ::close(fd);
  }
};

}  // namespace

std::unique_ptr<Command> MakeMan() { return std::make_unique<Man>(); }

}  // namespace regroup::cli
