#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/record.h"

namespace regroup::worker {
namespace {

using nlohmann::ordered_json;

constexpr char kFormat[] = "regroup-checkpoint";
constexpr int kVersion = 1;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 48;

ordered_json ToJson(const FileInfo& file) {
  ordered_json pieces = ordered_json::array(), crcs = ordered_json::array();
  for (const PieceInfo& p : file.pieces) pieces.push_back({p.tensor, p.begin, p.end, p.offset});
  for (std::uint32_t crc : file.crc32c) crcs.push_back(absl::StrFormat("%08x", crc));
  return {{"name", file.name},
          {"bytes", file.bytes},
          {"xxh3_128", file.xxh3},
          {"crc32c", crcs},
          {"pieces", pieces}};
}

// Takes values out of a tree whose hash was right, but which another version may have written. The
// first value that is missing or of another type is remembered, and everything after it is empty.
class Reader {
 public:
  bool ok() const { return error_.empty(); }
  absl::Status status() const {
    return ok() ? absl::OkStatus() : absl::DataLossError(absl::StrCat("manifest: ", error_));
  }

  const ordered_json& At(const ordered_json& tree, const char* key) {
    static const ordered_json nothing;
    if (tree.is_object()) {
      if (const auto found = tree.find(key); found != tree.end()) return *found;
    }
    Fail(absl::StrCat(key, " is missing"));
    return nothing;
  }
  std::string Text(const ordered_json& value) {
    if (value.is_string()) return value.get<std::string>();
    Fail("a text is none");
    return {};
  }
  std::int64_t Integer(const ordered_json& value) {
    if (value.is_number_integer() &&
        (!value.is_number_unsigned() || value.get<std::uint64_t>() >> 63 == 0)) {
      return value.get<std::int64_t>();
    }
    Fail("an integer is none");
    return 0;
  }
  std::int64_t Count(const ordered_json& value) {
    const std::int64_t count = Integer(value);
    if (count < 0) Fail("a count is negative");
    return std::max<std::int64_t>(count, 0);
  }
  const ordered_json& List(const ordered_json& value) {
    static const ordered_json nothing = ordered_json::array();
    if (value.is_array()) return value;
    Fail("a list is none");
    return nothing;
  }
  const ordered_json& Object(const ordered_json& value) {
    static const ordered_json nothing = ordered_json::object();
    if (value.is_object()) return value;
    Fail("an object is none");
    return nothing;
  }
  void Fail(std::string what) {
    if (error_.empty()) error_ = std::move(what);
  }

 private:
  std::string error_;
};

FileInfo FileFrom(const ordered_json& tree, Reader& reader) {
  FileInfo file;
  file.name = reader.Text(reader.At(tree, "name"));
  file.bytes = static_cast<std::uint64_t>(reader.Count(reader.At(tree, "bytes")));
  file.xxh3 = reader.Text(reader.At(tree, "xxh3_128"));
  for (const auto& crc : reader.List(reader.At(tree, "crc32c"))) {
    const std::string text = reader.Text(crc);
    std::uint32_t value = 0;
    if (text.size() != 8 || !absl::SimpleHexAtoi(text, &value)) reader.Fail("a CRC is none");
    file.crc32c.push_back(value);
  }
  for (const auto& p : reader.List(reader.At(tree, "pieces"))) {
    if (!p.is_array() || p.size() != 4) {
      reader.Fail("a piece is none");
      break;
    }
    file.pieces.push_back({static_cast<std::uint32_t>(reader.Count(p[0])), reader.Count(p[1]),
                           reader.Count(p[2]), static_cast<std::uint64_t>(reader.Count(p[3]))});
  }
  return file;
}

absl::StatusOr<ordered_json> ParseTree(std::string_view record) {
  ASSIGN_OR_RETURN(const std::string text, OpenRecord(record));
  ordered_json tree = ordered_json::parse(text, nullptr, false);
  if (!tree.is_object()) return absl::DataLossError("manifest: not a JSON object");
  Reader reader;
  if (reader.Text(reader.At(tree, "format")) != kFormat)
    return absl::DataLossError("manifest: not of this format");
  const std::int64_t version = reader.Count(reader.At(tree, "version"));
  RETURN_IF_ERROR(reader.status());
  if (version != kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("manifest of format version ", version, "; this build reads ", kVersion));
  }
  return tree;
}

absl::Status CheckFile(const Manifest& m, const FileInfo& f, std::size_t rank) {
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat("manifest: ", f.name, ": ", what));
  };
  if (f.name != ShardName(static_cast<int>(rank), m.world_size))
    return damaged(absl::StrCat("not the name of rank ", rank, "'s file"));
  if (f.crc32c.size() != (f.bytes + kChunkBytes - 1) / kChunkBytes)
    return damaged("the number of CRCs does not fit its size");
  std::uint64_t end = 0;
  for (const PieceInfo& p : f.pieces) {
    if (p.tensor >= m.tensors.size() || p.begin >= p.end || p.end > m.tensors[p.tensor].elements())
      return damaged("a piece of no tensor");
    if (p.offset < end || p.offset > f.bytes ||
        static_cast<std::uint64_t>(p.end - p.begin) > (f.bytes - p.offset) / sizeof(float)) {
      return damaged("a piece outside of the file");
    }
    end = p.offset + static_cast<std::uint64_t>(p.end - p.begin) * sizeof(float);
  }
  return absl::OkStatus();
}

