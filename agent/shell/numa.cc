#include "agent/shell/numa.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace regroup::agent {
namespace {

namespace fs = std::filesystem;

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

int NumberIn(const std::string& path, int otherwise) {
  int number = 0;
  return absl::SimpleAtoi(FirstLine(path), &number) ? number : otherwise;
}

// Node → its CPUs.
std::map<int, std::vector<int>> Nodes(const NumaQuestion& question) {
  std::map<int, std::vector<int>> nodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(question.sysfs + "/devices/system/node", error)) {
    int number = 0;
    const std::string name = entry.path().filename();
    if (name.rfind("node", 0) != 0 || !absl::SimpleAtoi(name.substr(4), &number)) continue;
    std::vector<int> cpus = ParseCpuList(FirstLine(entry.path().string() + "/cpulist"));
    if (!cpus.empty()) nodes[number] = std::move(cpus);
  }
  return nodes;
}

std::string CpuFile(const NumaQuestion& question, int cpu, const std::string& name) {
  return absl::StrCat(question.sysfs, "/devices/system/cpu/cpu", cpu, "/", name);
}

// CPUs of `cpus` that share what `file` lists, in order of their first one.
std::vector<std::vector<int>> Groups(const NumaQuestion& question, const std::vector<int>& cpus,
                                     const std::string& file) {
  std::map<int, std::vector<int>> groups;
  for (int cpu : cpus) {
    const std::vector<int> shared = ParseCpuList(FirstLine(CpuFile(question, cpu, file)));
    groups[shared.empty() ? cpu : shared.front()].push_back(cpu);
  }
  std::vector<std::vector<int>> out;
  for (auto& [first, group] : groups) out.push_back(std::move(group));
  return out;
}

std::vector<int> Allowed(const NumaQuestion& question, const std::vector<int>& cpus) {
  const std::set<int> allowed(question.allowed.begin(), question.allowed.end());
  std::vector<int> out;
  for (int cpu : cpus) {
    if (allowed.contains(cpu)) out.push_back(cpu);
  }
  return out;
}

std::vector<int> SameSocket(const NumaQuestion& question,
                            const std::map<int, std::vector<int>>& nodes, int node) {
  const std::string file = "topology/physical_package_id";
  const int socket = NumberIn(CpuFile(question, nodes.at(node).front(), file), -1);
  std::vector<int> cpus;
  for (const auto& [number, own] : nodes) {
    if (NumberIn(CpuFile(question, own.front(), file), -1) == socket)
      cpus.insert(cpus.end(), own.begin(), own.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// Blocks that differ by one at most, the larger ones first.
std::vector<int> Share(const std::vector<std::vector<int>>& cores, int place, int places) {
  const int count = static_cast<int>(cores.size()), each = count / places, more = count % places;
  if (each == 0) return {};
  const int first = place * each + std::min(place, more);
  const int last = first + each + (place < more ? 1 : 0);
  std::vector<int> cpus;
  for (int core = first; core < last; ++core) {
    const std::vector<int>& own = cores[static_cast<std::size_t>(core)];
    cpus.insert(cpus.end(), own.begin(), own.end());
  }
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

}  // namespace

std::vector<int> ParseCpuList(const std::string& text) {
  std::vector<int> cpus;
  for (const auto& part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last > 1 << 16)
      return {};
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> CpusNear(const NumaQuestion& question) {
  const std::map<int, std::vector<int>> nodes = Nodes(question);
  if (nodes.empty()) return {};
  std::vector<int> homes = question.gpu_nodes;  // By local rank.
  if (static_cast<int>(homes.size()) < question.workers) {
    homes.clear();
    std::vector<int> numbers;
    for (const auto& [number, cpus] : nodes) numbers.push_back(number);
    for (int rank = 0; rank < question.workers; ++rank)
      homes.push_back(numbers[static_cast<std::size_t>(rank) * numbers.size() /
                              static_cast<std::size_t>(question.workers)]);
  }
  // A device that says -1 is on no node in particular.
  for (int& home : homes) home = nodes.contains(home) ? home : nodes.begin()->first;
  const int node = homes[static_cast<std::size_t>(question.local_rank)];
  const auto mine = homes.begin() + question.local_rank;
  const int place = static_cast<int>(std::count(homes.begin(), mine, node));
  const int places = static_cast<int>(std::count(homes.begin(), homes.end(), node));
  if (question.how == "socket") return Allowed(question, SameSocket(question, nodes, node));
  const std::vector<int> own = Allowed(question, nodes.at(node));
  if (question.how == "node" || own.empty()) return own;
  if (question.how == "exclusive")
    return Share(Groups(question, own, "topology/thread_siblings_list"), place, places);
  const std::vector<std::vector<int>> complexes =
      Groups(question, own, "cache/index3/shared_cpu_list");
  return complexes[static_cast<std::size_t>(place) % complexes.size()];
}

std::vector<int> NumaNodesOfGpus(const std::optional<std::string>& visible, const std::string& proc,
                                 const std::string& sysfs) {
  std::vector<std::string> addresses;  // The driver numbers devices in order of their addresses.
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(proc + "/driver/nvidia/gpus", error))
    addresses.push_back(entry.path().filename());
  std::sort(addresses.begin(), addresses.end());
  std::vector<int> all;
  for (const std::string& address : addresses)
    all.push_back(NumberIn(absl::StrCat(sysfs, "/bus/pci/devices/", address, "/numa_node"), -1));
  if (!visible) return all;
  std::vector<int> seen;
  for (const auto& part : absl::StrSplit(*visible, ',', absl::SkipWhitespace())) {
    int device = 0;
    if (!absl::SimpleAtoi(part, &device) || device < 0 || device >= static_cast<int>(all.size()))
      return {};
    seen.push_back(all[static_cast<std::size_t>(device)]);
  }
  return seen;
}

}  // namespace regroup::agent
