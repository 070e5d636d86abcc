#include "launcher/coordinator/shell/sqlite_journal.h"

#include <fcntl.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/user_error.h"
#include "common/io/fd.h"
#include "common/io/files.h"
#include "launcher/coordinator/core/rows.h"

namespace regroup::coordinator {
namespace {

static_assert(kJournalFormat == static_cast<int>(kRowFormat));

struct CloseDatabase {
  void operator()(sqlite3* database) const { sqlite3_close(database); }
};
struct FinalizeStatement {
  void operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, FinalizeStatement>;

// SQLite notices a damaged tree, but not a damaged value.
std::int64_t SumOf(const std::string& key, const std::string& value) {
  return static_cast<std::int64_t>(
      XXH3_64bits_withSeed(value.data(), value.size(), XXH3_64bits(key.data(), key.size())));
}

absl::Status Damaged(const std::string& path, std::string how) {
  std::replace(how.begin(), how.end(), '\n', ' ');  // Of SQLite's own check: one line is told.
  // A copy is kept, so that nothing that is tried next can lose what is left. The first one is the
  // best.
  for (const char* suffix : {"", "-wal"}) {
    std::error_code ignored;
    std::filesystem::copy_file(path + suffix, path + ".damaged" + suffix,
                               std::filesystem::copy_options::skip_existing, ignored);
  }
  return UserError(absl::StatusCode::kDataLoss, "the journal " + path + " is damaged",
                   how + "; a copy is kept as " + path + ".damaged",
                   "restore the folder from a backup, or move the file away to start with no jobs");
}

absl::Status SqliteError(const std::string& path, sqlite3* database, const char* doing) {
  const int code = database == nullptr ? SQLITE_NOMEM : sqlite3_extended_errcode(database);
  const std::string text = database == nullptr ? "out of memory" : sqlite3_errmsg(database);
  switch (code & 0xFF) {
    case SQLITE_FULL:
      return UserError(absl::StatusCode::kResourceExhausted, "the disk of the journal is full",
                       std::string(doing) + " " + path + ": " + text,
                       "free space on that file system");
    case SQLITE_BUSY:
      return UserError(absl::StatusCode::kUnavailable, "another process uses the journal " + path,
                       text, "stop that process");
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return Damaged(path, text);
    default:
      return UserError(
          absl::StatusCode::kInternal, "the journal " + path + " cannot be used",
          std::string(doing) + ": " + text + " (SQLite code " + std::to_string(code) + ")", "");
  }
}

constexpr char kTallyFormat[] = "%020llu commits, newest job %020llu\n";
constexpr std::size_t kTallyBytes = 62;
constexpr unsigned long long kMostTold = 1'000'000'000'000'000;  // More is no number of ours.

// The N of NAME-N, where a row is the spec of a job; else 0.
std::uint64_t NumberOfNewJob(const std::string& key) {
  std::uint64_t number = 0;
  const std::size_t dash = key.rfind('-');
  if (!absl::StartsWith(key, "job/") || !absl::EndsWith(key, "/spec") || dash == std::string::npos)
    return 0;
  const std::string digits = key.substr(dash + 1, key.size() - dash - sizeof "/spec");
  return absl::SimpleAtoi(digits, &number) ? number : 0;
}

// The file that remembers beside the journal. It is never synced: it survives this process, not the
// power, and after a power cut it only knows less.
class Tally {
 public:
  // What it remembers; nothing when there is none, or when it holds something else.
  void Open(const std::string& path) {
    absl::StatusOr<io::UniqueFd> fd = io::OpenRegular(path, O_RDWR | O_CREAT);
    if (!fd.ok()) return;
    fd_ = *std::move(fd);
    char text[kTallyBytes + 1] = {};
    unsigned long long commits = 0, newest_job = 0;
    if (pread(fd_.get(), text, kTallyBytes, 0) != static_cast<ssize_t>(kTallyBytes) ||
        std::sscanf(text, "%20llu commits, newest job %20llu", &commits, &newest_job) != 2 ||
        commits > kMostTold || newest_job > kMostTold)
      return;
    commits_ = commits;
    newest_job_ = newest_job;
  }
  void Count(std::uint64_t commits, const Journal::Batch& batch) {
    for (const JournalRow& row : batch)
      if (row.value) newest_job_ = std::max(newest_job_, NumberOfNewJob(row.key));
    commits_ = commits;
    char text[kTallyBytes + 1];
    std::snprintf(text, sizeof text, kTallyFormat, static_cast<unsigned long long>(commits_),
                  static_cast<unsigned long long>(newest_job_));
    // Without it a loss would not be told; nothing else depends on it.
    (void)!pwrite(fd_.get(), text, kTallyBytes, 0);
  }
  std::uint64_t commits() const { return commits_; }
  std::uint64_t newest_job() const { return newest_job_; }