// Every element of every tensor is in exactly one piece.
absl::Status CheckCoverage(const Manifest& m) {
  std::vector<std::pair<std::uint32_t, std::pair<std::int64_t, std::int64_t>>> pieces;
  for (const FileInfo& f : m.files) {
    for (const PieceInfo& p : f.pieces) pieces.push_back({p.tensor, {p.begin, p.end}});
  }
  std::sort(pieces.begin(), pieces.end());
  std::size_t next = 0;
  for (std::uint32_t t = 0; t < m.tensors.size(); ++t) {
    std::int64_t covered = 0;
    for (; next < pieces.size() && pieces[next].first == t && pieces[next].second.first == covered;
         ++next) {
      covered = pieces[next].second.second;
    }
    if (covered != m.tensors[t].elements()) {
      return absl::DataLossError(absl::StrCat("manifest: tensor ", m.tensors[t].name,
                                              " is not covered exactly once at element ", covered));
    }
  }
  return next == pieces.size() ? absl::OkStatus()
                               : absl::DataLossError("manifest: a piece too many");
}

absl::Status Check(const Manifest& m) {
  if (m.world_size < 1 || m.files.size() != static_cast<std::size_t>(m.world_size)) {
    return absl::DataLossError(
        absl::StrCat("manifest: ", m.files.size(), " files for a world of ", m.world_size));
  }
  for (const TensorInfo& t : m.tensors) {
    std::int64_t elements = 1;
    for (std::int64_t n : t.shape) {
      if (n < 1 || __builtin_mul_overflow(elements, n, &elements) || elements > kMaxElements) {
        return absl::DataLossError(absl::StrCat("manifest: the shape of ", t.name));
      }
    }
  }
  for (std::size_t r = 0; r < m.files.size(); ++r) RETURN_IF_ERROR(CheckFile(m, m.files[r], r));
  return CheckCoverage(m);
}

}  // namespace

std::int64_t TensorInfo::elements() const {
  std::int64_t elements = 1;
  for (std::int64_t n : shape) elements *= n;
  return elements;
}

std::string AttemptDirectory(std::int64_t step, std::uint64_t generation, std::uint64_t attempt) {
  return absl::StrCat("step-", step, "/", generation, "-", attempt);
}

std::string ShardName(int rank, int world_size) {
  return absl::StrCat("rank-", rank, "-of-", world_size, ".safetensors");
}

std::string SerializeManifest(const Manifest& m) {
  ordered_json tensors = ordered_json::array(), files = ordered_json::array();
  for (const TensorInfo& t : m.tensors)
    tensors.push_back({{"name", t.name}, {"dtype", "F32"}, {"shape", t.shape}});
  for (const FileInfo& f : m.files) files.push_back(ToJson(f));
  const ordered_json tree = {
      {"format", kFormat},          {"version", kVersion},    {"job", m.job},
      {"generation", m.generation}, {"attempt", m.attempt},   {"step", m.step},
      {"world_size", m.world_size}, {"counters", m.counters}, {"settings", m.settings},
      {"chunk_bytes", kChunkBytes}, {"tensors", tensors},     {"files", files}};
  return SealRecord(tree.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

absl::StatusOr<Manifest> ParseManifest(std::string_view record) {
  ASSIGN_OR_RETURN(const ordered_json tree, ParseTree(record));
  Reader reader;
  Manifest m;
  m.job = reader.Text(reader.At(tree, "job"));
  m.generation = static_cast<std::uint64_t>(reader.Count(reader.At(tree, "generation")));
  m.attempt = static_cast<std::uint64_t>(reader.Count(reader.At(tree, "attempt")));
  m.step = reader.Count(reader.At(tree, "step"));
  m.world_size = static_cast<int>(
      std::min<std::int64_t>(reader.Count(reader.At(tree, "world_size")), 1 << 20));
  if (reader.Count(reader.At(tree, "chunk_bytes")) != static_cast<std::int64_t>(kChunkBytes))
    reader.Fail("other chunks");
  for (const auto& [name, value] : reader.Object(reader.At(tree, "counters")).items())
    m.counters[name] = reader.Integer(value);
  for (const auto& [name, value] : reader.Object(reader.At(tree, "settings")).items())
    m.settings[name] = reader.Text(value);
  for (const auto& t : reader.List(reader.At(tree, "tensors"))) {
    TensorInfo& tensor = m.tensors.emplace_back();
    tensor.name = reader.Text(reader.At(t, "name"));
    if (reader.Text(reader.At(t, "dtype")) != "F32")
      reader.Fail(absl::StrCat("the dtype of ", tensor.name));
    for (const auto& n : reader.List(reader.At(t, "shape")))
      tensor.shape.push_back(reader.Count(n));
  }
  for (const auto& f : reader.List(reader.At(tree, "files")))
    m.files.push_back(FileFrom(f, reader));
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(Check(m));
  return m;
}

std::string SerializeReport(const ShardReport& report) {
  const ordered_json tree = {{"format", kFormat},
                             {"version", kVersion},
                             {"rank", report.rank},
                             {"state", report.state},
                             {"file", ToJson(report.file)}};
  return SealRecord(tree.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

absl::StatusOr<ShardReport> ParseReport(std::string_view record) {
  ASSIGN_OR_RETURN(const ordered_json tree, ParseTree(record));
  Reader reader;
  ShardReport report;
  report.rank =
      static_cast<int>(std::min<std::int64_t>(reader.Count(reader.At(tree, "rank")), 1 << 20));
  report.file = FileFrom(reader.At(tree, "file"), reader);
  if (const auto state = tree.find("state"); state != tree.end())
    report.state = reader.Text(*state);
  RETURN_IF_ERROR(reader.status());
  return report;
}

}  // namespace regroup::worker
