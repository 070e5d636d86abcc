#include "worker/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/io/fd.h"
#include "common/io/files.h"

namespace regroup::worker {
namespace {

using nlohmann::json;

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(absl::StrCat("safetensors: ", std::string(what)));
}

struct TypeBits {
  const char* name;
  std::uint64_t bits;
};
constexpr TypeBits kTypes[] = {
    {"U64", 64},    {"I64", 64},        {"F64", 64},        {"C64", 64},    {"F32", 32},
    {"U32", 32},    {"I32", 32},        {"BF16", 16},       {"F16", 16},    {"U16", 16},
    {"I16", 16},    {"F8_E5M2FNUZ", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E8M0", 8}, {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"I8", 8},          {"U8", 8},          {"F6_E3M2", 6}, {"F6_E2M3", 6},
    {"F4", 4},      {"BOOL", 8}};

// Reads the header event by event: a tree would silently keep one of two equal keys.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  const std::string& error() const { return error_; }
  SafetensorsHeader Take() { return std::move(header_); }

  bool start_object(std::size_t) override {
    if (where_ == Where::kStart) {
      where_ = Where::kHeader;
    } else if (where_ == Where::kHeader && key_ == "__metadata__") {
      where_ = Where::kMetadata;
    } else if (where_ == Where::kHeader) {
      where_ = Where::kTensor;
      fields_ = 0;
      header_.tensors.emplace_back().name = key_;
    } else {
      return Refuse("an object where none belongs");
    }
    return true;
  }
  bool key(std::string& name) override {
    if (where_ == Where::kHeader) {
      if (name.empty()) return Refuse("an empty name");
      for (char c : name) {
        if (static_cast<unsigned char>(c) < 0x20) return Refuse("a control character in a name");
      }
      if (!names_.insert(name).second) return Refuse(absl::StrCat("the name ", name, " twice"));
    }
    key_ = name;
    return true;
  }
  bool end_object() override {
    if (where_ == Where::kTensor && fields_ != kAllFields) {
      return Refuse(absl::StrCat("tensor ", Tensor().name, " lacks dtype, shape or data_offsets"));
    }
    where_ = where_ == Where::kHeader ? Where::kDone : Where::kHeader;
    return true;
  }
  bool string(std::string& value) override {
    if (where_ == Where::kMetadata) {
      return header_.metadata.emplace(key_, value).second ||
             Refuse(absl::StrCat("metadata ", key_, " twice"));
    }
    if (where_ == Where::kTensor && key_ == "dtype") {
      Tensor().dtype = value;
      return Field(kDtype);
    }
    return Other("a string");
  }
  bool start_array(std::size_t) override {
    if (where_ != Where::kTensor) return Refuse("a list where none belongs");
    where_ = Where::kList;
    numbers_.clear();
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (where_ != Where::kList) return Other("a number");
    if (numbers_.size() >= kMaxNumbers) return Refuse("a list of too many numbers");
    numbers_.push_back(value);
    return true;
  }
  bool end_array() override {
    where_ = Where::kTensor;
    if (key_ == "shape") {
      for (std::uint64_t n : numbers_) {
        if (n >> 48 != 0)
          return Refuse(absl::StrCat("tensor ", Tensor().name, ": a dimension of ", n));
        Tensor().shape.push_back(static_cast<std::int64_t>(n));
      }
      return Field(kShape);
    }
    if (key_ == "data_offsets") {
      if (numbers_.size() != 2)
        return Refuse(absl::StrCat("tensor ", Tensor().name, ": data_offsets are not two numbers"));
      Tensor().begin = numbers_[0];
      Tensor().end = numbers_[1];
      return Field(kOffsets);
    }
    return true;
  }
  bool null() override { return Other("null"); }
  bool boolean(bool) override { return Other("a boolean"); }
  bool number_integer(number_integer_t) override { return Refuse("a negative number"); }
  bool number_float(number_float_t, const std::string&) override {
    return Refuse("a number that is no unsigned integer");
  }
  bool binary(json::binary_t&) override { return Refuse("binary data"); }
  bool parse_error(std::size_t at, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Refuse(absl::StrCat("the header is not JSON at byte ", at));
  }

 private:
  enum class Where { kStart, kHeader, kMetadata, kTensor, kList, kDone };
  static constexpr unsigned kDtype = 1, kShape = 2, kOffsets = 4, kAllFields = 7;
  static constexpr std::size_t kMaxNumbers = 64;

  SafetensorsEntry& Tensor() { return header_.tensors.back(); }
  // Fields of a tensor that the format does not know are passed over, as the reference reader does.
  bool Other(const char* what) {
    const bool known = key_ == "dtype" || key_ == "shape" || key_ == "data_offsets";
    return (where_ == Where::kTensor && !known) ||
           Refuse(absl::StrCat(what, " where none belongs"));
  }
  bool Field(unsigned bit) {
    if ((fields_ & bit) != 0)
      return Refuse(absl::StrCat("tensor ", Tensor().name, ": ", key_, " twice"));
    fields_ |= bit;
    return true;
  }
  bool Refuse(std::string_view what) {
    if (error_.empty()) error_ = std::string(what);
    return false;
  }

  SafetensorsHeader header_;
  std::set<std::string> names_;
  std::vector<std::uint64_t> numbers_;
  std::string key_, error_;
  Where where_ = Where::kStart;
  unsigned fields_ = 0;  // Of the current tensor.
};

// Bytes that dtype and shape stand for.
absl::StatusOr<std::uint64_t> SizeOf(const SafetensorsEntry& tensor) {
  const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                 [&](const TypeBits& t) { return tensor.dtype == t.name; });
  if (type == std::end(kTypes))
    return Damaged(absl::StrCat("tensor ", tensor.name, ": unknown dtype ", tensor.dtype));
  std::uint64_t bits = type->bits;
  for (std::int64_t n : tensor.shape) {
    // Also where a later zero would hide it: every reader must come to the same verdict.
    if (__builtin_mul_overflow(bits, static_cast<std::uint64_t>(n), &bits)) {
      return Damaged(absl::StrCat("tensor ", tensor.name, ": the size overflows"));
    }
  }
  if (bits % 8 != 0)
    return Damaged(absl::StrCat("tensor ", tensor.name, ": ", bits, " bits are no whole bytes"));
  return bits / 8;
}