 private:
  io::UniqueFd fd_;
  std::uint64_t commits_ = 0, newest_job_ = 0;
};

constexpr std::string_view kJobs = "job/", kBehindJobs = "job0",
                           kBehindAll = "\xff\xff\xff\xff\xff\xff\xff\xff";

// The first key behind all that begin with `folder`, which ends with a slash.
std::string Behind(std::string folder) {
  ++folder.back();
  return folder;
}

// The connection. Used by one thread at a time.
class Connection {
 public:
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const std::string& path,
                                                          bool may_create) {
    std::unique_ptr<Connection> connection(new Connection(path));
    RETURN_IF_ERROR(connection->OpenFile(may_create));
    return connection;
  }

  // How many commits there are in the journal, and what was known to be.
  absl::Status Remember() {
    // A journal of before has not counted.
    RETURN_IF_ERROR(
        Execute("CREATE TABLE IF NOT EXISTS tally(commits INTEGER NOT NULL);"
                "INSERT INTO tally SELECT 0 WHERE NOT EXISTS (SELECT * FROM tally)",
                "counting"));
    ASSIGN_OR_RETURN(const std::int64_t commits, Number("SELECT commits FROM tally"));
    memory_.commits = static_cast<std::uint64_t>(commits);
    tally_.Open(path_ + ".tally");
    memory_.newest_job = tally_.newest_job();
    memory_.lost_commits = std::max(tally_.commits(), memory_.commits) - memory_.commits;
    return absl::OkStatus();
  }
  const Journal::Memory& memory() const { return memory_; }

  // What is in the file itself is checked when it is opened; the log is only believed.
  void FoldLogIntoFile() {
    if (is_new_) return;
    sqlite3_exec(database_.get(), "PRAGMA wal_checkpoint(TRUNCATE)", nullptr, nullptr, nullptr);
  }

  // What a start needs (Journal::Load); all without `has_ended`.
  absl::StatusOr<Journal::Batch> Rows(const Journal::HasEnded& has_ended) {
    Journal::Batch rows;
    if (!has_ended) {
      RETURN_IF_ERROR(Range("", kBehindAll, rows));
      return rows;
    }
    RETURN_IF_ERROR(Range("", kJobs, rows));
    std::string from(kJobs);
    for (;;) {
      ASSIGN_OR_RETURN(const std::optional<std::string> key, FirstKey(from, kBehindJobs));
      if (!key) break;
      const std::size_t slash = key->find('/', kJobs.size());
      // Of a key without a job: what reads rows says what is wrong with it.
      const std::string folder = slash == std::string::npos ? *key : key->substr(0, slash + 1);
      from = slash == std::string::npos ? *key + '\0' : Behind(folder);
      ASSIGN_OR_RETURN(const std::optional<std::string> state, ValueOf(folder + "state"));
      RETURN_IF_ERROR(state && has_ended(*state) ? WithoutHistory(folder, rows)
                                                 : Range(folder, from, rows));
    }
    RETURN_IF_ERROR(Range(kBehindJobs, kBehindAll, rows));
    return rows;
  }

  absl::StatusOr<Journal::Batch> Folder(const std::string& folder) {
    Journal::Batch rows;
    RETURN_IF_ERROR(Range(folder, Behind(folder), rows));
    return rows;
  }

