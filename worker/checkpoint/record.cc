#include "worker/checkpoint/record.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checksum.h"

namespace regroup::worker {
namespace {

constexpr std::string_view kLabel = "\nxxh3-128:";
constexpr std::size_t kTrailer = kLabel.size() + 32 + 1;

std::string Trailer(std::string_view text) {
  return absl::StrCat(std::string(kLabel), Xxh3Hex(std::as_bytes(std::span(text))), "\n");
}

}  // namespace

std::string SealRecord(std::string_view text) {
  return absl::StrCat(std::string(text), Trailer(text));
}

absl::StatusOr<std::string> OpenRecord(std::string_view record) {
  if (record.size() < kTrailer)
    return absl::DataLossError(absl::StrCat("a record of ", record.size(), " bytes is cut off"));
  const std::string_view text = record.substr(0, record.size() - kTrailer);
  if (record.substr(text.size()) != Trailer(text))
    return absl::DataLossError("the record does not match its own hash");
  return std::string(text);
}

}  // namespace regroup::worker