absl::Status CheckCoverage(SafetensorsHeader& header, std::uint64_t file_bytes) {
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  std::uint64_t at = 0;
  for (const SafetensorsEntry& t : header.tensors) {
    ASSIGN_OR_RETURN(const std::uint64_t bytes, SizeOf(t));
    if (t.begin != at || t.end < t.begin) {
      return Damaged(absl::StrCat("tensor ", t.name, " lies at ", t.begin, " to ", t.end,
                                  ", expected to begin at ", at));
    }
    if (t.end - t.begin != bytes) {
      return Damaged(absl::StrCat("tensor ", t.name, " has ", t.end - t.begin,
                                  " bytes, its shape says ", bytes));
    }
    at = t.end;
  }
  if (file_bytes - header.data_begin != at) {
    return Damaged(absl::StrCat("the file has ", file_bytes - header.data_begin,
                                " bytes of data, its header says ", at));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SerializeSafetensorsHeader(SafetensorsHeader& header,
                                                       std::uint64_t alignment) {
  nlohmann::ordered_json tree;
  if (!header.metadata.empty()) tree["__metadata__"] = header.metadata;
  for (const SafetensorsEntry& t : header.tensors) {
    nlohmann::ordered_json entry;
    entry["dtype"] = t.dtype;
    entry["shape"] = t.shape;
    entry["data_offsets"] = {t.begin, t.end};
    tree[t.name] = std::move(entry);
  }
  std::string text =
      tree.is_null() ? "{}" : tree.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::uint64_t padded = (8 + text.size() + alignment - 1) / alignment * alignment;
  if (padded - 8 > kMaxSafetensorsHeader) {
    return absl::ResourceExhaustedError(absl::StrCat("a safetensors header of ", padded - 8,
                                                     " bytes; limit ", kMaxSafetensorsHeader));
  }
  text.resize(padded - 8, ' ');
  header.data_begin = padded;
  const std::uint64_t length = text.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + text;
}

absl::StatusOr<std::uint64_t> SafetensorsDataBegin(std::string_view first_bytes,
                                                   std::uint64_t file_bytes) {
  if (first_bytes.size() < 8 || file_bytes < 8)
    return Damaged(absl::StrCat("a file of ", file_bytes, " bytes"));
  std::uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), 8);
  if (length > kMaxSafetensorsHeader)
    return Damaged(absl::StrCat("a header of ", length, " bytes; limit ", kMaxSafetensorsHeader));
  if (length > file_bytes - 8)
    return Damaged(absl::StrCat("a header of ", length, " bytes in a file of ", file_bytes));
  if (length < 2) return Damaged(absl::StrCat("a header of ", length, " bytes"));
  return length + 8;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes,
                                                         std::uint64_t file_bytes) {
  ASSIGN_OR_RETURN(const std::uint64_t data_begin, SafetensorsDataBegin(bytes, file_bytes));
  if (bytes.size() != data_begin) return Damaged("the header is cut off");
  HeaderReader reader;
  const std::string_view text = bytes.substr(8);
  if (!json::sax_parse(text.begin(), text.end(), &reader) || !reader.error().empty()) {
    return Damaged(reader.error().empty() ? "the header is no JSON object" : reader.error());
  }
  SafetensorsHeader header = reader.Take();
  header.data_begin = data_begin;
  RETURN_IF_ERROR(CheckCoverage(header, file_bytes));
  return header;
}

absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const std::string& path) {
  ASSIGN_OR_RETURN(const io::UniqueFd fd, io::OpenRegular(path, O_RDONLY));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return io::ErrnoStatus(errno, path);
  const auto file_bytes = static_cast<std::uint64_t>(info.st_size);
  std::string bytes(8, '\0');
  if (pread(fd.get(), bytes.data(), 8, 0) != 8)
    return Damaged(absl::StrCat(path, ": a file of ", file_bytes, " bytes"));
  ASSIGN_OR_RETURN(const std::uint64_t data_begin, SafetensorsDataBegin(bytes, file_bytes));
  bytes.resize(data_begin);
  for (std::size_t at = 8; at < data_begin;) {
    const ssize_t got = pread(fd.get(), bytes.data() + at, data_begin - at, static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io::ErrnoStatus(errno, path);
    if (got == 0) return Damaged(absl::StrCat(path, " was cut off while it was read"));
    at += static_cast<std::size_t>(got);
  }
  return ParseSafetensorsHeader(bytes, file_bytes);
}

}  // namespace regroup::worker