  // REQUIRES: Rows were read.
  absl::Status Commit(const Journal::Batch& batch) {
    RETURN_IF_ERROR(Execute("BEGIN IMMEDIATE", "beginning"));
    absl::Status written = Write(batch);
    if (written.ok()) written = Execute("UPDATE tally SET commits = commits + 1", "counting");
    if (written.ok()) written = Execute("COMMIT", "committing");
    if (written.ok()) tally_.Count(++memory_.commits, batch);
    // After an error SQLite may have ended the transaction by itself.
    if (!written.ok() && sqlite3_get_autocommit(database_.get()) == 0) {
      sqlite3_exec(database_.get(), "ROLLBACK", nullptr, nullptr, nullptr);
    }
    return written;
  }

 private:
  explicit Connection(std::string path) : path_(std::move(path)) {}

  absl::Status Error(const char* doing) const { return SqliteError(path_, database_.get(), doing); }

  absl::Status Execute(const char* sql, const char* doing) {
    if (sqlite3_exec(database_.get(), sql, nullptr, nullptr, nullptr) != SQLITE_OK)
      return Error(doing);
    return absl::OkStatus();
  }

  static void Bind(sqlite3_stmt* statement, int parameter, std::string_view bytes) {
    sqlite3_bind_blob64(statement, parameter, bytes.data(), bytes.size(), SQLITE_STATIC);
  }

  // Appends a row, once its sum is right.
  absl::Status Take(sqlite3_stmt* select, Journal::Batch& rows) {
    const auto bytes = [&](int column) {
      const void* data = sqlite3_column_blob(select, column);
      const int size = sqlite3_column_bytes(select, column);
      return std::string(static_cast<const char*>(data), static_cast<std::size_t>(size));
    };
    rows.push_back({bytes(0), bytes(1)});
    if (SumOf(rows.back().key, *rows.back().value) == sqlite3_column_int64(select, 2))
      return absl::OkStatus();
    return Damaged(path_,
                   "the row " + absl::CHexEscape(rows.back().key) + " does not match its checksum");
  }

  // What `select`, with its parameters bound, gives.
  absl::Status TakeAll(sqlite3_stmt* select, Journal::Batch& rows) {
    absl::Status taken;
    int code = SQLITE_ROW;
    while (taken.ok() && (code = sqlite3_step(select)) == SQLITE_ROW) taken = Take(select, rows);
    if (taken.ok() && code != SQLITE_DONE) taken = Error("reading");
    sqlite3_reset(select);
    sqlite3_clear_bindings(select);
    return taken;
  }

  // Keys from `from` up to before `to`.
  absl::Status Range(std::string_view from, std::string_view to, Journal::Batch& rows) {
    Bind(range_.get(), 1, from);
    Bind(range_.get(), 2, to);
    return TakeAll(range_.get(), rows);
  }

  absl::Status One(const std::string& key, Journal::Batch& rows) {
    return Range(key, key + '\0', rows);
  }

  absl::StatusOr<std::optional<std::string>> ValueOf(const std::string& key) {
    Journal::Batch rows;
    RETURN_IF_ERROR(One(key, rows));
    if (rows.empty()) return std::nullopt;
    return std::move(rows.front().value);
  }

  absl::StatusOr<std::optional<std::string>> FirstKey(std::string_view from, std::string_view to) {
    Bind(first_key_.get(), 1, from);
    Bind(first_key_.get(), 2, to);
    const int code = sqlite3_step(first_key_.get());
    std::optional<std::string> key;
    if (code == SQLITE_ROW)
      key.emplace(static_cast<const char*>(sqlite3_column_blob(first_key_.get(), 0)),
                  static_cast<std::size_t>(sqlite3_column_bytes(first_key_.get(), 0)));
    sqlite3_reset(first_key_.get());
    sqlite3_clear_bindings(first_key_.get());
    if (code != SQLITE_ROW && code != SQLITE_DONE) return Error("reading");
    return key;
  }

  // In the order of keys, as all rows are.
  absl::Status WithoutHistory(const std::string& folder, Journal::Batch& rows) {
    RETURN_IF_ERROR(One(folder + "commit", rows));
    Journal::Batch newest;
    const std::string generations = folder + "gen/", end = Behind(generations);
    Bind(newest_.get(), 1, generations);
    Bind(newest_.get(), 2, end);
    sqlite3_bind_int64(newest_.get(), 3, static_cast<sqlite3_int64>(kGenerationsKept));
    RETURN_IF_ERROR(TakeAll(newest_.get(), newest));
    std::move(newest.rbegin(), newest.rend(), std::back_inserter(rows));
    RETURN_IF_ERROR(One(folder + "spec", rows));
    return One(folder + "state", rows);
  }

