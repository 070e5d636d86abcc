#pragma once

// A table that cannot be walked: nothing can hang on the order of hashing, so a core may have it
// where it only looks things up.

#include <unordered_map>
#include <utility>

namespace regroup {

template <class Key, class Value>
class Lookup {
 public:
  // Null: there is none. Stays where it is until it is erased.
  Value* Find(const Key& key) {
    const auto found = map_.find(key);
    return found == map_.end() ? nullptr : &found->second;
  }
  const Value* Find(const Key& key) const {
    const auto found = map_.find(key);
    return found == map_.end() ? nullptr : &found->second;
  }
  const Value& At(const Key& key) const { return map_.at(key); }  // REQUIRES: there is one.
  void Set(const Key& key, Value value) { map_.insert_or_assign(key, std::move(value)); }
  void Erase(const Key& key) { map_.erase(key); }
  bool empty() const { return map_.empty(); }
  friend bool operator==(const Lookup&, const Lookup&) = default;

 private:
  std::unordered_map<Key, Value> map_;
};

}  // namespace regroup
