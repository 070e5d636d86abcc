// Files that people and workers write.

#include "agent/shell/exit_error.h"
#include "common/base/check.h"
#include "common/base/control.h"
#include "common/config/job_file.h"
#include "common/config/job_limits.h"
#include "common/rpc/convert.h"
#include "tests/fuzz/targets/targets.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/record.h"
#include "worker/checkpoint/safetensors.h"

namespace regroup::fuzz {
namespace {

// With the hash that it needs to be looked at, or as it is.
std::string Record(Input& input) {
  const bool sealed = input.Byte() % 4 != 0;
  const std::string text(input.Rest());
  return sealed ? worker::SealRecord(text) : text;
}

bool Header(Input& input) {
  // A file that ends with its header, or some tensors later.
  const std::uint64_t data_bytes = 4 * input.Byte();
  const std::string_view header = input.Rest();
  const std::uint64_t file_bytes = header.size() + data_bytes;
  const absl::StatusOr<std::uint64_t> begin =
      worker::SafetensorsDataBegin(header.substr(0, 8), file_bytes);
  if (!begin.ok()) return false;
  CHECK(*begin <= file_bytes);
  if (*begin > header.size()) return false;
  absl::StatusOr<worker::SafetensorsHeader> parsed =
      worker::ParseSafetensorsHeader(header.substr(0, *begin), file_bytes);
  if (!parsed.ok()) return false;
  CHECK(parsed->data_begin == *begin);
  std::uint64_t at = 0;
  for (const worker::SafetensorsEntry& entry : parsed->tensors) {
    CHECK(entry.begin == at && entry.end >= at);
    at = entry.end;
  }
  CHECK(*begin + at == file_bytes);
  worker::SafetensorsHeader again = *parsed;
  const absl::StatusOr<std::string> said = worker::SerializeSafetensorsHeader(again);
  CHECK(said.ok());
  const auto reread = worker::ParseSafetensorsHeader(*said, said->size() + at);
  CHECK(reread.ok() && reread->tensors == parsed->tensors && reread->metadata == parsed->metadata);
  return true;
}

// What was taken lies inside what its file and its tensor have, and is all of each tensor.
void CheckPieces(const worker::Manifest& m) {
  std::vector<std::int64_t> covered(m.tensors.size());
  for (const worker::FileInfo& file : m.files) {
    for (const worker::PieceInfo& piece : file.pieces) {
      const worker::TensorInfo& tensor = m.tensors.at(piece.tensor);
      CHECK(worker::HasBox(tensor.shape, piece.box) && piece.offset <= file.bytes);
      const std::int64_t elements = worker::ElementsOf(piece.box.size);
      CHECK(static_cast<std::uint64_t>(elements) <=
            (file.bytes - piece.offset) / worker::BytesOf(tensor.dtype));
      covered[piece.tensor] += elements;
    }
  }
  for (std::size_t t = 0; t < covered.size(); ++t) CHECK(covered[t] == m.tensors[t].elements());
}

}  // namespace

bool JobFile(std::string_view bytes) {
  const absl::StatusOr<JobSpec> spec = ParseJobFile(bytes, "job.yaml", "/home/u");
  if (!spec.ok()) return false;
  CHECK(ValidateJobSpec(*spec).ok());
  const std::string said = RenderJobFile(*spec);
  const absl::StatusOr<JobSpec> again = ParseJobFile(said, "job.yaml", "/home/u");
  CHECK(again.ok());
  CHECK(RenderJobFile(*again) == said);
  return true;
}

bool ErrorFile(std::string_view bytes) {
  RankExit exit;
  exit.error = agent::TextOfErrorFile(bytes);
  const bool took = !exit.error.empty();
  const std::string tail = agent::TailOfStderr(bytes);
  CHECK(exit.error.size() <= kMaxErrorBytes && tail.size() <= kMaxErrorBytes);
  agent::TellsOfLostPeers(bytes);
  // What is told must not end the session that tells it.
  pb::RankExit said;
  CHECK(FromProto(ToProto(exit)).ok() && said.ParseFromString(ToProto(exit).SerializeAsString()));
  exit.error = tail;
  CHECK(FromProto(ToProto(exit)).ok() && said.ParseFromString(ToProto(exit).SerializeAsString()));
  return took;
}

bool Checkpoint(std::string_view bytes) {
  Input input(bytes);
  switch (input.Byte() % 3) {
    case 0: return Header(input);
    case 1: {
      const absl::StatusOr<worker::Manifest> manifest = worker::ParseManifest(Record(input));
      if (!manifest.ok()) return false;
      CheckPieces(*manifest);
      const auto again = worker::ParseManifest(worker::SerializeManifest(*manifest));
      CHECK(again.ok() && *again == *manifest);
      return true;
    }
    default: {
      const absl::StatusOr<worker::ShardReport> report = worker::ParseReport(Record(input));
      if (!report.ok()) return false;
      const auto again = worker::ParseReport(worker::SerializeReport(*report));
      CHECK(again.ok() && again->rank == report->rank && again->file == report->file &&
            again->state == report->state);
      return true;
    }
  }
}

}  // namespace regroup::fuzz