  absl::StatusOr<Statement> Prepare(const char* sql) {
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v3(database_.get(), sql, -1, SQLITE_PREPARE_PERSISTENT, &statement,
                           nullptr) != SQLITE_OK) {
      return Error("preparing a statement on");
    }
    return Statement(statement);
  }

  absl::StatusOr<std::int64_t> Number(const char* pragma) {
    ASSIGN_OR_RETURN(Statement statement, Prepare(pragma));
    if (sqlite3_step(statement.get()) != SQLITE_ROW) return Error("reading");
    return sqlite3_column_int64(statement.get(), 0);
  }

  absl::Status FileError(int error) const {
    return UserError(io::ErrnoStatus(error, "").code(),
                     "the journal " + path_ + " cannot be opened", std::strerror(error),
                     "look at that folder, or give another --state-dir");
  }

  // Nothing was ever made durable in it: empty, or its making was cut short by a crash.
  absl::StatusOr<bool> IsNew() {
    ASSIGN_OR_RETURN(const std::int64_t application, Number("PRAGMA application_id"));
    if (application != 0) return false;
    ASSIGN_OR_RETURN(const std::int64_t tables, Number("SELECT count(*) FROM sqlite_schema"));
    return tables == 0;
  }

  // SQLite would take a few bytes of anything for an empty file, and overwrite them.
  static bool IsCutOff(int fd) {
    constexpr off_t kHeaderBytes = 100;
    struct stat status {};
    return fstat(fd, &status) == 0 && status.st_size > 0 && status.st_size < kHeaderBytes;
  }

  absl::Status OpenFile(bool may_create) {
    // Made by us, so that it never exists with other permissions than these.
    const int fd =
        open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | (may_create ? O_CREAT : 0), 0600);
    if (fd < 0) return FileError(errno);
    const bool cut_off = IsCutOff(fd);
    close(fd);
    if (cut_off) return Damaged(path_, "it is shorter than the header of a journal");
    sqlite3* opened = nullptr;
    const int code = sqlite3_open_v2(
        path_.c_str(), &opened,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE, nullptr);
    database_.reset(opened);
    if (code != SQLITE_OK) return Error("opening");
    sqlite3_extended_result_codes(database_.get(), 1);
    // Exclusive: no second connection, and the WAL's index is in memory instead of a third file.
    RETURN_IF_ERROR(Execute(
        "PRAGMA locking_mode=EXCLUSIVE; PRAGMA trusted_schema=OFF; PRAGMA cell_size_check=ON",
        "opening"));
    ASSIGN_OR_RETURN(is_new_, IsNew());
    RETURN_IF_ERROR(is_new_ ? MakeSchema() : CheckExisting());
    RETURN_IF_ERROR(Execute("PRAGMA synchronous=FULL", "opening"));
    if (is_new_) RETURN_IF_ERROR(SyncNewFile());
    ASSIGN_OR_RETURN(
        put_, Prepare("INSERT INTO rows(key, value, sum) VALUES(?1, ?2, ?3) ON CONFLICT(key) "
                      "DO UPDATE SET value=excluded.value, sum=excluded.sum"));
    ASSIGN_OR_RETURN(erase_, Prepare("DELETE FROM rows WHERE key=?1"));
    ASSIGN_OR_RETURN(erase_folder_, Prepare("DELETE FROM rows WHERE key>=?1 AND key<?2"));
    ASSIGN_OR_RETURN(range_, Prepare("SELECT key, value, sum FROM rows WHERE key>=?1 AND key<?2 "
                                     "ORDER BY key"));
    ASSIGN_OR_RETURN(newest_, Prepare("SELECT key, value, sum FROM rows WHERE key>=?1 AND key<?2 "
                                      "ORDER BY key DESC LIMIT ?3"));
    ASSIGN_OR_RETURN(first_key_,
                     Prepare("SELECT key FROM rows WHERE key>=?1 AND key<?2 ORDER BY key LIMIT 1"));
    return absl::OkStatus();
  }

