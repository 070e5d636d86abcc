"""The tree is tidy, and each rule of tidy.py catches a violation planted for it."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpp  # noqa: E402 (the path has to come first)
import shapes  # noqa: E402
import tidy  # noqa: E402

GUARD = "#pragma once\n"
LONG = "int Long(int x) {\n" + "  x++;\n" * 69 + "}\n"

# (file, its text, what the finding says; None: no finding)
PLANTED = [
    ("agent/shell/a.cc", '#include "launcher/cli/x.h"\n', "agent does not know launcher"),
    ("launcher/cli/a.cc", '#include "agent/core/x.h"\n', "launcher does not know agent"),
    ("worker/train/a.cc", '#include "agent/shim/x.h"\n', "worker does not know agent"),
    ("common/rpc/a.cc", '#include "worker/comm/x.h"\n', "common does not know worker"),
    ("launcher/coordinator/shell/a.cc", '#include "launcher/cli/x.h"\n', "does not know the command line"),
    ("launcher/cli/a.cc", '#include "launcher/coordinator/shell/x.h"\n', None),
    ("launcher/coordinator/core/a.cc", '#include "common/io/files.h"\n', "common/base and its own folder only"),
    ("agent/core/a.cc", '#include "agent/shell/x.h"\n', "common/base and its own folder only"),
    ("agent/core/a.cc", '#include "agent/core/x.h"\n#include "common/base/ids.h"\n#include "absl/status/status.h"\n', None),
    ("agent/core/a.cc", '#include "proto/local.pb.h"\n', "generated code stays at the edges"),
    ("worker/model/a.cc", '#include "proto/local.pb.h"\n', "generated code stays at the edges"),
    ("worker/train/a.cc", '#include "proto/local.pb.h"\n', None),
    ("common/base/a.cc", '#include "common/io/files.h"\n', "common/base includes nothing of ours"),
    ("common/io/a.cc", '#include "tests/e2e/x.h"\n', "the product does not include its tests"),
    ("worker/model/a.cc", '#include "worker/comm/x.h"\n', "a model does not know its communicator"),
    ("worker/kernels/a.cc", '#include "worker/comm/x.h"\n', "worker/kernels may not include worker/comm"),
    ("worker/plan/a.cc", '#include "worker/train/x.h"\n', "worker/plan may not include worker/train"),
    ("worker/data/a.cc", '#include "worker/tensor/x.h"\n', None),
    ("common/io/a.cc", "// TODO: later\n", "TODO"),
    ("deploy/x.sh", "# FIXME\n", "FIXME"),
    ("common/io/a.cc", 'const char* kPath = "/home/ann/x";\n', "a folder of somebody's machine"),
    ("common/io/a.cc", 'const char* kPath = "/var/lib/regroup";\n', None),
    ("agent/core/a.cc", "std::random_device chance;\n", "random_device in a core"),
    ("agent/core/a.cc", "void F() { std::this_thread::sleep_for(1s); }\n", "sleep_for in a core"),
    ("agent/core/a.cc", "auto t = std::chrono::system_clock::now();\n", "system_clock in a core"),
    ("agent/core/a.cc", "// A comment may say thread and \"mutex\".\n", None),
    ("agent/shell/a.cc", 'const char* home = std::getenv("HOME");\n', "only common/config reads the environment"),
    ("common/config/env.cc", 'const char* home = std::getenv("HOME");\n', None),
    ("agent/shell/a.cc", "void F() { std::exit(1); }\n", "exit() below main"),
    ("agent/shell/a.cc", "void F() { server.exit(1); _exit(1); }\n", None),
    ("agent/shell/agent_main.cc", "int main() { exit(1); }\n", None),
    ("worker/model/a.cc", "#include <thread>\n", "ParallelFor is the only pool"),
    ("worker/kernels/a.cc", "void F() {\n#pragma omp parallel\n}\n", "ParallelFor is the only pool"),
    ("worker/optim/a.cc", "auto f = std::async(G);\n", "ParallelFor is the only pool"),
    ("worker/kernels/parallel_for.cc", "int omp_get_thread_num();\n", None),
    ("worker/train/a.cc", "std::thread t;\n", None),
    ("worker/kernels/CMakeLists.txt", "set(f -O3 -ffast-math)\n", "the order of sums must stay"),
    ("worker/kernels/CMakeLists.txt", "# Not -ffast-math: NaN.\nset(f -O3)\n", None),
    ("launcher/coordinator/shell/a.cc", "struct R {\n  void OnReadDone(bool ok) override {\n    Finish(ok);\n  }\n};\n",
     "OnReadDone calls Finish: a callback of gRPC only posts"),
    ("launcher/coordinator/shell/a.cc", "struct R {\n  void OnCancel() override { Post(F); }\n  void Go() { StartRead(); }\n};\n", None),
    ("common/io/a.cc", "int a; \n", "trailing whitespace"),
    ("common/io/a.cc", "\tint a;\n", "a tab"),
    ("common/io/a.cc", "int a;", "no newline"),
    ("common/io/a.h", "int a;\n", "#pragma once"),
    ("common/io/a.cc", "int a;\n" * 801, "801 lines, 800 are allowed"),
    ("common/io/a.cc", "int a;\n" * 800, None),
    ("common/io/a.cc", LONG, "Long has 71 lines, 70 are allowed"),
    ("tests/x/a.py", "def long(x):\n" + "    x += 1\n" * 70, "long has 71 lines"),
    ("common/io/a.cc", LONG.replace("  x++;\n", "", 1), None),
]

FUNCTIONS = """
#define MACRO(x) \\
  do { x; } while (0)
