#include "launcher/coordinator/shell/sqlite_journal.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "common/base/user_error.h"
#include "common/io/files.h"
#include "tests/launcher/coordinator/shell/journal_contract.h"
#include "tests/launcher/coordinator/shell/temp_dir.h"

namespace {
std::atomic<int> synced{0};  // Files and folders, by anybody in this process.
}  // namespace
extern "C" int fsync(int fd) {
  ++synced;
  return static_cast<int>(syscall(SYS_fsync, fd));
}
extern "C" int fdatasync(int fd) {
  ++synced;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}

namespace regroup::coordinator {
namespace {

using ::testing::HasSubstr;

class SqliteJournalTest : public JournalContract {
 protected:
  std::unique_ptr<Journal> Open() override { return MakeSqliteJournal(path()); }
  std::string path() const { return dir_.path() + "/journal.db"; }

  // Some rows, closed cleanly.
  void Fill(int rows) {
    std::unique_ptr<Journal> journal = Open();
    ASSERT_TRUE(LoadNow(*journal).ok());
    Journal::Batch batch;
    for (int i = 0; i < rows; ++i)
      batch.push_back({"key/" + std::to_string(i), std::string(300, 'v')});
    ASSERT_TRUE(CommitNow(*journal, batch).ok());
  }
  absl::Status OpenStatus() {
    std::unique_ptr<Journal> journal = Open();
    return LoadNow(*journal).status();
  }
  void Execute(const char* sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(path().c_str(), &database), SQLITE_OK);
    ASSERT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
  }
  void Overwrite(std::int64_t offset, const std::string& bytes) {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file << bytes;
  }

