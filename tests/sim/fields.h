#pragma once

// The fields of a plain struct, in order, without a list of them that somebody could forget to
// extend: a new field of a row or an action is recorded from the moment it is there. How many there
// are is found by asking with how many values the struct can be initialised; a wrong answer does
// not compile.

#include <cstddef>
#include <type_traits>
#include <utility>

namespace regroup::sim {

struct AnyValue {
  template <class T>
  operator T() const;
};

template <class T, std::size_t... I>
constexpr bool IsMadeOf(std::index_sequence<I...>) {
  return requires { T{((void)I, AnyValue{})...}; };
}

template <class T, std::size_t N = 0>
constexpr std::size_t CountFields() {
  if constexpr (IsMadeOf<T>(std::make_index_sequence<N + 1>())) {
    return CountFields<T, N + 1>();
  } else {
    return N;
  }
}
template <class T>
inline constexpr std::size_t kFieldsOf = CountFields<T>();

template <std::size_t N>
using FieldCount = std::integral_constant<std::size_t, N>;

template <class T, class Each>
void Open(FieldCount<0>, const T&, const Each&) {}
template <class T, class Each>
void Open(FieldCount<1>, const T& value, const Each& each) {
  const auto& [f0] = value;
  each(f0);
}
template <class T, class Each>
void Open(FieldCount<2>, const T& value, const Each& each) {
  const auto& [f0, f1] = value;
  each(f0, f1);
}
template <class T, class Each>
void Open(FieldCount<3>, const T& value, const Each& each) {
  const auto& [f0, f1, f2] = value;
  each(f0, f1, f2);
}
template <class T, class Each>
void Open(FieldCount<4>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3] = value;
  each(f0, f1, f2, f3);
}
template <class T, class Each>
void Open(FieldCount<5>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4] = value;
  each(f0, f1, f2, f3, f4);
}
template <class T, class Each>
void Open(FieldCount<6>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5] = value;
  each(f0, f1, f2, f3, f4, f5);
}
template <class T, class Each>
void Open(FieldCount<7>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6] = value;
  each(f0, f1, f2, f3, f4, f5, f6);
}
template <class T, class Each>
void Open(FieldCount<8>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7);
}
template <class T, class Each>
void Open(FieldCount<9>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8);
}
template <class T, class Each>
void Open(FieldCount<10>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9);
}
template <class T, class Each>
void Open(FieldCount<11>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10);
}
template <class T, class Each>
void Open(FieldCount<12>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11);
}
template <class T, class Each>
void Open(FieldCount<13>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12);
}
template <class T, class Each>
void Open(FieldCount<14>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13);
}
template <class T, class Each>
void Open(FieldCount<15>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14);
}
template <class T, class Each>
void Open(FieldCount<16>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15);
}
template <class T, class Each>
void Open(FieldCount<17>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16);
}
template <class T, class Each>
void Open(FieldCount<18>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17] =
      value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17);
}
template <class T, class Each>
void Open(FieldCount<19>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17,
               f18] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18);
}
template <class T, class Each>
void Open(FieldCount<20>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19);
}
template <class T, class Each>
void Open(FieldCount<21>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20);
}
template <class T, class Each>
void Open(FieldCount<22>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21);
}
template <class T, class Each>
void Open(FieldCount<23>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22);
}
template <class T, class Each>
void Open(FieldCount<24>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23);
}
template <class T, class Each>
void Open(FieldCount<25>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24);
}
template <class T, class Each>
void Open(FieldCount<26>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24, f25] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24, f25);
}
template <class T, class Each>
void Open(FieldCount<27>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24, f25, f26] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24, f25, f26);
}
template <class T, class Each>
void Open(FieldCount<28>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24, f25, f26, f27] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24, f25, f26, f27);
}
template <class T, class Each>
void Open(FieldCount<29>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24, f25, f26, f27, f28] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24, f25, f26, f27, f28);
}
template <class T, class Each>
void Open(FieldCount<30>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24, f25, f26, f27, f28, f29] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24, f25, f26, f27, f28, f29);
}
template <class T, class Each>
void Open(FieldCount<31>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24, f25, f26, f27, f28, f29, f30] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24, f25, f26, f27, f28, f29, f30);
}
template <class T, class Each>
void Open(FieldCount<32>, const T& value, const Each& each) {
  const auto& [f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18,
               f19, f20, f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31] = value;
  each(f0, f1, f2, f3, f4, f5, f6, f7, f8, f9, f10, f11, f12, f13, f14, f15, f16, f17, f18, f19,
       f20, f21, f22, f23, f24, f25, f26, f27, f28, f29, f30, f31);
}

// Calls visit(field) for each field of `value`, in order.
template <class T, class Visit>
void ForEachField(const T& value, const Visit& visit) {
  static_assert(std::is_aggregate_v<T>);
  Open(FieldCount<kFieldsOf<T>>(), value, [&](const auto&... fields) { (visit(fields), ...); });
}

}  // namespace regroup::sim