namespace a::b {
namespace {
struct Point { int x = 0; int y{1}; };
enum class Kind { kOne, kTwo };
const std::map<std::string, int> kTable = {{"a{", 1}, {"b", 2}};
const char kBrace = '{'; const long kBig = 1'000'000;
auto kRaw = R"(void NotAFunction() { )";
class C : public Base<int> {
 public:
  C(int x) : x_{x}, y_(x), Base{1} {
    Go();
  }
  int Get() const noexcept { return x_; }
  bool operator==(const C& other) const = default;
  // void InAComment() {
  auto Later() -> std::vector<int> {
    auto f = [this](int i) { return i + x_; };
    return {f(1), f(2)};
  }
 private:
  int x_{};
};
}  // namespace
template <typename T>
  requires(sizeof(T) > 1)
absl::StatusOr<T> Free(const T& t, std::vector<int> v = {1, 2}) {
  if (t) { return T{}; }
  return T{t};
}
TEST_F(Suite, Name) {
  struct Local { int z; void Inner() {} };
}
}  // namespace a::b
"""


TYPES = """
struct Plain {
  int a = 0, b{};  // Two, not three;
  std::map<std::string, std::pair<int, int>> map;
  std::function<void(int)> callback;
  enum class Kind { kOne, kTwo } kind = Kind::kOne;
  struct Inner { int x = 0; std::vector<int> y{1, 2}; };
  std::optional<Inner> inner;
  struct { int z; } unnamed;
  bool ok() const { return a > b; }
  std::vector<int> list = {1, 2, 3};
  std::chrono::seconds wait = std::chrono::seconds(30);
  friend bool operator==(const Plain&, const Plain&) = default;
};
class Machine final : public Base<int> {
 public:
  explicit Machine(int x) : x_{x} { Go(); }
  Machine(const Machine&) = delete;
  void Step(const Plain& a = {}, int b = 0);
  int x() const { return x_; }
  using Row = int;

