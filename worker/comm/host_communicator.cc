#include "worker/comm/host_communicator.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <random>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/io/address.h"
#include "common/io/fd.h"
#include "common/io/proc.h"
#include "worker/comm/host_links.h"
#include "worker/comm/in_process_communicator.h"
#include "worker/comm/multi_host_communicator.h"
#include "worker/comm/shared_memory_communicator.h"
#include "worker/comm/store_client.h"

namespace regroup::worker {
namespace {

using std::chrono::steady_clock;

constexpr int kSpinWithOwnCores = 2000, kSpinOnSharedCores = 200;

std::string PidNamespace() {
  std::array<char, 64> link{};
  const ssize_t size = readlink("/proc/self/ns/pid", link.data(), link.size());
  return size > 0 ? std::string(link.data(), static_cast<std::size_t>(size)) : "?";
}

// What a rank tells the others through the store.
struct Presence {
  std::string boot_id, host, pid_namespace;
  pid_t pid = 0;
  std::uint64_t start_time = 0;
  std::string cores;        // Allowed ones, as 0s and 1s.
  int segment_fd = -1;      // Of ranks that are the first of their host.
  std::uint64_t nonce = 0;  // Likewise; also in the segment.
  std::string build;

  std::string Serialize() const {
    return absl::StrJoin({boot_id, host, pid_namespace, absl::StrCat(pid), absl::StrCat(start_time),
                          cores, absl::StrCat(segment_fd), absl::StrCat(nonce), build},
                         "\n");
  }
};

template <class T>
bool ParseNumber(const std::string& text, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

absl::StatusOr<Presence> ParsePresence(const std::string& text, int rank) {
  const std::vector<std::string> fields = absl::StrSplit(text, '\n');
  Presence p;
  if (fields.size() < 8 || !ParseNumber(fields[3], p.pid) || p.pid <= 0 ||
      !ParseNumber(fields[4], p.start_time) || !ParseNumber(fields[6], p.segment_fd) ||
      !ParseNumber(fields[7], p.nonce)) {
    return absl::DataLossError(
        absl::StrCat("what the store holds as rank ", rank, "'s presence is no presence"));
  }
  p.boot_id = fields[0];
  p.host = fields[1];
  p.pid_namespace = fields[2];
  p.cores = fields[5];
  // Builds before this field was there, and those that say more after it, are other builds.
  if (fields.size() > 8) p.build = fields[8];
  return p;
}

Presence OwnPresence() {
  Presence p;
  p.boot_id = io::ReadBootId().value_or(BootId("?")).value();
  utsname names{};
  uname(&names);
  p.host = names.nodename;
  p.pid_namespace = PidNamespace();
  p.pid = getpid();
  p.start_time = io::ReadProcessStat(p.pid).value_or(io::ProcessStat{}).start_ticks;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  for (int c = 0; c < CPU_SETSIZE && CPU_COUNT(&allowed) > 0; ++c) {
    p.cores += CPU_ISSET(c, &allowed) ? '1' : '0';
    CPU_CLR(c, &allowed);
  }
  return p;
}

// Spinning pays when every rank has a core to itself.
int SpinFor(const std::vector<Presence>& ranks) {
  std::string all;
  for (const Presence& p : ranks) {
    if (p.cores.size() > all.size()) all.resize(p.cores.size(), '0');
    for (std::size_t c = 0; c < p.cores.size(); ++c) {
      if (p.cores[c] == '1') all[c] = '1';
    }
  }
  const auto cores = static_cast<std::size_t>(std::count(all.begin(), all.end(), '1'));
  return ranks.size() <= cores ? kSpinWithOwnCores : kSpinOnSharedCores;
}

struct Mapping {
  std::byte* base = nullptr;
  std::size_t bytes = 0;
};

absl::StatusOr<Mapping> Map(int fd, std::size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no address space for ", bytes, " bytes of shared memory: ", std::strerror(errno)));
  }
  (void)madvise(base, bytes, MADV_HUGEPAGE);  // Taken where shmem may have huge pages.
  return Mapping{static_cast<std::byte*>(base), bytes};
}

absl::StatusOr<io::UniqueFd> NameMemory() {
  io::UniqueFd fd(memfd_create("regroup-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0)
    return absl::ResourceExhaustedError(absl::StrCat("memfd_create: ", std::strerror(errno)));
  return fd;
}

absl::Status ReserveMemory(const io::UniqueFd& fd, std::size_t bytes) {
  // Reserved now, so that too little memory is an error here and not a SIGBUS in the middle of a
  // step.
  if (const int failed = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes, " shared bytes: ", std::strerror(failed)));
  }
  fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return absl::OkStatus();
}

absl::StatusOr<io::UniqueFd> MakeMemory(std::size_t bytes) {
  ASSIGN_OR_RETURN(io::UniqueFd fd, NameMemory());
  RETURN_IF_ERROR(ReserveMemory(fd, bytes));
  return fd;
}

absl::StatusOr<io::UniqueFd> OpenMemory(pid_t pid, int number, std::size_t bytes) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", number);
  io::UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (fd.get() < 0) {
    const std::string why =
        absl::StrCat("shared memory of the host's first rank (", path, "): ", std::strerror(errno));
    return errno == EACCES || errno == EPERM
               ? absl::PermissionDeniedError(absl::StrCat(why, "; ranks must be of one user"))
               : absl::UnavailableError(why);
  }
  struct stat info {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) != bytes ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not the shared memory of ", bytes, " bytes that was made"));
  }
  return fd;
}