  absl::Status MakeSchema() {
    return Execute(
        "PRAGMA synchronous=OFF;"
        "PRAGMA journal_mode=WAL;"
        "BEGIN IMMEDIATE;"
        "CREATE TABLE rows(key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL, "
        "sum INTEGER NOT NULL) WITHOUT ROWID;"
        "CREATE TABLE tally(commits INTEGER NOT NULL);"
        "INSERT INTO tally VALUES(0);"
        "PRAGMA application_id=1380405840;"
        "PRAGMA user_version=1;"
        "COMMIT",
        "creating");
  }

  // What was written under synchronous=OFF: the file's first page and the log with the schema; and
  // their names.
  absl::Status SyncNewFile() {
    for (const char* suffix : {"", "-wal"}) {
      const io::UniqueFd file(open((path_ + suffix).c_str(), O_RDONLY | O_CLOEXEC));
      if (!file || fdatasync(file.get()) != 0) return FileError(errno);
    }
    return io::SyncDirectory(std::filesystem::path(path_).parent_path().string());
  }

  absl::Status CheckExisting() {
    ASSIGN_OR_RETURN(const std::int64_t application, Number("PRAGMA application_id"));
    ASSIGN_OR_RETURN(const std::int64_t format, Number("PRAGMA user_version"));
    if (application != kSqliteApplicationId) {
      return Damaged(path_, "it is a SQLite file of something else (application id " +
                                std::to_string(application) + ", ours is " +
                                std::to_string(kSqliteApplicationId) + ")");
    }
    if (format > kJournalFormat) {
      return UserError(absl::StatusCode::kFailedPrecondition,
                       "the journal " + path_ + " is of a newer Regroup",
                       "format " + std::to_string(format) + ", this program reads up to " +
                           std::to_string(kJournalFormat),
                       "run the newer version, or give another --state-dir");
    }
    ASSIGN_OR_RETURN(Statement check, Prepare("PRAGMA quick_check(1)"));
    if (sqlite3_step(check.get()) != SQLITE_ROW) return Error("checking");
    const std::string verdict = reinterpret_cast<const char*>(sqlite3_column_text(check.get(), 0));
    if (verdict != "ok") return Damaged(path_, "its check says: " + verdict);
    check.reset();
    return Execute("PRAGMA journal_mode=WAL", "opening");
  }

  absl::Status Write(const Journal::Batch& batch) {
    for (const JournalRow& row : batch) {
      const bool folder = !row.value && absl::EndsWith(row.key, "/");
      sqlite3_stmt* statement = row.value ? put_.get()
                                : folder  ? erase_folder_.get()
                                          : erase_.get();
      const std::string end = folder ? Behind(row.key) : "";
      // An empty value must be an empty blob, not NULL.
      Bind(statement, 1, row.key);
      if (folder) Bind(statement, 2, end);
      if (row.value) {
        sqlite3_bind_blob64(statement, 2, row.value->c_str(), row.value->size(), SQLITE_STATIC);
        sqlite3_bind_int64(statement, 3, SumOf(row.key, *row.value));
      }
      const int code = sqlite3_step(statement);
      const absl::Status status = code == SQLITE_DONE ? absl::OkStatus() : Error("writing");
      sqlite3_reset(statement);
      sqlite3_clear_bindings(statement);
      RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  Database database_;
  Statement put_, erase_, erase_folder_, range_, newest_,
      first_key_;  // Finalized before the connection closes.
  bool is_new_ = false;
  Journal::Memory memory_;
  Tally tally_;
};

class SqliteJournal final : public Journal {
 public:
  explicit SqliteJournal(const std::string& path) : path_(path), thread_([this] { Serve(); }) {}

  ~SqliteJournal() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

  void Load(HasEnded has_ended, Loaded loaded) override {
    Post([this, has_ended = std::move(has_ended), loaded = std::move(loaded)] {
      absl::StatusOr<std::unique_ptr<Connection>> opened =
          Connection::Open(path_, /*may_create=*/true);
      if (!opened.ok()) return loaded(opened.status());
      connection_ = *std::move(opened);
      if (absl::Status remembered = connection_->Remember(); !remembered.ok())
        return loaded(remembered);
      memory_ = connection_->memory();
      loaded(connection_->Rows(has_ended));
      connection_->FoldLogIntoFile();
    });
  }

  void ReadFolder(std::string folder, Loaded read) override {
    Post([this, folder = std::move(folder), read = std::move(read)] {
      CHECK(connection_ != nullptr);
      read(connection_->Folder(folder));
    });
  }

  Memory memory() const override { return memory_; }

  // Before reads: everything waits for it.
  void Commit(Batch batch, Done done) override {
    PostFirst([this, batch = std::move(batch), done = std::move(done)] {
      CHECK(connection_ != nullptr);
      done(connection_->Commit(batch));
    });
  }

 private:
  void Post(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      work_.push_back(std::move(work));
    }
    wake_.notify_one();
  }
  void PostFirst(std::function<void()> work) {
    {
      std::lock_guard lock(mutex_);
      work_.push_front(std::move(work));
    }
    wake_.notify_one();
  }

  void Serve() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || !work_.empty(); });
        if (work_.empty()) break;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
    connection_.reset();  // Here, on its own thread; folds the log into the file.
  }

  const std::string path_;
  std::unique_ptr<Connection> connection_;  // Touched by thread_ only.
  Memory memory_;                           // Written once, before Load's callback.
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> work_;
  bool stopping_ = false;
  std::thread thread_;  // Last: it uses all of the above.
};

}  // namespace

