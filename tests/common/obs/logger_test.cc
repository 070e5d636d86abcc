#include "common/obs/logger.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace regroup::obs {
namespace {

using ::testing::HasSubstr;

const WallTime kAt(std::chrono::microseconds(1'700'000'000'000'123));

class LoggerTest : public ::testing::Test {
 protected:
  LoggerTest() {
    char path[] = "/tmp/regroup-obs-XXXXXX";
    dir_ = mkdtemp(path);
    path_ = dir_ + "/daemon.log";
  }
  ~LoggerTest() override { std::filesystem::remove_all(dir_); }
  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  std::string dir_, path_;
};

TEST(RenderLine, PlainWordsStayPlain) {
  EXPECT_EQ(
      RenderLine(kAt, Level::kInfo, "node joined",
                 {{"node", "node1"}, {"address", "[fd00::1]:29400"}}, false),
      "2023-11-14T22:13:20.000123Z info what=\"node joined\" node=node1 address=[fd00::1]:29400");
}

TEST(RenderLine, NothingFromElsewhereForgesALine) {
  const std::string line =
      RenderLine(kAt, Level::kError, "x", {{"text", "a\nb\r\t\x1b[31m\x7f \"q\\"}}, false);
  EXPECT_THAT(line, HasSubstr(R"(text="a\nb\r\t\x1b[31m\x7f \"q\\")"));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_THAT(RenderLine(kAt, Level::kInfo, "x", {{"a b=c", "1"}}, false), HasSubstr(" field=1"));
}

TEST(RenderLine, BytesThatAreNotUtf8AreEscapedAndTextIsKept) {
  const std::string line =
      RenderLine(kAt, Level::kInfo, "x", {{"t", "grün \xff\xc3( \xc2\x9b 1"}}, false);
  EXPECT_THAT(line, HasSubstr("grün \\xff\\xc3( \\xc2\\x9b 1"));
}

TEST(RenderLine, JsonIsOneObject) {
  EXPECT_EQ(
      RenderLine(kAt, Level::kWarning, "a \"b\"", {{"k", "v\n\x01"}}, true),
      R"({"time":"2023-11-14T22:13:20.000123Z","level":"warning","what":"a \"b\"","k":"v\n\u0001"})");
}

TEST_F(LoggerTest, WritesWhatWasLoggedAndHidesDebug) {
  LogConfig config;
  config.path = path_;
  auto logger = Logger::Create(config);
  ASSERT_TRUE(logger.ok());
  (*logger)->Info("one", {{"n", "1"}});
  (*logger)->Log(Level::kDebug, "two", {});
  (*logger)->Flush();
  EXPECT_THAT(Read(path_), HasSubstr("info what=\"one\" n=1\n"));
  EXPECT_EQ(Read(path_).find("two"), std::string::npos);
  struct stat status {};
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(LoggerTest, AppendsAndKeepsTwoFilesAtMost) {
  std::ofstream(path_) << "before\n";
  LogConfig config;
  config.path = path_;
  config.max_bytes = 4096;
  {
    auto logger = Logger::Create(config);
    ASSERT_TRUE(logger.ok());
    for (int i = 0; i < 100; ++i)
      (*logger)->Info("a line of some length", {{"number", std::to_string(i)}});
    (*logger)->Flush();
    EXPECT_LE(std::filesystem::file_size(path_), 4096u);
  }
  EXPECT_THAT(Read(path_), HasSubstr("number=99\n"));
  EXPECT_LE(std::filesystem::file_size(path_ + ".1"), 4096u);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".2"));
}

TEST_F(LoggerTest, APathThatCanNotBeOpenedIsNamed) {
  LogConfig config;
  config.path = dir_ + "/none/daemon.log";
  EXPECT_THAT(std::string(Logger::Create(config).status().message()), HasSubstr(config.path));
}

TEST_F(LoggerTest, AFifoThatNobodyReadsIsNotWaitedFor) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  LogConfig config;
  config.path = path_;
  EXPECT_THAT(std::string(Logger::Create(config).status().message()), HasSubstr(path_));
}

// The file is a pipe that nobody reads: the caller goes on; what did not fit is dropped and
// counted.
TEST_F(LoggerTest, AReaderThatHangsHoldsNobody) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const int reader = open(path_.c_str(), O_RDONLY | O_NONBLOCK);
  LogConfig config;
  config.path = path_;
  auto logger = Logger::Create(config);
  ASSERT_TRUE(logger.ok());
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20'000; ++i)
    (*logger)->Info("a line of some length", {{"number", std::to_string(i)}});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  std::thread drain([&] {
    char bytes[65536];
    std::string text;
    while (text.find("the last") == std::string::npos) {
      const ssize_t size = read(reader, bytes, sizeof bytes);
      if (size > 0) text.append(bytes, static_cast<std::size_t>(size));
      if (size <= 0) std::this_thread::yield();
    }
    EXPECT_THAT(text, HasSubstr("log lines were dropped"));
  });
  (*logger)->Info("the last");
  drain.join();
  close(reader);
}

}  // namespace
}  // namespace regroup::obs