class ProcessPeers final : public Peers {
 public:
  // `host` are the ranks on this host. Fails when one of them is gone already.
  static absl::StatusOr<std::unique_ptr<ProcessPeers>> Watch(std::vector<Presence> ranks,
                                                             HostRanks host, int own) {
    auto peers = std::make_unique<ProcessPeers>();
    peers->ranks_ = std::move(ranks);
    peers->host_ = host;
    for (int r = host.first; r < host.first + host.count; ++r) {
      const Presence& p = peers->ranks_[static_cast<std::size_t>(r)];
      if (r == own) {
        peers->pidfds_.emplace_back();
        continue;
      }
      absl::StatusOr<io::UniqueFd> pidfd = io::OpenPidfd(p.pid);
      if (!pidfd.ok() || !io::IsAlive(p.pid, p.start_time)) {
        return absl::UnavailableError(
            absl::StrCat("rank ", r, " (pid ", p.pid, ") is gone before the group was whole"));
      }
      peers->pidfds_.push_back(*std::move(pidfd));
    }
    return peers;
  }
  ~ProcessPeers() override {
    for (const Mapping& m : mappings_) munmap(m.base, m.bytes);
  }

  bool Gone(int rank) override {
    pollfd item{pidfds_[rank].get(), POLLIN, 0};
    return poll(&item, 1, 0) > 0;
  }
  std::string NameOf(int world_rank) const override {
    const Presence& p = ranks_[static_cast<std::size_t>(world_rank)];
    const bool here = world_rank >= host_.first && world_rank < host_.first + host_.count;
    return absl::StrCat("rank ", world_rank, " (pid ", p.pid, here ? "" : " on ",
                        here ? "" : p.host, ")");
  }

  absl::StatusOr<Arena> MakeArena(std::size_t bytes) override {
    ASSIGN_OR_RETURN(io::UniqueFd fd, MakeMemory(bytes));
    ASSIGN_OR_RETURN(const Mapping mapping, Adopt(fd.get(), bytes));
    offered_.push_back(std::move(fd));
    const int number = offered_.back().get();
    return Arena{
        mapping.base,
        {static_cast<std::uint64_t>(holder().pid), static_cast<std::uint64_t>(number), bytes}};
  }
  absl::StatusOr<Arena> OpenArena(const ArenaTicket& ticket) override {
    ASSIGN_OR_RETURN(io::UniqueFd fd,
                     OpenMemory(holder().pid, static_cast<int>(ticket.handle), ticket.bytes));
    ASSIGN_OR_RETURN(const Mapping mapping, Adopt(fd.get(), ticket.bytes));
    return Arena{mapping.base, ticket};
  }
  void ArenaShared(const ArenaTicket&) override { offered_.clear(); }

