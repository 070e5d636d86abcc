#include "launcher/cli/commands/python_source.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace regroup::cli {
namespace {

constexpr char kSets[] = "os.environ['MASTER_PORT'] = '12355'";

class PythonSourceTest : public ::testing::Test {
 protected:
  PythonSourceTest() : here_(std::filesystem::current_path()) {
    std::string pattern = ::testing::TempDir() + "python_source_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    std::filesystem::current_path(folder_);
  }
  ~PythonSourceTest() override {
    std::filesystem::current_path(here_);
    std::filesystem::remove_all(folder_);
  }
  static void Make(const std::string& name, const std::string& text) {
    const std::filesystem::path path(name);
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  const std::filesystem::path here_;
  std::string folder_;
};

TEST_F(PythonSourceTest, AnAssignmentIsSeen) {
  for (const char* text : {kSets, "  os.environ[\"MASTER_PORT\"]=p\n",
                           "os.environ.update(MASTER_ADDR='h', MASTER_PORT='1')",
                           "# MASTER_PORT = 1\nos.environ.update({\"MASTER_PORT\": \"1\"})"}) {
    EXPECT_TRUE(SetsMasterPort(text)) << text;
  }
  for (const char* text : {"", "MASTER_PORT", "print(os.environ['MASTER_PORT'])",
                           "if os.environ['MASTER_PORT'] == '1': pass",
                           "os.environ.setdefault('MASTER_PORT', '29500')",
                           "#   os.environ['MASTER_PORT'] = '12355'"}) {
    EXPECT_FALSE(SetsMasterPort(text)) << text;
  }
}

TEST_F(PythonSourceTest, ImportsFromBesideAreFollowed) {
  Make("code/setup/net.py", kSets);
  Make("code/setup/__init__.py", "");
  Make("code/indirect.py", "from setup import (net, other)\n");
  Make("code/up/deep/__init__.py", "from ...setup.net import meet\n");
  for (const char* text :
       {"import setup.net", "import os, setup.net as net", "  from setup.net import *",
        "from setup import net  # How they meet.", "import torch\nimport indirect\r\n",
        "from . import indirect", "from .setup.net import x", "import up.deep"}) {
    Make("code/train.py", text);
    EXPECT_TRUE(HintsOfScript("code/train.py").sets_master_port) << text;
    EXPECT_TRUE(HintsOfScript(folder_ + "/code/train.py").sets_master_port) << text;
  }
  for (const char* text : {"import setup", "import net", "# import indirect", "print('import')",
                           "import train", "from .. import indirect", "import", "from . import"}) {
    Make("code/train.py", text);
    EXPECT_FALSE(HintsOfScript("code/train.py").sets_master_port) << text;
  }
  EXPECT_FALSE(HintsOfScript("code/none.py").sets_master_port);
  EXPECT_FALSE(HintsOfScript("code").sets_master_port);
  Make("code/__main__.py", "import indirect");
  EXPECT_TRUE(HintsOfScript("code").sets_master_port);
}

TEST_F(PythonSourceTest, WhoImportsInPlaceIsKnown) {
  for (const char* text :
       {"import regroup.inplace", "import torch\nimport os, regroup.inplace as ip\n",
        "try:\n  from regroup import steps, inplace  # Both.\n", "from regroup import (inplace,\n",
        "from regroup.inplace import *\r\n"}) {
    EXPECT_TRUE(ImportsInPlace(text)) << text;
    Make("code/kept.py", text);
    Make("code/train.py", "import kept");
    EXPECT_EQ(HintsOfScript("code/train.py"), (ProgramHints{.keeps_ranks = true})) << text;
  }
  for (const char* text :
       {"", "import regroup", "# import regroup.inplace", "import regroup.inplaces",
        "from regroup import steps", "x = 'import regroup.inplace'", "from other import inplace",
        "from regroup.steps import inplace"}) {
    EXPECT_FALSE(ImportsInPlace(text)) << text;
  }
}

TEST_F(PythonSourceTest, APipeIsLeftToPython) {
  ASSERT_EQ(::mkfifo("train.py", 0600), 0);
  EXPECT_FALSE(HintsOfScript("train.py").sets_master_port);
}

TEST_F(PythonSourceTest, ModulesAreFoundFromTheWorkingDirectory) {
  Make("train.py", "import pkg.net");
  Make("pkg/net.py", kSets);
  Make("pkg/__main__.py", "from .net import meet");
  Make("pkg/calm.py", "import os");
  EXPECT_TRUE(HintsOfModule("train").sets_master_port);
  EXPECT_TRUE(HintsOfModule("pkg").sets_master_port);
  EXPECT_TRUE(HintsOfModule("pkg.net").sets_master_port);
  EXPECT_FALSE(HintsOfModule("pkg.calm").sets_master_port);
  EXPECT_FALSE(HintsOfModule("torch.distributed.run").sets_master_port);
}

TEST_F(PythonSourceTest, ACommandNamesAScriptOrAModule) {
  Make("code/train.py", "import net");
  Make("code/net.py", kSets);
  Make("code/calm.py", "");
  using Words = std::vector<std::string>;
  for (const Words& command :
       {Words{"train.py", "--lr", "1"}, Words{folder_ + "/code/train.py"}, Words{"-m", "train"},
        Words{"python", "train.py"}, Words{"/usr/bin/python3.11", "-u", "-W", "ignore", "train.py"},
        Words{"python3", "-B", "-m", "train", "-x"}}) {
    EXPECT_TRUE(HintsOfCommand(command, folder_ + "/code").sets_master_port) << command.back();
    EXPECT_FALSE(HintsOfCommand(command, folder_).sets_master_port &&
                 command[0] != folder_ + "/code/train.py");
  }
  for (const Words& command :
       {Words{}, Words{""}, Words{"calm.py", "train.py"}, Words{"-m", "calm"}, Words{"-m"},
        Words{"python"}, Words{"python", "-u"}, Words{"python", "-c", "train.py"},
        Words{"python", "-", "train.py"}, Words{"python", "-W"}, Words{"bash", "train.py"},
        Words{"sh", "-c", "python train.py"}, Words{".py"}}) {
    EXPECT_FALSE(HintsOfCommand(command, folder_ + "/code").sets_master_port);
  }
}

TEST_F(PythonSourceTest, LooksAtSoMuchAndNoMore) {
  Make("late.py", std::string(kMostBytes, ' ') + kSets);
  EXPECT_FALSE(HintsOfScript("late.py").sets_master_port);
  Make("late.py", std::string(kMostBytes - sizeof kSets, ' ') + kSets);
  EXPECT_TRUE(HintsOfScript("late.py").sets_master_port);
  const int chained = kMostFiles + 1;
  for (int i = 0; i < chained; ++i)
    Make("m" + std::to_string(i) + ".py", "import m" + std::to_string(i + 1));
  Make("m" + std::to_string(chained) + ".py", kSets);
  EXPECT_FALSE(HintsOfScript("m0.py").sets_master_port);
  EXPECT_FALSE(HintsOfScript("m1.py").sets_master_port);
  EXPECT_TRUE(HintsOfScript("m2.py").sets_master_port);
}

}  // namespace
}  // namespace regroup::cli