std::unique_ptr<Journal> MakeSqliteJournal(const std::string& path) {
  return std::make_unique<SqliteJournal>(path);
}

absl::StatusOr<Journal::Batch> ReadSqliteJournal(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<Connection> connection,
                   Connection::Open(path, /*may_create=*/false));
  return connection->Rows(nullptr);
}

namespace {

// What tells that a checkpoint has begun: it changes the file, and what follows it begins the log
// anew. Commits only append to the log, and a transaction that was copied in part does not count.
struct FileVersion {
  timespec changed{};
  off_t size = 0;
  std::string log_header;
};
bool operator==(const FileVersion& a, const FileVersion& b) {
  return a.changed.tv_sec == b.changed.tv_sec && a.changed.tv_nsec == b.changed.tv_nsec &&
         a.size == b.size && a.log_header == b.log_header;
}

absl::StatusOr<FileVersion> VersionOf(const std::string& path) {
  constexpr std::size_t kLogHeaderBytes = 32;
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return io::ErrnoStatus(errno, "the journal " + path);
  FileVersion version{info.st_mtim, info.st_size, std::string(kLogHeaderBytes, '\0')};
  const absl::StatusOr<io::UniqueFd> log = io::OpenRegular(path + "-wal", O_RDONLY);
  const ssize_t n = log.ok() ? pread(log->get(), version.log_header.data(), kLogHeaderBytes, 0) : 0;
  version.log_header.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return version;
}

absl::Status CopyJournal(const std::string& path, const std::string& copy) {
  constexpr int kTries = 5;
  for (int tries = 0; tries < kTries; ++tries) {
    ASSIGN_OR_RETURN(const FileVersion before, VersionOf(path));
    std::error_code error, no_log;
    const auto overwrite = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(path, copy, overwrite, error);
    std::filesystem::remove(copy + "-wal", no_log);
    std::filesystem::copy_file(path + "-wal", copy + "-wal", overwrite, no_log);
    if (error) return io::ErrnoStatus(error.value(), absl::StrCat("copy ", path, " to ", copy));
    ASSIGN_OR_RETURN(const FileVersion after, VersionOf(path));
    if (before == after) return absl::OkStatus();
  }
  return UserError(absl::StatusCode::kUnavailable, "the journal " + path + " cannot be read now",
                   "it changes faster than it can be copied", "again in a moment");
}

}  // namespace

absl::StatusOr<Journal::Batch> ReadHeldSqliteJournal(const std::string& path) {
  // In memory, so that a full disk does not matter.
  std::string folder = "/dev/shm/regroup-read-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    folder = std::filesystem::temp_directory_path().string() + "/regroup-read-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return io::ErrnoStatus(errno, "make " + folder);
  }
  const std::string copy = folder + "/journal";
  const absl::Status copied = CopyJournal(path, copy);
  absl::StatusOr<Journal::Batch> rows = copied.ok() ? ReadSqliteJournal(copy) : copied;
  io::RemoveTree(folder).IgnoreError();
  return rows;
}

}  // namespace regroup::coordinator