  absl::StatusOr<Mapping> Adopt(int fd, std::size_t bytes) {
    ASSIGN_OR_RETURN(const Mapping mapping, Map(fd, bytes));
    mappings_.push_back(mapping);
    return mapping;
  }

 private:
  const Presence& holder() const { return ranks_[static_cast<std::size_t>(host_.first)]; }

  std::vector<Presence> ranks_;  // Of the world.
  HostRanks host_;
  std::vector<io::UniqueFd> pidfds_;   // By rank of this host.
  std::vector<io::UniqueFd> offered_;  // Arenas that others are still opening; of its first rank.
  std::vector<Mapping> mappings_;
};

bool OnOneHost(const Presence& a, const Presence& b) {
  return a.boot_id == b.boot_id && a.host == b.host && a.pid_namespace == b.pid_namespace;
}

absl::StatusOr<Hosts> HostsOf(const std::vector<Presence>& ranks) {
  Hosts hosts;
  for (int r = 0; r < static_cast<int>(ranks.size()); ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (r == 0 || !OnOneHost(ranks[at - 1], ranks[at])) hosts.push_back({r, 0});
    if (++hosts.back().count > kMaxRanks) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kMaxRanks, " ranks are on ", ranks[at].host));
    }
  }
  return hosts;
}

// Before any of them touches what another one made.
absl::Status CheckOneBuild(const std::vector<Presence>& ranks) {
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].build == ranks[0].build) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("all ranks run one build of the program; rank 0 on ", ranks[0].host,
                     " runs build ", ranks[0].build, " and rank ", r, " on ", ranks[r].host,
                     " build ", ranks[r].build, "; the command `version` of the program shows it"));
  }
  return absl::OkStatus();
}

// One meeting of ranks through the store.
class Meeting {
 public:
  Meeting(const HostCommunicatorOptions& options, StoreClient store)
      : options_(options),
        store_(std::move(store)),
        end_(steady_clock::now() + options.join_deadline) {}

  absl::Status Announce(const Presence& own) {
    return store_.Set(KeyOf(options_.rank), own.Serialize());
  }

  absl::StatusOr<std::vector<Presence>> AwaitAll() {
    std::vector<std::string> keys;
    for (int r = 0; r < options_.world_size; ++r) keys.push_back(KeyOf(r));
    const absl::Status all = store_.Wait(keys, end_ - steady_clock::now());
    if (absl::IsDeadlineExceeded(all)) return Missing();
    RETURN_IF_ERROR(all);
    std::vector<Presence> ranks;
    for (int r = 0; r < options_.world_size; ++r) {
      ASSIGN_OR_RETURN(const std::string text, store_.Get(keys[r]));
      ASSIGN_OR_RETURN(Presence presence, ParsePresence(text, r));
      ranks.push_back(std::move(presence));
    }
    return ranks;
  }

  // Where the first rank of each host listens, and the secret that they show each other. `own` is
  // one of the hosts, listening at `ip`.
  absl::StatusOr<HostMeeting> ShareAddresses(std::size_t hosts, std::size_t own,
                                             const Address& address) {
    if (own == 0) {
      Secret secret;
      std::random_device random;
      for (std::byte& b : secret) b = static_cast<std::byte>(random());
      RETURN_IF_ERROR(store_.Set(
          HostKey("secret"),
          absl::BytesToHexString({reinterpret_cast<const char*>(secret.data()), secret.size()})));
    }
    RETURN_IF_ERROR(store_.Set(HostKey(absl::StrCat(own)), io::FormatAddress(address)));
    std::vector<std::string> keys{HostKey("secret")};
    for (std::size_t h = 0; h < hosts; ++h) keys.push_back(HostKey(absl::StrCat(h)));
    RETURN_IF_ERROR(store_.Wait(keys, Left()));
    HostMeeting meeting;
    ASSIGN_OR_RETURN(const std::string hex, store_.Get(keys[0]));
    const std::string secret = hex.size() == 2 * sizeof(Secret) ? absl::HexStringToBytes(hex) : "";
    if (secret.size() != sizeof(Secret))
      return absl::DataLossError("what the store holds as the hosts' secret is no secret");
    std::memcpy(meeting.secret.data(), secret.data(), secret.size());
    for (std::size_t h = 0; h < hosts; ++h) {
      ASSIGN_OR_RETURN(const std::string text, store_.Get(keys[h + 1]));
      const absl::StatusOr<Address> listens = io::ParseAddress(text);
      if (!listens.ok()) {
        return absl::DataLossError(
            absl::StrCat("what the store holds as the address of host ", h, " is no address"));
      }
      meeting.addresses.push_back(*listens);
    }
    meeting.own = static_cast<int>(own);
    meeting.deadline = Left();
    return meeting;
  }

