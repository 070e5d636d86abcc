#pragma once

// Tagged fields: u16 tag, u32 length, bytes, all little endian. A reader skips tags it does not
// know. Integers are eight bytes. Repeated fields repeat the tag; nested messages are fields in a
// field.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace regroup::shim {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

class FieldWriter {
 public:
  void Bytes(std::uint16_t tag, std::string_view bytes) {
    Raw(tag);
    Raw(static_cast<std::uint32_t>(bytes.size()));
    out_.append(bytes);
  }
  void Int(std::uint16_t tag, std::int64_t value) {
    Bytes(tag, {reinterpret_cast<const char*>(&value), sizeof(value)});
  }
  std::string Take() { return std::move(out_); }

 private:
  template <class T>
  void Raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  std::string out_;
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}
  // To the next field. False at the end, and at a damaged field: then !ok().
  bool Next() {
    if (rest_.empty()) return false;
    std::uint32_t size = 0;
    ok_ = ok_ && rest_.size() >= 6;
    if (!ok_) return false;
    std::memcpy(&tag_, rest_.data(), 2);
    std::memcpy(&size, rest_.data() + 2, 4);
    rest_.remove_prefix(6);
    ok_ = size <= rest_.size();
    if (!ok_) return false;
    field_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  std::uint16_t tag() const { return tag_; }
  std::string_view bytes() const { return field_; }
  std::string str() const { return std::string(field_); }
  // Of a field that is no integer: 0, and !ok().
  std::int64_t Int() {
    std::int64_t value = 0;
    ok_ = ok_ && field_.size() == sizeof(value);
    if (ok_) std::memcpy(&value, field_.data(), sizeof(value));
    return value;
  }
  // An enumeration 0 … last; other values make !ok().
  template <class E>
  E Enum(E last) {
    std::int64_t value = Int();
    ok_ = ok_ && value >= 0 && value <= static_cast<std::int64_t>(last);
    return ok_ ? static_cast<E>(value) : E{};
  }
  bool ok() const { return ok_; }

 private:
  std::string_view rest_, field_;
  std::uint16_t tag_ = 0;
  bool ok_ = true;
};

}  // namespace regroup::shim
