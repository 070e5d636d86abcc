#include "worker/train/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstring>
#include <span>

#include "absl/strings/escaping.h"

namespace regroup::worker {
namespace {

constexpr char kGnu[] = "GNU";

std::string IdAmong(std::span<const std::byte> notes) {
  const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head;
    std::memcpy(&head, notes.data(), sizeof head);
    const std::size_t begin = sizeof head + padded(head.n_namesz);
    const std::size_t end = begin + padded(head.n_descsz);
    if (end > notes.size()) break;
    if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == sizeof kGnu &&
        std::memcmp(notes.data() + sizeof head, kGnu, sizeof kGnu) == 0) {
      return absl::BytesToHexString(std::string(reinterpret_cast<const char*>(notes.data() + begin),
                                                std::size_t{head.n_descsz}));
    }
    notes = notes.subspan(end);
  }
  return "";
}

// The first object that is shown is the program itself.
int LookAtProgram(dl_phdr_info* info, std::size_t, void* id) {
  for (const ElfW(Phdr) & part : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    if (part.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader tells addresses as numbers.
    const auto* notes = reinterpret_cast<const std::byte*>(info->dlpi_addr + part.p_vaddr);
    const std::string found = IdAmong({notes, static_cast<std::size_t>(part.p_memsz)});
    if (!found.empty()) *static_cast<std::string*>(id) = found;
  }
  return 1;
}

}  // namespace

std::string BuildId() {
  std::string id = "unknown";
  dl_iterate_phdr(&LookAtProgram, &id);
  return id;
}

}  // namespace regroup::worker