  absl::StatusOr<std::string> LocalIp() const {
    return options_.host_address.empty() ? store_.LocalIp() : options_.host_address;
  }

  Duration Left() const {
    return std::max<Duration>(end_ - steady_clock::now(), std::chrono::milliseconds(1));
  }

 private:
  std::string KeyOf(int rank) const {
    return absl::StrCat("regroup/comm/", options_.name, "/", rank);
  }

  std::string HostKey(const std::string& what) const {
    return absl::StrCat("regroup/comm/", options_.name, "/host/", what);
  }

  absl::Status Missing() {
    std::vector<int> missing;
    for (int r = 0; r < options_.world_size; ++r) {
      ASSIGN_OR_RETURN(const bool here, store_.Check({KeyOf(r)}));
      if (!here) missing.push_back(r);
    }
    return absl::DeadlineExceededError(
        absl::StrCat("after ", Seconds(options_.join_deadline), " s there is still no rank ",
                     absl::StrJoin(missing, ", "), " of ", options_.world_size));
  }

  const HostCommunicatorOptions& options_;
  StoreClient store_;
  const steady_clock::time_point end_;
};

absl::StatusOr<Segment*> MakeSegment(const io::UniqueFd& fd, const Presence& own, int ranks,
                                     ProcessPeers& peers) {
  RETURN_IF_ERROR(ReserveMemory(fd, SegmentBytes(ranks)));
  ASSIGN_OR_RETURN(const Mapping mapping, peers.Adopt(fd.get(), SegmentBytes(ranks)));
  auto* segment = new (mapping.base) Segment;
  segment->world_size = static_cast<std::uint64_t>(ranks);
  std::atomic_ref(segment->nonce).store(own.nonce);  // Last: what says that the rest is there.
  return segment;
}