  regroup::testing::TempDir dir_;
};

REGROUP_JOURNAL_CONTRACT(SqliteJournalTest)

TEST_F(SqliteJournalTest, OnlyTheOwnerMayReadTheFile) {
  Fill(1);
  struct stat status {};
  ASSERT_EQ(stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

// On a slow disk each of them takes long, and a launch command waits for all.
TEST_F(SqliteJournalTest, ItsMakingIsSyncedOnceAtItsEndAndThenEveryCommit) {
  for (const int for_opening : {3, 0}) {  // File, log and folder; a second life has all of them.
    std::unique_ptr<Journal> journal = Open();
    int before = synced;
    ASSERT_TRUE(LoadNow(*journal).ok());
    EXPECT_EQ(synced - before, for_opening);
    for (const char* value : {"1", "2", "3"}) {
      before = synced;
      ASSERT_TRUE(CommitNow(*journal, {{"a", value}}).ok());
      EXPECT_GE(synced - before, 1);
    }
  }
}

TEST_F(SqliteJournalTest, ReadsOnTheCallersThread) {
  Fill(3);
  const auto rows = ReadSqliteJournal(path());
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), 3u);
  EXPECT_TRUE(absl::IsNotFound(ReadSqliteJournal(dir_.path() + "/none").status()));
}

TEST_F(SqliteJournalTest, ASecondConnectionIsTurnedAway) {
  std::unique_ptr<Journal> first = Open();
  ASSERT_TRUE(LoadNow(*first).ok());
  ASSERT_TRUE(CommitNow(*first, {{"a", "1"}}).ok());
  const absl::Status second = ReadSqliteJournal(path()).status();
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_TRUE(CommitNow(*first, {{"b", "1"}}).ok());
}

// SQLite takes each of these for a log that was shorter from the beginning.
TEST_F(SqliteJournalTest, ALogThatLostItsEndIsToldAndItsJobsStayNumbered) {
  const auto copy = [&](const std::string& from, const std::string& to) {
    for (const char* suffix : {"", "-wal", ".tally"}) {
      std::filesystem::copy_file(from + suffix, to + suffix,
                                 std::filesystem::copy_options::overwrite_existing);
    }
  };
  const std::string kept = dir_.path() + "/kept";
  {
    std::unique_ptr<Journal> journal = Open();
    ASSERT_TRUE(LoadNow(*journal).ok());
    EXPECT_EQ(journal->memory().newest_job, 0u);
    for (int i = 1; i <= 7; ++i) {
      ASSERT_TRUE(CommitNow(*journal, {{"meta", "m"},
                                       {"job/a-b-" + std::to_string(i) + "/spec", "s"},
                                       {"job/a-b-99/state", "s"}})
                      .ok());
    }
    copy(path(), kept);  // As a kill leaves it: everything still in the log.
  }
  const auto log_bytes = std::filesystem::file_size(kept + "-wal");
  ASSERT_GT(log_bytes, 20'000u);
  int told = 0;
  for (std::uintmax_t bytes = 0; bytes <= log_bytes; bytes += 2'000) {
    copy(kept, path());
    std::filesystem::resize_file(path() + "-wal", bytes);
    std::unique_ptr<Journal> journal = Open();
    const auto rows = LoadNow(*journal);
    ASSERT_TRUE(rows.ok()) << rows.status();
    const Journal::Memory memory = journal->memory();
    EXPECT_EQ(memory.commits + memory.lost_commits, 7u) << bytes;
    EXPECT_EQ(memory.lost_commits == 0, rows->size() == 9) << bytes;
    EXPECT_EQ(memory.newest_job, 7u) << bytes;
    told += memory.lost_commits > 0;
    // It is told once, and the number stays.
    ASSERT_TRUE(CommitNow(*journal, {{"meta", "n"}}).ok());
    journal.reset();
    journal = Open();
    ASSERT_TRUE(LoadNow(*journal).ok());
    EXPECT_EQ(journal->memory().lost_commits, 0u) << bytes;
    EXPECT_EQ(journal->memory().newest_job, 7u) << bytes;
  }
  EXPECT_GT(told, 5);
  for (const char* other : {"", "rubbish", "18446744073709551616 commits"}) {
    copy(kept, path());
    std::ofstream(path() + ".tally") << other;
    std::unique_ptr<Journal> journal = Open();
    ASSERT_TRUE(LoadNow(*journal).ok());
    EXPECT_EQ(journal->memory().lost_commits, 0u) << other;
  }
}

TEST_F(SqliteJournalTest, AJournalThatNeverCountedBegins) {
  Fill(3);
  Execute("DROP TABLE tally");
  std::filesystem::remove(path() + ".tally");
  std::unique_ptr<Journal> journal = Open();
  ASSERT_EQ(LoadNow(*journal)->size(), 3u);
  EXPECT_EQ(journal->memory().lost_commits, 0u);
  EXPECT_TRUE(CommitNow(*journal, {{"meta", "n"}}).ok());
  journal.reset();
  EXPECT_EQ(ReadSqliteJournal(path())->size(), 4u);
}

TEST_F(SqliteJournalTest, AFileCutShortAtItsBirthIsNew) {
  // What a crash between the first two statements of the schema leaves.
  Execute("PRAGMA journal_mode=WAL");
  EXPECT_TRUE(OpenStatus().ok());
  Fill(1);
  EXPECT_EQ(ReadSqliteJournal(path())->size(), 1u);
}

TEST_F(SqliteJournalTest, ADamagedFileIsRefusedAndKept) {
  Fill(2'000);
  // One page in the middle.
  Overwrite(40 * 4096, std::string(4096, '\xff'));
  const absl::Status status = OpenStatus();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  const UserErrorParts parts = PartsOf(status);
  EXPECT_THAT(parts.what, HasSubstr("damaged"));
  EXPECT_THAT(parts.because, HasSubstr(path() + ".damaged"));
  EXPECT_FALSE(parts.try_this.empty());
  EXPECT_EQ(access((path() + ".damaged").c_str(), R_OK), 0);
}

// No page's structure is hurt: only the row's own checksum can tell.
TEST_F(SqliteJournalTest, ADamagedValueIsRefusedAndKept) {
  Fill(2'000);
  std::string bytes = *io::ReadFile(path(), 64 << 20);
  const std::size_t at = bytes.find(std::string(200, 'v'), bytes.size() / 2);
  ASSERT_NE(at, std::string::npos);
  Overwrite(static_cast<std::int64_t>(at) + 100, "w");
  const absl::Status status = LoadNow(*Open()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(PartsOf(status).because, HasSubstr("does not match its checksum; a copy is kept"));
  EXPECT_TRUE(absl::IsDataLoss(ReadSqliteJournal(path()).status()));
  EXPECT_EQ(access((path() + ".damaged").c_str(), R_OK), 0);
}

TEST_F(SqliteJournalTest, AFileCutOffWithinItsHeaderIsRefusedAndKept) {
  Fill(1);
  ASSERT_EQ(truncate(path().c_str(), 50), 0);
  EXPECT_TRUE(absl::IsDataLoss(OpenStatus()));
  EXPECT_EQ(std::filesystem::file_size(path()), 50u);
}

TEST_F(SqliteJournalTest, AFileOfSomethingElseIsRefused) {
  std::ofstream(path()) << "this is no database, but longer than the header of one would be; it "
                           "goes on and on and on";
  EXPECT_TRUE(absl::IsDataLoss(OpenStatus()));
  std::ifstream still(path());
  std::string word;
  still >> word;
  EXPECT_EQ(word, "this");
}

TEST_F(SqliteJournalTest, ADatabaseOfSomethingElseIsRefused) {
  Execute("CREATE TABLE songs(name TEXT); PRAGMA application_id=7");
  EXPECT_THAT(PartsOf(OpenStatus()).because, HasSubstr("something else"));
}

TEST_F(SqliteJournalTest, ANewerFormatIsRefusedNamingBoth) {
  Fill(1);
  Execute("PRAGMA user_version=2");
  const absl::Status status = OpenStatus();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(PartsOf(status).because, HasSubstr("format 2, this program reads up to 1"));
  EXPECT_NE(access((path() + ".damaged").c_str(), F_OK), 0);
}

// Runs `body` in a child process, which has to end it with _exit.
pid_t Fork(const std::function<void()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    body();
    _exit(100);
  }
  return pid;
}

// A child commits numbered batches of several rows as fast as it can and tells each acknowledged
// number through a pipe; it is killed at some moment. Everything told is there, and the last batch
// is there as a whole or not at all.
TEST_F(SqliteJournalTest, KilledAtAnyMomentNothingAcknowledgedIsLostOrHalf) {
  constexpr int kRows = 20;
  for (int round = 0; round < 6; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = Fork([&] {
      std::unique_ptr<Journal> journal = Open();
      if (!LoadNow(*journal).ok()) _exit(1);
      for (int number = 1;; ++number) {
        Journal::Batch batch;
        for (int i = 0; i < kRows; ++i) {
          batch.push_back(
              {"row/" + std::to_string(i), std::to_string(number) + std::string(500, '.')});
        }
        if (!CommitNow(*journal, batch).ok()) _exit(2);
        if (write(ends[1], &number, sizeof number) != sizeof number) _exit(3);
      }
    });
    close(ends[1]);
    int acknowledged = 0, number = 0;
    // Killed after another number of commits each round.
    const int until = 1 + round * 7;
    while (acknowledged < until && read(ends[0], &number, sizeof number) == sizeof number)
      acknowledged = number;
    kill(child, SIGKILL);
    while (read(ends[0], &number, sizeof number) == sizeof number) acknowledged = number;
    close(ends[0]);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "exit " << WEXITSTATUS(status);

    const auto rows = ReadSqliteJournal(path());
    ASSERT_TRUE(rows.ok()) << rows.status();
    ASSERT_EQ(rows->size(), static_cast<std::size_t>(kRows));
    const int found = std::stoi(*rows->front().value);
    EXPECT_GE(found, acknowledged);
    EXPECT_LE(found, acknowledged + 1);
    for (const JournalRow& row : *rows) EXPECT_EQ(std::stoi(*row.value), found) << row.key;
  }
}

// A limit of file size acts as a full disk would: writes past it fail. (SIGXFSZ ignored: EFBIG,
// which SQLite takes for an I/O error; a real ENOSPC is tried below where a tmpfs can be mounted.)
TEST_F(SqliteJournalTest, AFileThatCanNotGrowLosesNothing) {
  Fill(1);
  const pid_t child = Fork([&] {
    signal(SIGXFSZ, SIG_IGN);
    std::unique_ptr<Journal> journal = Open();
    if (!LoadNow(*journal).ok()) _exit(1);
    const rlimit limit{256 << 10, 256 << 10};
    setrlimit(RLIMIT_FSIZE, &limit);
    if (CommitNow(*journal, {{"large", std::string(1 << 20, 'x')}}).ok()) _exit(2);
    _exit(0);
  });
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ReadSqliteJournal(path())->size(), 1u);
}

// In a mount namespace of its own, so that nothing of it is left behind however this test ends.
TEST_F(SqliteJournalTest, AFullDiskIsSaidAndGoesOnWhenThereIsRoom) {
  const std::string command =
      "unshare -m true 2>/dev/null && unshare -m mount -t tmpfs -o size=512k tmpfs " + dir_.path() +
      " 2>/dev/null";
  if (geteuid() != 0 || system(command.c_str()) != 0) GTEST_SKIP() << "no rights to mount a tmpfs";
  const pid_t child = Fork([&] {
    if (unshare(CLONE_NEWNS) != 0 || system("mount --make-rprivate / 2>/dev/null") != 0) _exit(10);
    if (system(("mount -t tmpfs -o size=512k tmpfs " + dir_.path()).c_str()) != 0) _exit(11);
    std::unique_ptr<Journal> journal = Open();
    if (!LoadNow(*journal).ok()) _exit(12);
    if (!CommitNow(*journal, {{"first", "1"}}).ok()) _exit(13);
    // Somebody else fills the disk.
    if (system(("dd if=/dev/zero of=" + dir_.path() + "/filler bs=4k 2>/dev/null; true").c_str()) !=
        0)
      _exit(14);
    const Journal::Batch batch = {{"second", std::string(64 << 10, 'x')}, {"third", "3"}};
    const absl::Status full = CommitNow(*journal, batch);
    if (!absl::IsResourceExhausted(full)) {
      fprintf(stderr, "%s\n", full.ToString().c_str());
      _exit(15);
    }
    if (PartsOf(full).try_this.empty()) _exit(16);
    if (unlink((dir_.path() + "/filler").c_str()) != 0) _exit(17);
    if (!CommitNow(*journal, batch).ok()) _exit(18);
    journal = nullptr;
    const auto rows = ReadSqliteJournal(path());
    _exit(rows.ok() && rows->size() == 3 ? 0 : 19);
  });
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace regroup::coordinator
