// Names that are internal to Apple's compiler and that known collections use nevertheless, to give bfloat the
// functions that Apple's library does not have. The last argument, where there is one, is the precision.
#pragma once
#pragma clang system_header
#include "simdgroup.h"

constexpr int __METAL_FAST_MATH__ = 0, __METAL_PRECISE_MATH__ = 1, __METAL_MAYBE_FAST_MATH__ = 2;
constexpr int __METAL_MEMORY_SCOPE_SYSTEM__ = 0;

#define METAL_SIM_BUILTIN_1(NAME) \
  template <class... Mode> METAL_SIM_INLINE float __metal_##NAME(float x, Mode...) { return metal::NAME(x); }
#define METAL_SIM_BUILTIN_2(NAME) \
  template <class... Mode> METAL_SIM_INLINE float __metal_##NAME(float x, float y, Mode...) { return metal::NAME(x, y); }
#define METAL_SIM_BUILTIN_3(NAME) \
  template <class... Mode> METAL_SIM_INLINE float __metal_##NAME(float x, float y, float z, Mode...) { return metal::NAME(x, y, z); }
METAL_SIM_BUILTIN_1(fabs) METAL_SIM_BUILTIN_1(acos) METAL_SIM_BUILTIN_1(acosh) METAL_SIM_BUILTIN_1(asin) METAL_SIM_BUILTIN_1(asinh)
METAL_SIM_BUILTIN_1(atan) METAL_SIM_BUILTIN_1(atanh) METAL_SIM_BUILTIN_1(ceil) METAL_SIM_BUILTIN_1(cos) METAL_SIM_BUILTIN_1(cosh)
METAL_SIM_BUILTIN_1(cospi) METAL_SIM_BUILTIN_1(exp) METAL_SIM_BUILTIN_1(exp2) METAL_SIM_BUILTIN_1(exp10) METAL_SIM_BUILTIN_1(floor)
METAL_SIM_BUILTIN_1(fract) METAL_SIM_BUILTIN_1(log) METAL_SIM_BUILTIN_1(log2) METAL_SIM_BUILTIN_1(log10) METAL_SIM_BUILTIN_1(rint)
METAL_SIM_BUILTIN_1(round) METAL_SIM_BUILTIN_1(rsqrt) METAL_SIM_BUILTIN_1(sin) METAL_SIM_BUILTIN_1(sinh) METAL_SIM_BUILTIN_1(sinpi)
METAL_SIM_BUILTIN_1(sqrt) METAL_SIM_BUILTIN_1(tan) METAL_SIM_BUILTIN_1(tanh) METAL_SIM_BUILTIN_1(tanpi) METAL_SIM_BUILTIN_1(trunc)
METAL_SIM_BUILTIN_2(atan2) METAL_SIM_BUILTIN_2(divide) METAL_SIM_BUILTIN_2(fdim) METAL_SIM_BUILTIN_2(fmax) METAL_SIM_BUILTIN_2(fmin)
METAL_SIM_BUILTIN_2(fmod) METAL_SIM_BUILTIN_2(nextafter) METAL_SIM_BUILTIN_2(pow) METAL_SIM_BUILTIN_2(powr) METAL_SIM_BUILTIN_2(copysign)
METAL_SIM_BUILTIN_3(fma) METAL_SIM_BUILTIN_3(fmax3) METAL_SIM_BUILTIN_3(fmin3) METAL_SIM_BUILTIN_3(fmedian3)
template <class... Mode> METAL_SIM_INLINE float __metal_ldexp(float x, int e, Mode...) { return metal::ldexp(x, e); }
template <class... Mode> METAL_SIM_INLINE float __metal_frexp(float x, int* e, Mode...) { return metal::frexp(x, *e); }
template <class... Mode> METAL_SIM_INLINE int __metal_ilogb(float x, Mode...) { return metal::ilogb(x); }

METAL_SIM_INLINE ushort __metal_get_simdgroup_size(ushort) { return 32; }
METAL_SIM_INLINE ushort __metal_get_thread_index_in_simdgroup(ushort) { return ushort(metal_sim::current_lane()->lane); }
#define METAL_SIM_BUILTIN_SIMD(NAME) \
  template <class T, class... A> METAL_SIM_INLINE T __metal_simd_##NAME(T value, A... rest) { return metal::simd_##NAME(value, rest...); }
METAL_SIM_BUILTIN_SIMD(broadcast) METAL_SIM_BUILTIN_SIMD(shuffle) METAL_SIM_BUILTIN_SIMD(shuffle_down) METAL_SIM_BUILTIN_SIMD(shuffle_up)
METAL_SIM_BUILTIN_SIMD(shuffle_xor) METAL_SIM_BUILTIN_SIMD(shuffle_rotate_down) METAL_SIM_BUILTIN_SIMD(shuffle_rotate_up)
METAL_SIM_BUILTIN_SIMD(shuffle_and_fill_down) METAL_SIM_BUILTIN_SIMD(shuffle_and_fill_up)
METAL_SIM_BUILTIN_SIMD(sum) METAL_SIM_BUILTIN_SIMD(product) METAL_SIM_BUILTIN_SIMD(min) METAL_SIM_BUILTIN_SIMD(max)
// These take floating point, too, and work on its bits.
#define METAL_SIM_BUILTIN_BITWISE(NAME)                                                                     \
  template <class T> METAL_SIM_INLINE T __metal_simd_##NAME(T value) {                                      \
    if constexpr (metal::is_floating_point_v<T>) return as_type<T>(metal::simd_##NAME(as_type<uint>(float(value)))); \
    else return metal::simd_##NAME(value);                                                                  \
  }
METAL_SIM_BUILTIN_BITWISE(and) METAL_SIM_BUILTIN_BITWISE(or) METAL_SIM_BUILTIN_BITWISE(xor)
METAL_SIM_BUILTIN_SIMD(prefix_inclusive_sum) METAL_SIM_BUILTIN_SIMD(prefix_exclusive_sum)
METAL_SIM_BUILTIN_SIMD(prefix_inclusive_product) METAL_SIM_BUILTIN_SIMD(prefix_exclusive_product)