// Waits for what the first rank of this host, `first`, does once it knows all ranks, which may be a
// moment after this one does.
template <class Done>
absl::Status AwaitFirstRank(int first, ProcessPeers& peers, const Meeting& meeting,
                            const Done& done) {
  const auto end = steady_clock::now() + meeting.Left();
  while (!done()) {
    if (peers.Gone(0))
      return absl::UnavailableError(
          absl::StrCat(peers.NameOf(first), " is gone before the group was whole"));
    if (steady_clock::now() > end)
      return absl::DeadlineExceededError(
          absl::StrCat("rank ", first, " does not set up the shared memory"));
    const timespec pause{0, 50'000};
    nanosleep(&pause, nullptr);
  }
  return absl::OkStatus();
}

absl::StatusOr<Segment*> OpenSegment(const Presence& holder, HostRanks host, ProcessPeers& peers,
                                     const Meeting& meeting) {
  const std::size_t bytes = SegmentBytes(host.count);
  absl::StatusOr<io::UniqueFd> fd = absl::UnknownError("");
  RETURN_IF_ERROR(AwaitFirstRank(host.first, peers, meeting, [&] {
    fd = OpenMemory(holder.pid, holder.segment_fd, bytes);
    return !absl::IsFailedPrecondition(fd.status());
  }));
  if (!fd.ok()) return fd.status();
  ASSIGN_OR_RETURN(const Mapping mapping, peers.Adopt(fd->get(), bytes));
  auto* segment = reinterpret_cast<Segment*>(mapping.base);
  RETURN_IF_ERROR(AwaitFirstRank(host.first, peers, meeting, [&] {
    return std::atomic_ref(segment->nonce).load() == holder.nonce;
  }));
  if (segment->magic != kSegmentMagic ||
      segment->world_size != static_cast<std::uint64_t>(host.count)) {
    return absl::FailedPreconditionError(
        absl::StrCat("rank ", host.first, " is another build, or counts other ranks"));
  }
  return segment;
}

absl::Status CheckOptions(const HostCommunicatorOptions& options) {
  if (options.world_size < 1 || options.world_size > kMaxWorld) {
    return absl::InvalidArgumentError(
        absl::StrCat("world size ", options.world_size, " is outside 1 to ", kMaxWorld));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is outside a world of ", options.world_size));
  }
  return absl::OkStatus();
}

// The first rank of a host meets those of the hosts beside it.
absl::StatusOr<HostLinks> MeetHosts(const Hosts& hosts, int own, Meeting& meeting) {
  ASSIGN_OR_RETURN(const std::string ip, meeting.LocalIp());
  ASSIGN_OR_RETURN(const io::UniqueFd listener, ListenForHosts(ip));
  ASSIGN_OR_RETURN(const Address address, io::LocalAddressOf(listener.get()));
  ASSIGN_OR_RETURN(const HostMeeting hosts_meet,
                   meeting.ShareAddresses(hosts.size(), static_cast<std::size_t>(own), address));
  return MeetNeighbors(hosts_meet, listener);
}

absl::StatusOr<std::unique_ptr<SharedMemoryCommunicator>> ShareMemory(
    const HostCommunicatorOptions& options, const std::vector<Presence>& ranks, HostRanks host,
    const io::UniqueFd& memory, const Meeting& meeting) {
  const auto first = ranks.begin() + host.first;
  const Presence& holder = *first;
  const std::vector<Presence> here(first, first + host.count);
  const SharedMemoryOptions how{
      .deadline = meeting.Left(), .spin = SpinFor(here), .first_rank = host.first};
  ASSIGN_OR_RETURN(std::unique_ptr<ProcessPeers> peers,
                   ProcessPeers::Watch(ranks, host, options.rank));
  ASSIGN_OR_RETURN(Segment * segment, options.rank == host.first
                                          ? MakeSegment(memory, holder, host.count, *peers)
                                          : OpenSegment(holder, host, *peers, meeting));
  auto communicator = std::make_unique<SharedMemoryCommunicator>(
      options.rank - host.first, host.count, segment, how, std::move(peers));
  // The first rank keeps its descriptor until every rank has opened it.
  RETURN_IF_ERROR(communicator->Barrier());
  return communicator;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinHostCommunicator(
    const HostCommunicatorOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  if (options.world_size == 1)
    return std::move(MakeInProcessCommunicators(1, options.deadline).front());
  ASSIGN_OR_RETURN(StoreClient store, StoreClient::Connect(options.store_host, options.store_port,
                                                           options.join_deadline));
  Meeting meeting(options, std::move(store));
  Presence own = OwnPresence();
  own.build = options.build;
  if (!options.host_name.empty()) own.host = options.host_name;
  // Every rank may be the first of its host, which it learns from the others. Of those that are
  // not, what has a name only takes no memory.
  ASSIGN_OR_RETURN(const io::UniqueFd memory, NameMemory());
  own.segment_fd = memory.get();
  std::random_device random;
  own.nonce = (static_cast<std::uint64_t>(random()) << 32 | random()) | 1;
  RETURN_IF_ERROR(meeting.Announce(own));
  ASSIGN_OR_RETURN(const std::vector<Presence> ranks, meeting.AwaitAll());
  RETURN_IF_ERROR(CheckOneBuild(ranks));
  ASSIGN_OR_RETURN(Hosts hosts, HostsOf(ranks));
  const int own_host = HostOf(hosts, options.rank);
  const HostRanks host = hosts[static_cast<std::size_t>(own_host)];
  ASSIGN_OR_RETURN(std::unique_ptr<SharedMemoryCommunicator> here,
                   ShareMemory(options, ranks, host, memory, meeting));
  here->SetDeadline(options.deadline);
  if (hosts.size() == 1) return here;
  std::optional<HostLinks> links;
  if (options.rank == host.first) {
    ASSIGN_OR_RETURN(links, MeetHosts(hosts, own_host, meeting));
  }
  return MultiHostCommunicator::Create(options.rank, std::move(hosts), std::move(here),
                                       std::move(links), meeting.Left(), options.deadline);
}

}  // namespace regroup::worker