 private:
  void Go();
  static constexpr int kLimit = 3;
  int x_ = 0;
  std::map<int, int> y_, z_;
};
"""


class Planted(unittest.TestCase):
    def test_each_rule_catches(self):
        for path, text, expected in PLANTED:
            with self.subTest(path=path, expected=expected or "nothing", text=text[:60]):
                text = GUARD + text if path.endswith(".h") and expected != "#pragma once" else text
                findings = tidy.check({path: text}, {})
                if expected is None:
                    self.assertEqual(findings, [])
                else:
                    self.assertEqual(len(findings), 1, findings)
                    self.assertIn(expected, findings[0])

    def test_the_ratchet_only_tightens(self):
        longer = LONG.replace("{\n", "{\n  x--;\n", 1)
        self.assertEqual(tidy.check({"common/io/a.cc": LONG}, {("common/io/a.cc", "Long"): 71}), [])
        for text, allowed, says in [(longer, 71, "has 72 lines, 71 are allowed"), (LONG, 72, "has shrunk to 71"),
                                    ("int a;\n", 71, "no longer too long")]:
            findings = tidy.check({"common/io/a.cc": text}, {("common/io/a.cc", "Long"): allowed})
            self.assertEqual(len(findings), 1, findings)
            self.assertIn(says, findings[0])

    def test_the_shape_of_a_core_is_measured(self):
        wide = GUARD + "struct Wide {\n" + "  int a = 0, b{};\n" * 11 + "};\n"
        busy = GUARD + "class Busy {\n public:\n" + "  void F(int x) const { x++; }\n" * 26 + "};\n"
        path = "agent/core/a.h"
        for text, allowed, says in [(wide, {}, "Wide has 0 functions and 22 fields, 25 and 20 are allowed"),
                                    (busy, {}, "Busy has 26 functions and 0 fields"),
                                    (wide, {(path, "Wide"): (0, 23)}, "fewer than the list says"),
                                    (GUARD, {(path, "Wide"): (0, 23)}, "no longer too large")]:
            findings = tidy.check({path: text}, {}, allowed)
            self.assertEqual(len(findings), 1, findings)
            self.assertIn(says, findings[0])
        self.assertEqual(tidy.check({path: wide}, {}, {(path, "Wide"): (0, 22)}), [])
        self.assertEqual(tidy.check({"agent/shell/a.h": wide}, {}), [])

    def test_comments_of_a_core_are_counted_by_content(self):
        text = ("// Why it is so.\nint a = 1;  // Of the others.\n// ---- rows ------\nconst char* b = \"// no comment\";\n"
                "// One\n//\n}  // namespace regroup\nint c;  // NOLINT(some check)\n")
        self.assertEqual(shapes.explained(text), (2, 4))
        path = "agent/core/a.cc"
        self.assertEqual(tidy.check({path: text}, {}, (), {("agent/core", "cc"): 0.5}), [])
        self.assertEqual(tidy.check({path: "int d;\n" + text}, {}, (), {("agent/core", "cc"): 0.5}),
                         ["agent/core:1: its .cc files have 0.400 comment lines per code line, 0.5 is the least"])

    def test_circles_of_files_are_found(self):
        def includes(name):
            return GUARD + f'#include "agent/core/{name}.h"\n'
        files = {"agent/core/a.h": GUARD, "agent/core/a.cc": includes("a") + includes("b"), "agent/core/b.h": GUARD,
                 "agent/core/b.cc": includes("c"), "agent/core/c.h": GUARD, "agent/core/top.cc": includes("a")}
        self.assertEqual(tidy.check(files, {}), [])
        files["agent/core/c.h"] = includes("a")
        self.assertEqual(tidy.check(files, {}), ["agent/core:1: a, b, c include each other in a circle"])

    def test_members_are_counted(self):
        self.assertEqual([(name, functions, fields) for name, _, functions, fields in shapes.types(TYPES)],
                         [("Plain", 1, 9), ("Inner", 0, 2), ("Machine", 5, 3)])

    def test_functions_are_found(self):
        found = [(name, last - first + 1) for name, first, last in cpp.functions(FUNCTIONS)]
        self.assertEqual(found, [("C", 3), ("Get", 1), ("Later", 4), ("Free", 6), ("(Suite,Name)", 3)])


class Tree(unittest.TestCase):
    def test_the_tree_is_tidy(self):
        files = tidy.tree(tidy.ROOT)
        self.assertGreater(len(files), 50, "the tree was not found")
        findings = tidy.check(files, tidy.read_baseline(), tidy.read_large_types(), tidy.read_comments())
        self.assertEqual(findings, [], "\n" + "\n".join(findings))

    def test_functions_are_found_in_the_tree(self):
        """Guards against a scanner that silently finds nothing."""
        for path, text in tidy.tree(tidy.ROOT).items():
            if path.endswith("main.cc"):
                self.assertIn("main", [name for name, _, _ in cpp.functions(text)], path)


if __name__ == "__main__":
    unittest.main(verbosity=2)
