#include "launcher/cli/commands/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/config/env.h"
#include "common/config/job_limits.h"
#include "common/config/text.h"
#include "common/config/values.h"

namespace regroup::cli {
namespace {

constexpr std::string_view kScriptSuffix = ".py";
// What torchrun's --run-path does in a process of its own.
constexpr char kRunPath[] =
    "import sys, runpy; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')";

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

absl::Status Missing(std::string_view name, std::string_view because, std::string_view try_this) {
  return UserError(absl::StatusCode::kNotFound, Cat(name, " was not found"), because, try_this);
}
absl::Status Unusable(std::string_view name, std::string_view because, std::string_view try_this) {
  return UserError(absl::StatusCode::kFailedPrecondition, Cat(name, " cannot be executed"), because,
                   try_this);
}

// What a person looks at next.
std::string Look(const std::string& path) { return Cat("ls -ld ", ShellQuote(path)); }
std::string LookAround(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  return Cat("ls ", ShellQuote(folder.empty() ? "/" : folder));
}

std::string Absolute(const std::string& path) {
  if (path.front() == '/') return path;
  std::string here(4096, '\0');
  if (::getcwd(here.data(), here.size()) == nullptr) return path;
  return Cat(here.c_str(), "/", path);
}

// "#!/no/such/interpreter" makes exec fail with "No such file", which would blame the script.
absl::Status CheckInterpreter(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string line(256, '\0');
  in.read(line.data(), static_cast<std::streamsize>(line.size()));
  line.resize(static_cast<std::size_t>(in.gcount()));
  if (line.substr(0, 2) != "#!") return absl::OkStatus();
  std::istringstream words(line.substr(2, line.find('\n') - 2));
  std::string interpreter;
  words >> interpreter;
  bool bad = interpreter.empty() ||
             (interpreter.front() == '/' && ::access(interpreter.c_str(), X_OK) != 0);
  if (!bad) return absl::OkStatus();
  return Unusable(path,
                  Cat("its first line names the interpreter ", ShellQuote(interpreter), ": ",
                      interpreter.empty() ? "nothing" : std::strerror(errno)),
                  Cat("head -1 ", ShellQuote(path)));
}

absl::Status CheckExecutable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    bool absent = errno == ENOENT || errno == ENOTDIR;
    return absent ? Missing(path, std::strerror(errno), LookAround(path))
                  : Unusable(path, std::strerror(errno), Look(path));
  }
  if (S_ISDIR(info.st_mode))
    return Unusable(path, "it is a directory", Cat("ls ", ShellQuote(path)));
  if (::access(path.c_str(), X_OK) != 0) {
    return Unusable(path, std::strerror(errno), Cat("chmod +x ", ShellQuote(path)));
  }
  return CheckInterpreter(path);
}

absl::StatusOr<std::string> FindPython() {
  std::string named = GetEnv("PYTHON_EXEC").value_or("");
  if (!named.empty()) {
    absl::StatusOr<std::string> found = FindExecutable(named);
    if (found.ok()) return found;
    UserErrorParts parts = PartsOf(found.status());
    return UserError(found.status().code(), Cat("PYTHON_EXEC: ", parts.what), parts.because,
                     "unset PYTHON_EXEC");
  }
  for (const char* name : {"python", "python3"}) {
    absl::StatusOr<std::string> found = FindExecutable(name);
    if (found.ok()) return found;
  }
  return Missing("Python", "neither python nor python3 is on PATH, and PYTHON_EXEC is not set",
                 "PYTHON_EXEC=/path/to/python, or --no-python");
}

absl::Status CheckScript(const std::string& script) {
  struct stat info {};
  if (::stat(script.c_str(), &info) != 0)
    return Missing(script, std::strerror(errno), LookAround(script));
  if (S_ISDIR(info.st_mode)) return absl::OkStatus();  // Python runs a folder's __main__.py.
  if (::access(script.c_str(), R_OK) != 0)
    return Unusable(script, std::strerror(errno), Look(script));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FindExecutable(const std::string& name) {
  if (name.empty()) return Missing("''", "a program's name is empty", "");
  if (name.find('/') != std::string::npos || name == "." || name == "..") {
    RETURN_IF_ERROR(CheckExecutable(name));
    return Absolute(name);
  }
  std::string path = GetEnv("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  std::istringstream folders(path);
  absl::Status unusable;
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::string candidate = Cat(folder.empty() ? std::string(".") : folder, "/", name);
    struct stat info {};
    if (::stat(candidate.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    absl::Status fine = CheckExecutable(candidate);
    if (fine.ok()) return Absolute(candidate);
    if (unusable.ok()) unusable = fine;
  }
  if (!unusable.ok()) return unusable;
  struct stat info {};
  bool here = ::stat(name.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  return Missing(name, "it is not on PATH", here ? Cat("./", name) : std::string("echo $PATH"));
}

absl::StatusOr<Program> ResolveProgram(const std::vector<std::string>& words,
                                       const ProgramFlags& flags) {
  Program program;
  program.python = flags.run_path || (!flags.no_python && (flags.module || flags.always_python ||
                                                           EndsWith(words.front(), kScriptSuffix)));
  const bool module = flags.module && !flags.run_path;
  if (!program.python) {
    ASSIGN_OR_RETURN(program.executable, FindExecutable(words.front()));
    program.argv = words;
    return program;
  }
  if (!module) RETURN_IF_ERROR(CheckScript(words.front()));
  ASSIGN_OR_RETURN(program.executable, FindPython());
  program.argv = {program.executable, "-u"};
  if (flags.run_path) program.argv.insert(program.argv.end(), {"-c", kRunPath});
  if (module) program.argv.push_back("-m");
  program.argv.insert(program.argv.end(), words.begin(), words.end());
  program.hints = module ? HintsOfModule(words.front()) : HintsOfScript(words.front());
  return program;
}

std::string DefaultJobName(const std::vector<std::string>& words) {
  std::string name = words.front();
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  name = name.substr(name.find_last_of('/') + 1);
  if (EndsWith(name, kScriptSuffix)) name.resize(name.size() - kScriptSuffix.size());
  return JobNameFrom(name);
}

}  // namespace regroup::cli
