#include "launcher/cli/render/gpus.h"

#include <algorithm>
#include <optional>
#include <set>

#include "common/config/text.h"
#include "common/config/values.h"
#include "common/report/format.h"
#include "launcher/cli/render/table.h"

namespace regroup::cli {
namespace {

std::string XidText(const Gpu& gpu) {
  if (gpu.xids == 0) return "";
  return Cat(gpu.xids, gpu.xids == 1 ? " Xid, " : " Xids, the last ", gpu.last_xid);
}

}  // namespace

std::string GpuSummary(const std::vector<Gpu>& gpus) {
  if (gpus.empty()) return "";
  std::vector<std::string> parts;
  std::set<std::string> names;
  std::uint64_t memory = 0, used = 0;
  std::optional<int> coolest, hottest;
  for (const Gpu& gpu : gpus) {
    if (!gpu.trouble.empty()) parts.push_back(Cat("GPU ", gpu.id, ": ", gpu.trouble));
    if (gpu.trouble.empty() && gpu.xids > 0)
      parts.push_back(Cat("GPU ", gpu.id, ": ", XidText(gpu)));
    if (!gpu.name.empty()) names.insert(gpu.name);
    memory += gpu.memory_bytes;
    used += gpu.used_bytes;
    if (!gpu.celsius) continue;
    coolest = std::min(coolest.value_or(*gpu.celsius), *gpu.celsius);
    hottest = std::max(hottest.value_or(*gpu.celsius), *gpu.celsius);
  }
  parts.push_back(Cat(gpus.size(), " × ", names.size() == 1 ? *names.begin() : "GPU"));
  if (memory > 0) parts.push_back(Cat(FormatBytes(used), " of ", FormatBytes(memory), " used"));
  if (coolest) {
    parts.push_back(*coolest == *hottest ? Cat(*coolest, " °C")
                                         : Cat(*coolest, "–", *hottest, " °C"));
  }
  return JoinWords(parts);
}

std::string GpuTable(const std::vector<Gpu>& gpus, const TextStyle& style) {
  Table table({{.title = "GPU", .id = true},
               {.title = "NAME"},
               {.title = "USED", .right = true},
               {.title = "MEMORY", .right = true},
               {.title = "°C", .right = true},
               {.title = "ECC", .right = true},
               {.title = "TROUBLE"}});
  for (const Gpu& gpu : gpus) {
    std::vector<std::string> trouble;
    if (!gpu.trouble.empty()) trouble.push_back(gpu.trouble);
    if (gpu.xids > 0) trouble.push_back(XidText(gpu));
    table.Add({gpu.id, gpu.name.empty() ? Table::kNothing : gpu.name,
               gpu.memory_bytes > 0 ? FormatBytes(gpu.used_bytes) : Table::kNothing,
               gpu.memory_bytes > 0 ? FormatBytes(gpu.memory_bytes) : Table::kNothing,
               gpu.celsius ? Cat(*gpu.celsius) : Table::kNothing,
               gpu.ecc_errors ? Cat(*gpu.ecc_errors) : Table::kNothing,
               trouble.empty() ? Table::kNothing : JoinWords(trouble)});
  }
  return table.Render(style);
}

}  // namespace regroup::cli
