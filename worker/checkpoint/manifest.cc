#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "worker/checkpoint/checksum.h"
#include "worker/checkpoint/record.h"

namespace regroup::worker {
namespace {

using nlohmann::ordered_json;

constexpr char kFormat[] = "regroup-checkpoint";
constexpr std::int64_t kOldVersion = 1, kVersion = 2;
constexpr char kWeights[] = "weights", kOptimizer[] = "optimizer";

ordered_json ToJson(const TensorInfo& tensor) {
  ordered_json tree = {{"name", tensor.name},
                       {"dtype", tensor.dtype},
                       {"shape", tensor.shape},
                       {"kind", tensor.slot.empty() ? kWeights : kOptimizer}};
  if (!tensor.slot.empty()) tree["slot"] = tensor.slot;
  return tree;
}

ordered_json ToJson(const FileInfo& file) {
  ordered_json pieces = ordered_json::array(), crcs = ordered_json::array();
  for (const PieceInfo& p : file.pieces)
    pieces.push_back({p.tensor, ordered_json(p.box.begin), ordered_json(p.box.size), p.offset});
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
  Dims Counts(const ordered_json& value) {
    Dims counts;
    for (const auto& n : List(value)) counts.push_back(Count(n));
    return counts;
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

struct Tree {
  ordered_json json;
  std::int64_t version = 0;
};

absl::StatusOr<Tree> ParseTree(std::string_view record) {
  ASSIGN_OR_RETURN(const std::string text, OpenRecord(record));
  Tree tree{ordered_json::parse(text, nullptr, false)};
  if (!tree.json.is_object()) return absl::DataLossError("manifest: not a JSON object");
  Reader reader;
  if (reader.Text(reader.At(tree.json, "format")) != kFormat)
    return absl::DataLossError("manifest: not of this format");
  tree.version = reader.Count(reader.At(tree.json, "version"));
  RETURN_IF_ERROR(reader.status());
  if (tree.version != kOldVersion && tree.version != kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("manifest of format version ", tree.version,
                                                      "; this build reads ", kOldVersion, " and ",
                                                      kVersion));
  }
  return tree;
}

TensorInfo TensorFrom(const Tree& tree, const ordered_json& json, Reader& reader) {
  TensorInfo tensor;
  tensor.name = reader.Text(reader.At(json, "name"));
  tensor.dtype = reader.Text(reader.At(json, "dtype"));
  tensor.shape = reader.Counts(reader.At(json, "shape"));
  if (tree.version == kOldVersion) {
    const std::size_t slash = tensor.name.find('/');
    if (slash != std::string::npos) tensor.slot = tensor.name.substr(0, slash);
    return tensor;
  }
  const std::string kind = reader.Text(reader.At(json, "kind"));
  if (kind == kOptimizer) {
    tensor.slot = reader.Text(reader.At(json, "slot"));
    if (tensor.slot.empty()) reader.Fail(absl::StrCat("the slot of ", tensor.name));
  } else if (kind != kWeights) {
    reader.Fail(absl::StrCat("tensor ", tensor.name, " is of the unknown kind ", kind));
  }
  return tensor;
}

std::uint32_t IndexFrom(const ordered_json& json, Reader& reader) {
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(reader.Count(json), std::numeric_limits<std::uint32_t>::max()));
}

// In format 1 a piece is an interval of elements.
std::vector<PieceInfo> OldPieces(const ordered_json& json, const std::vector<TensorInfo>& tensors,
                                 Reader& reader) {
  std::vector<PieceInfo> pieces;
  const std::uint32_t t = IndexFrom(json[0], reader);
  const std::int64_t begin = reader.Count(json[1]), end = reader.Count(json[2]);
  auto offset = static_cast<std::uint64_t>(reader.Count(json[3]));
  if (t >= tensors.size() || begin >= end || end > tensors[t].elements()) {
    reader.Fail("a piece of no tensor");
    return pieces;
  }
  for (Box& box : BoxesOf(tensors[t].shape, begin, end)) {
    const auto elements = static_cast<std::uint64_t>(ElementsOf(box.size));
    pieces.push_back({t, std::move(box), offset});
    offset += elements * BytesOf(tensors[t].dtype);
  }
  return pieces;
}

// `tensors` have been checked; only format 1 needs them.
FileInfo FileFrom(std::int64_t version, const ordered_json& json,
                  const std::vector<TensorInfo>& tensors, Reader& reader) {
  FileInfo file;
  file.name = reader.Text(reader.At(json, "name"));
  file.bytes = static_cast<std::uint64_t>(reader.Count(reader.At(json, "bytes")));
  file.xxh3 = reader.Text(reader.At(json, "xxh3_128"));
  for (const auto& crc : reader.List(reader.At(json, "crc32c"))) {
    const std::string text = reader.Text(crc);
    std::uint32_t value = 0;
    if (text.size() != 8 || !absl::SimpleHexAtoi(text, &value)) reader.Fail("a CRC is none");
    file.crc32c.push_back(value);
  }
  for (const auto& p : reader.List(reader.At(json, "pieces"))) {
    if (!p.is_array() || p.size() != 4) {
      reader.Fail("a piece is none");
      break;
    }
    if (version == kVersion) {
      file.pieces.push_back({IndexFrom(p[0], reader),
                             {reader.Counts(p[1]), reader.Counts(p[2])},
                             static_cast<std::uint64_t>(reader.Count(p[3]))});
      continue;
    }
    for (PieceInfo& piece : OldPieces(p, tensors, reader)) file.pieces.push_back(std::move(piece));
  }
  return file;
}

absl::Status CheckTensors(const std::vector<TensorInfo>& tensors) {
  std::set<std::string_view> names;
  for (const TensorInfo& t : tensors) {
    const auto refuse = [&](std::string_view what) {
      return absl::DataLossError(
          absl::StrCat("manifest: tensor ", t.name, " has ", std::string(what)));
    };
    if (!names.insert(t.name).second) return refuse("a name that another one has");
    if (BytesOf(t.dtype) == 0) return refuse(absl::StrCat("the unknown dtype ", t.dtype));
    if (!IsShape(t.shape)) return refuse("an impossible shape");
  }
  return absl::OkStatus();
}

absl::Status CheckFile(const Manifest& m, const FileInfo& f, std::size_t rank) {
  const auto damaged = [&](const std::string& what) {
    return absl::DataLossError(absl::StrCat("manifest: ", f.name, ": ", what));
  };
  if (f.name != ShardName(static_cast<int>(rank), m.mesh.world))
    return damaged(absl::StrCat("not the name of rank ", rank, "'s file"));
  if (f.bytes == 0 || f.crc32c.size() != (f.bytes + kChunkBytes - 1) / kChunkBytes)
    return damaged("the number of CRCs does not fit its size");
  std::uint64_t end = 0;
  for (const PieceInfo& p : f.pieces) {
    if (p.tensor >= m.tensors.size() || !HasBox(m.tensors[p.tensor].shape, p.box))
      return damaged("a piece of no tensor");
    const std::uint64_t element = BytesOf(m.tensors[p.tensor].dtype);
    const auto elements = static_cast<std::uint64_t>(ElementsOf(p.box.size));
    if (p.offset < end || p.offset > f.bytes || elements > (f.bytes - p.offset) / element)
      return damaged("a piece outside of the file");
    end = p.offset + elements * element;
  }
  return absl::OkStatus();
}

// Every element of every tensor is in exactly one piece. The seed is the record's own, so that none
// can be made to fit it.
absl::Status CheckCoverage(const Manifest& m, std::uint64_t seed) {
  std::vector<Coverage> covered(m.tensors.size(), Coverage(seed));
  for (const FileInfo& f : m.files) {
    for (const PieceInfo& p : f.pieces) covered[p.tensor].Add(p.box);
  }
  for (std::size_t t = 0; t < covered.size(); ++t) {
    if (!covered[t].IsWhole(m.tensors[t].shape)) {
      return absl::DataLossError(absl::StrCat("manifest: not every element of tensor ",
                                              m.tensors[t].name, " is in exactly one piece"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckFiles(const Manifest& m, std::uint64_t seed) {
  if (m.mesh.world < 1 || m.files.size() != static_cast<std::size_t>(m.mesh.world)) {
    return absl::DataLossError(
        absl::StrCat("manifest: ", m.files.size(), " files for a world of ", m.mesh.world));
  }
  for (std::size_t r = 0; r < m.files.size(); ++r) RETURN_IF_ERROR(CheckFile(m, m.files[r], r));
  return CheckCoverage(m, seed);
}

// Format 1 has the model's sizes among the settings.
std::map<std::string, std::int64_t> OldModel(const std::map<std::string, std::string>& settings) {
  std::map<std::string, std::int64_t> model;
  for (const char* name : {"layers", "width", "heads", "vocabulary", "context"}) {
    const auto found = settings.find(name);
    std::int64_t size = 0;
    if (found != settings.end() && absl::SimpleAtoi(found->second, &size)) model[name] = size;
  }
  return model;
}

int WorldFrom(const ordered_json& json, Reader& reader) {
  return static_cast<int>(std::min<std::int64_t>(reader.Count(json), 1 << 20));
}

}  // namespace

std::uint64_t BytesOf(std::string_view dtype) {
  if (dtype == "F64") return 8;
  if (dtype == "F32") return 4;
  return dtype == "BF16" || dtype == "F16" ? 2 : 0;
}

std::string AttemptDirectory(std::int64_t step, std::uint64_t generation, std::uint64_t attempt) {
  return absl::StrCat("step-", step, "/", generation, "-", attempt);
}

std::string ShardName(int rank, int world_size) {
  return absl::StrCat("rank-", rank, "-of-", world_size, ".safetensors");
}

std::string SerializeManifest(const Manifest& m) {
  ordered_json tensors = ordered_json::array(), files = ordered_json::array();
  for (const TensorInfo& t : m.tensors) tensors.push_back(ToJson(t));
  for (const FileInfo& f : m.files) files.push_back(ToJson(f));
  const ordered_json tree = {
      {"format", kFormat},
      {"version", kVersion},
      {"job", m.job},
      {"generation", m.generation},
      {"attempt", m.attempt},
      {"step", m.step},
      {"mesh", {{"world", m.mesh.world}, {"group", m.mesh.group}, {"strategy", m.mesh.strategy}}},
      {"model", m.model},
      {"counters", m.counters},
      {"settings", m.settings},
      {"chunk_bytes", kChunkBytes},
      {"tensors", tensors},
      {"files", files}};
  return SealRecord(tree.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

absl::StatusOr<Manifest> ParseManifest(std::string_view record) {
  ASSIGN_OR_RETURN(const Tree tree, ParseTree(record));
  const ordered_json& json = tree.json;
  Reader reader;
  Manifest m;
  m.job = reader.Text(reader.At(json, "job"));
  m.generation = static_cast<std::uint64_t>(reader.Count(reader.At(json, "generation")));
  m.attempt = static_cast<std::uint64_t>(reader.Count(reader.At(json, "attempt")));
  m.step = reader.Count(reader.At(json, "step"));
  if (reader.Count(reader.At(json, "chunk_bytes")) != static_cast<std::int64_t>(kChunkBytes))
    reader.Fail("other chunks");
  for (const auto& [name, value] : reader.Object(reader.At(json, "counters")).items())
    m.counters[name] = reader.Integer(value);
  for (const auto& [name, value] : reader.Object(reader.At(json, "settings")).items())
    m.settings[name] = reader.Text(value);
  if (tree.version == kOldVersion) {
    m.mesh.world = WorldFrom(reader.At(json, "world_size"), reader);
    m.model = OldModel(m.settings);
  } else {
    const ordered_json& mesh = reader.At(json, "mesh");
    m.mesh = {WorldFrom(reader.At(mesh, "world"), reader),
              WorldFrom(reader.At(mesh, "group"), reader),
              reader.Text(reader.At(mesh, "strategy"))};
    if (m.mesh.group < 1 || m.mesh.world % m.mesh.group != 0)
      reader.Fail("groups of another world");
    for (const auto& [name, value] : reader.Object(reader.At(json, "model")).items())
      m.model[name] = reader.Integer(value);
  }
  for (const auto& t : reader.List(reader.At(json, "tensors")))
    m.tensors.push_back(TensorFrom(tree, t, reader));
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(CheckTensors(m.tensors));
  for (const auto& f : reader.List(reader.At(json, "files")))
    m.files.push_back(FileFrom(tree.version, f, m.tensors, reader));
  RETURN_IF_ERROR(reader.status());
  RETURN_IF_ERROR(CheckFiles(m, Xxh3(std::as_bytes(std::span(record)))));
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
  ASSIGN_OR_RETURN(const Tree tree, ParseTree(record));
  Reader reader;
  ShardReport report;
  report.rank = WorldFrom(reader.At(tree.json, "rank"), reader);
  // Of the same build: all ranks have compared that.
  report.file = FileFrom(kVersion, reader.At(tree.json, "file"), {}, reader);
  if (const auto state = tree.json.find("state"); state != tree.json.end())
    report.state = reader.Text(*state);
  RETURN_IF_ERROR(reader.status());
  return report;
}

}  // namespace regroup::worker
