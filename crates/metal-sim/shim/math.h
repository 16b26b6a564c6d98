// <metal_math>, <metal_common>, <metal_integer>, <metal_relational>, <metal_geometric>.
//
// half and bfloat functions compute in float and round once. Those for bfloat are templates, since Apple's
// library has none and collections that bring their own must not collide with them.
#pragma once
#pragma clang system_header
#include "vector.h"

namespace metal {
using metal_sim::ElementOf;
using metal_sim::Info;
using metal_sim::VectorOf;

// Applies a scalar function to every component.
template <class A, class F> METAL_SIM_INLINE auto apply(F function, const A& operand) {
  VectorOf<A> a = operand;
  vec<decltype(function(a.components[0])), Info<A>::count> result;
  for (int i = 0; i < Info<A>::count; i++) result.components[i] = function(a.components[i]);
  return result;
}
template <class V, class A, class B, class F> METAL_SIM_INLINE auto apply(F function, const A& first, const B& second) {
  V a = V(first), b = V(second);
  vec<decltype(function(a.components[0], b.components[0])), Info<V>::count> result;
  for (int i = 0; i < Info<V>::count; i++) result.components[i] = function(a.components[i], b.components[i]);
  return result;
}
template <class V, class A, class B, class C, class F>
METAL_SIM_INLINE auto apply(F function, const A& first, const B& second, const C& third) {
  V a = V(first), b = V(second), c = V(third);
  vec<decltype(function(a.components[0], b.components[0], c.components[0])), Info<V>::count> result;
  for (int i = 0; i < Info<V>::count; i++)
    result.components[i] = function(a.components[i], b.components[i], c.components[i]);
  return result;
}
// The vector type of an operation with at least one vector among its operands.
template <class... A> struct FirstVector;
template <class A, class... R> struct FirstVector<A, R...> {
  static constexpr bool any = metal_sim::is_vector<A> || FirstVector<R...>::any;
  static auto pick() {
    if constexpr (metal_sim::is_vector<A>) return type_identity<VectorOf<A>>{};
    else return FirstVector<R...>::pick();
  }
};
template <> struct FirstVector<> {
  static constexpr bool any = false;
  static type_identity<void> pick();
};
template <class... A> constexpr bool any_vector = FirstVector<A...>::any;
template <class... A> using CommonVector = typename decltype(FirstVector<A...>::pick())::type;

#define METAL_SIM_LIFT_1(NAME)                                              \
  template <class A, enable_if_t<metal_sim::is_vector<A>, int> = 0>         \
  METAL_SIM_INLINE auto NAME(const A& a) {                                  \
    return apply([](auto x) { return NAME(x); }, a);                        \
  }
#define METAL_SIM_LIFT_2(NAME)                                              \
  template <class A, class B, enable_if_t<any_vector<A, B>, int> = 0>       \
  METAL_SIM_INLINE auto NAME(const A& a, const B& b) {                      \
    return apply<CommonVector<A, B>>([](auto x, auto y) { return NAME(x, y); }, a, b); \
  }
#define METAL_SIM_LIFT_3(NAME)                                              \
  template <class A, class B, class C, enable_if_t<any_vector<A, B, C>, int> = 0> \
  METAL_SIM_INLINE auto NAME(const A& a, const B& b, const C& c) {          \
    return apply<CommonVector<A, B, C>>([](auto x, auto y, auto z) { return NAME(x, y, z); }, a, b, c); \
  }

}  // namespace metal

namespace metal_sim {
// sin(pi x), exact wherever x is a multiple of 1/2.
METAL_SIM_INLINE float sine_of_half_turns(float x) {
  float rest = x - 2.0f * __builtin_rintf(0.5f * x);
  if (__builtin_fabsf(rest) > 0.5f) rest = __builtin_copysignf(1.0f, rest) - rest;
  return __builtin_sinf(3.14159265358979323846f * rest);
}
}  // namespace metal_sim

namespace metal {
// ---- floating point ------------------------------------------------------------------------------
#define METAL_SIM_FLOAT_1(NAME, EXPRESSION)                                                            \
  METAL_SIM_INLINE float NAME(float x) { return EXPRESSION; }                                          \
  METAL_SIM_INLINE half NAME(half narrow) { float x = narrow; return half(EXPRESSION); }               \
  template <class B, enable_if_t<is_same_v<B, bfloat>, int> = 0>                                       \
  METAL_SIM_INLINE bfloat NAME(B narrow) { float x = narrow; return bfloat(EXPRESSION); }              \
  template <class I, enable_if_t<is_integral_v<I>, int> = 0>                                           \
  METAL_SIM_INLINE float NAME(I integer) { return NAME(float(integer)); }                              \
  METAL_SIM_LIFT_1(NAME)
#define METAL_SIM_FLOAT_2(NAME, EXPRESSION)                                                            \
  METAL_SIM_INLINE float NAME(float x, float y) { return EXPRESSION; }                                 \
  METAL_SIM_INLINE half NAME(half a, half b) { float x = a, y = b; return half(EXPRESSION); }          \
  template <class B, enable_if_t<is_same_v<B, bfloat>, int> = 0>                                       \
  METAL_SIM_INLINE bfloat NAME(B a, B b) { float x = a, y = b; return bfloat(EXPRESSION); }            \
  template <class A, class B, enable_if_t<is_scalar_v<A> && is_scalar_v<B> && !is_same_v<A, B>, int> = 0> \
  METAL_SIM_INLINE float NAME(A a, B b) { return NAME(float(a), float(b)); }                           \
  METAL_SIM_LIFT_2(NAME)
#define METAL_SIM_FLOAT_3(NAME, EXPRESSION)                                                            \
  METAL_SIM_INLINE float NAME(float x, float y, float z) { return EXPRESSION; }                        \
  METAL_SIM_INLINE half NAME(half a, half b, half c) { float x = a, y = b, z = c; return half(EXPRESSION); } \
  template <class B, enable_if_t<is_same_v<B, bfloat>, int> = 0>                                       \
  METAL_SIM_INLINE bfloat NAME(B a, B b, B c) { float x = a, y = b, z = c; return bfloat(EXPRESSION); } \
  template <class A, class B, class C,                                                                 \
            enable_if_t<is_scalar_v<A> && is_scalar_v<B> && is_scalar_v<C> && !(is_same_v<A, B> && is_same_v<B, C>), int> = 0> \
  METAL_SIM_INLINE float NAME(A a, B b, C c) { return NAME(float(a), float(b), float(c)); }            \
  METAL_SIM_LIFT_3(NAME)

#define METAL_SIM_PRECISION_FUNCTIONS                                                                  \
  METAL_SIM_FLOAT_1(exp, __builtin_expf(x))                                                            \
  METAL_SIM_FLOAT_1(exp2, __builtin_exp2f(x))                                                          \
  METAL_SIM_FLOAT_1(exp10, __builtin_powf(10.0f, x))                                                   \
  METAL_SIM_FLOAT_1(log, __builtin_logf(x))                                                            \
  METAL_SIM_FLOAT_1(log2, __builtin_log2f(x))                                                          \
  METAL_SIM_FLOAT_1(log10, __builtin_log10f(x))                                                        \
  METAL_SIM_FLOAT_1(sin, __builtin_sinf(x))                                                            \
  METAL_SIM_FLOAT_1(cos, __builtin_cosf(x))                                                            \
  METAL_SIM_FLOAT_1(tan, __builtin_tanf(x))                                                            \
  METAL_SIM_FLOAT_1(sinpi, metal_sim::sine_of_half_turns(x))                                           \
  METAL_SIM_FLOAT_1(cospi, metal_sim::sine_of_half_turns(x + 0.5f))                                    \
  METAL_SIM_FLOAT_1(tanpi, metal_sim::sine_of_half_turns(x) / metal_sim::sine_of_half_turns(x + 0.5f)) \
  METAL_SIM_FLOAT_1(sinh, __builtin_sinhf(x))                                                          \
  METAL_SIM_FLOAT_1(cosh, __builtin_coshf(x))                                                          \
  METAL_SIM_FLOAT_1(tanh, __builtin_tanhf(x))                                                          \
  METAL_SIM_FLOAT_1(asin, __builtin_asinf(x))                                                          \
  METAL_SIM_FLOAT_1(acos, __builtin_acosf(x))                                                          \
  METAL_SIM_FLOAT_1(atan, __builtin_atanf(x))                                                          \
  METAL_SIM_FLOAT_1(asinh, __builtin_asinhf(x))                                                        \
  METAL_SIM_FLOAT_1(acosh, __builtin_acoshf(x))                                                        \
  METAL_SIM_FLOAT_1(atanh, __builtin_atanhf(x))                                                        \
  METAL_SIM_FLOAT_1(sqrt, __builtin_sqrtf(x))                                                          \
  METAL_SIM_FLOAT_1(rsqrt, 1.0f / __builtin_sqrtf(x))                                                  \
  METAL_SIM_FLOAT_1(fabs, __builtin_fabsf(x))                                                          \
  METAL_SIM_FLOAT_1(floor, __builtin_floorf(x))                                                        \
  METAL_SIM_FLOAT_1(ceil, __builtin_ceilf(x))                                                          \
  METAL_SIM_FLOAT_1(round, __builtin_roundf(x))                                                        \
  METAL_SIM_FLOAT_1(trunc, __builtin_truncf(x))                                                        \
  METAL_SIM_FLOAT_1(rint, __builtin_rintf(x))                                                          \
  METAL_SIM_FLOAT_1(fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))                   \
  METAL_SIM_FLOAT_2(pow, __builtin_powf(x, y))                                                         \
  METAL_SIM_FLOAT_2(powr, __builtin_powf(x, y))                                                        \
  METAL_SIM_FLOAT_2(fmod, __builtin_fmodf(x, y))                                                       \
  METAL_SIM_FLOAT_2(atan2, __builtin_atan2f(x, y))                                                     \
  METAL_SIM_FLOAT_2(fmin, __builtin_fminf(x, y))                                                       \
  METAL_SIM_FLOAT_2(fmax, __builtin_fmaxf(x, y))                                                       \
  METAL_SIM_FLOAT_2(divide, x / y)
METAL_SIM_PRECISION_FUNCTIONS
METAL_SIM_FLOAT_1(sign, x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? x : 0.0f)
METAL_SIM_FLOAT_1(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))
METAL_SIM_FLOAT_2(copysign, __builtin_copysignf(x, y))
METAL_SIM_FLOAT_2(fdim, x > y ? x - y : 0.0f)
METAL_SIM_FLOAT_2(step, y < x ? 0.0f : 1.0f)
METAL_SIM_FLOAT_3(fma, __builtin_fmaf(x, y, z))
METAL_SIM_FLOAT_3(mix, x + (y - x) * z)
METAL_SIM_INLINE float smooth_ramp(float t) { return t * t * (3.0f - 2.0f * t); }
METAL_SIM_FLOAT_3(smoothstep, smooth_ramp(saturate((z - x) / (y - x))))
METAL_SIM_FLOAT_3(fmin3, __builtin_fminf(x, __builtin_fminf(y, z)))
METAL_SIM_FLOAT_3(fmax3, __builtin_fmaxf(x, __builtin_fmaxf(y, z)))
METAL_SIM_FLOAT_3(fmedian3, __builtin_fmaxf(__builtin_fminf(x, y), __builtin_fminf(__builtin_fmaxf(x, y), z)))

template <class T, enable_if_t<is_floating_point_v<T>, int> = 0> METAL_SIM_INLINE T ldexp(T x, int exponent) {
  return T(__builtin_ldexpf(float(x), exponent));
}
template <class T, enable_if_t<is_floating_point_v<T>, int> = 0> METAL_SIM_INLINE T frexp(T x, int& exponent) {
  return T(__builtin_frexpf(float(x), &exponent));
}
template <class T, enable_if_t<is_floating_point_v<T>, int> = 0> METAL_SIM_INLINE int ilogb(T x) {
  return __builtin_ilogbf(float(x));
}
template <class T, enable_if_t<is_floating_point_v<T>, int> = 0> METAL_SIM_INLINE T modf(T x, T& whole) {
  whole = trunc(x);
  return T(copysign(x - whole, x));
}
template <class T, int N> METAL_SIM_INLINE vec<T, N> frexp(vec<T, N> x, vec<int, N>& exponents) {
  for (int i = 0; i < N; i++) x.components[i] = frexp(x.components[i], exponents.components[i]);
  return x;
}
METAL_SIM_LIFT_1(ilogb)
template <class T, int N> METAL_SIM_INLINE vec<T, N> modf(vec<T, N> x, vec<T, N>& wholes) {
  for (int i = 0; i < N; i++) x.components[i] = modf(x.components[i], wholes.components[i]);
  return x;
}
template <class T> METAL_SIM_INLINE T sincos(T x, T& cosine) {
  cosine = cos(x);
  return sin(x);
}
namespace precise {
METAL_SIM_PRECISION_FUNCTIONS
template <class T> METAL_SIM_INLINE T sincos(T x, T& cosine) { cosine = cos(x); return sin(x); }
}
namespace fast {
METAL_SIM_PRECISION_FUNCTIONS
template <class T> METAL_SIM_INLINE T sincos(T x, T& cosine) { cosine = cos(x); return sin(x); }
}

}  // namespace metal

namespace metal_sim {
// Holds every product of two values of an integer type, and one more value on top.
template <class T> using Wide = metal::conditional_t<metal::is_unsigned_v<T>, unsigned __int128, __int128>;
}  // namespace metal_sim

namespace metal {
// ---- integers ------------------------------------------------------------------------------------
#define METAL_SIM_FOR_EACH_INTEGER(DO) DO(char) DO(int8_t) DO(uchar) DO(short) DO(ushort) DO(int) DO(uint) DO(long) DO(ulong)
#define METAL_SIM_INTEGER(T)                                                                           \
  METAL_SIM_INLINE T min(T a, T b) { return b < a ? b : a; }                                           \
  METAL_SIM_INLINE T max(T a, T b) { return a < b ? b : a; }                                           \
  METAL_SIM_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }                      \
  METAL_SIM_INLINE T min3(T a, T b, T c) { return min(a, min(b, c)); }                                 \
  METAL_SIM_INLINE T max3(T a, T b, T c) { return max(a, max(b, c)); }                                 \
  METAL_SIM_INLINE T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }              \
  METAL_SIM_INLINE T abs(T x) { return x < 0 ? T(-x) : x; }                                            \
  METAL_SIM_INLINE T popcount(T x) { return T(__builtin_popcountl(make_unsigned_t<T>(x))); }           \
  METAL_SIM_INLINE T clz(T x) {                                                                        \
    return x ? T(__builtin_clzl(make_unsigned_t<T>(x)) - (64 - 8 * sizeof(T))) : T(8 * sizeof(T));     \
  }                                                                                                    \
  METAL_SIM_INLINE T ctz(T x) { return x ? T(__builtin_ctzl(make_unsigned_t<T>(x))) : T(8 * sizeof(T)); } \
  METAL_SIM_INLINE T reverse_bits(T x) {                                                               \
    return T(__builtin_bitreverse64(make_unsigned_t<T>(x)) >> (64 - 8 * sizeof(T)));                   \
  }                                                                                                    \
  METAL_SIM_INLINE T rotate(T x, T amount) {                                                           \
    using U = make_unsigned_t<T>;                                                                      \
    constexpr uint bits = 8 * sizeof(T);                                                               \
    uint by = uint(amount) & (bits - 1);                                                               \
    return by ? T(U(U(x) << by) | U(U(x) >> (bits - by))) : x;                                         \
  }                                                                                                    \
  METAL_SIM_INLINE make_unsigned_t<T> absdiff(T a, T b) {                                              \
    using U = make_unsigned_t<T>;                                                                      \
    return a < b ? U(U(b) - U(a)) : U(U(a) - U(b));                                                    \
  }                                                                                                    \
  METAL_SIM_INLINE T mulhi(T a, T b) { return T((metal_sim::Wide<T>(a) * b) >> (8 * sizeof(T))); }     \
  METAL_SIM_INLINE T madhi(T a, T b, T c) { return T(mulhi(a, b) + c); }                               \
  METAL_SIM_INLINE T addsat(T a, T b) {                                                                \
    T sum;                                                                                             \
    if (!__builtin_add_overflow(a, b, &sum)) return sum;                                               \
    return b < 0 ? numeric_limits<T>::min() : numeric_limits<T>::max();                                \
  }                                                                                                    \
  METAL_SIM_INLINE T subsat(T a, T b) {                                                                \
    T difference;                                                                                      \
    if (!__builtin_sub_overflow(a, b, &difference)) return difference;                                 \
    return a < b ? numeric_limits<T>::min() : numeric_limits<T>::max();                                \
  }                                                                                                    \
  METAL_SIM_INLINE T madsat(T a, T b, T c) {                                                           \
    metal_sim::Wide<T> sum = metal_sim::Wide<T>(a) * b + c;                                            \
    metal_sim::Wide<T> low = numeric_limits<T>::min(), high = numeric_limits<T>::max();                \
    return T(sum < low ? low : sum > high ? high : sum);                                               \
  }                                                                                                    \
  METAL_SIM_INLINE T hadd(T a, T b) { return T((__int128(a) + b) >> 1); }                              \
  METAL_SIM_INLINE T rhadd(T a, T b) { return T((__int128(a) + b + 1) >> 1); }                         \
  METAL_SIM_INLINE T extract_bits(T x, uint offset, uint bits) {                                       \
    using U = make_unsigned_t<T>;                                                                      \
    constexpr uint width = 8 * sizeof(T);                                                              \
    if (bits == 0 || offset >= width) return T(0);                                                     \
    if (bits > width - offset) bits = width - offset;                                                  \
    return T(T(U(U(x) << (width - offset - bits))) >> (width - bits));                                 \
  }                                                                                                    \
  METAL_SIM_INLINE T insert_bits(T base, T field, uint offset, uint bits) {                            \
    using U = make_unsigned_t<T>;                                                                      \
    constexpr uint width = 8 * sizeof(T);                                                              \
    if (bits == 0 || offset >= width) return base;                                                     \
    if (bits > width - offset) bits = width - offset;                                                  \
    U mask = U((bits == width ? U(~U(0)) : U((U(1) << bits) - 1)) << offset);                          \
    return T((U(base) & U(~mask)) | (U(U(field) << offset) & mask));                                   \
  }
METAL_SIM_FOR_EACH_INTEGER(METAL_SIM_INTEGER)
template <class T, enable_if_t<is_integral_v<T>, int> = 0> METAL_SIM_INLINE T mul24(T a, T b) { return a * b; }
template <class T, enable_if_t<is_integral_v<T>, int> = 0> METAL_SIM_INLINE T mad24(T a, T b, T c) { return a * b + c; }

#define METAL_SIM_FLOAT_COMMON(HEAD, T)                                                                \
  HEAD METAL_SIM_INLINE T min(T a, T b) { return T(__builtin_fminf(float(a), float(b))); }             \
  HEAD METAL_SIM_INLINE T max(T a, T b) { return T(__builtin_fmaxf(float(a), float(b))); }             \
  HEAD METAL_SIM_INLINE T clamp(T x, T low, T high) { return min(max(x, low), high); }                 \
  HEAD METAL_SIM_INLINE T min3(T a, T b, T c) { return min(a, min(b, c)); }                            \
  HEAD METAL_SIM_INLINE T max3(T a, T b, T c) { return max(a, max(b, c)); }                            \
  HEAD METAL_SIM_INLINE T median3(T a, T b, T c) { return max(min(a, b), min(max(a, b), c)); }         \
  HEAD METAL_SIM_INLINE T abs(T x) { return T(__builtin_fabsf(float(x))); }
#define METAL_SIM_EMPTY
#define METAL_SIM_IF_BFLOAT template <class B, enable_if_t<is_same_v<B, bfloat>, int> = 0>
METAL_SIM_FLOAT_COMMON(METAL_SIM_EMPTY, float)
METAL_SIM_FLOAT_COMMON(METAL_SIM_EMPTY, half)
METAL_SIM_FLOAT_COMMON(METAL_SIM_IF_BFLOAT, B)
// Narrow and wide floating point mix to float.
#define METAL_SIM_FLOAT_MIX(NAME)                                                                      \
  template <class A, class B,                                                                          \
            enable_if_t<is_scalar_v<A> && is_scalar_v<B> && !is_same_v<A, B> &&                        \
                            (is_floating_point_v<A> || is_floating_point_v<B>), int> = 0>              \
  METAL_SIM_INLINE auto NAME(A a, B b) {                                                               \
    using R = conditional_t<!is_floating_point_v<A>, B, conditional_t<!is_floating_point_v<B>, A, float>>; \
    return NAME(metal_sim::convert<R>(a), metal_sim::convert<R>(b));                                   \
  }
#ifndef METAL_SIM_LINT
METAL_SIM_FLOAT_MIX(min)
METAL_SIM_FLOAT_MIX(max)
#endif
// Integers of different types convert as in C++ arithmetic.
#define METAL_SIM_INTEGER_MIX(NAME)                                                                    \
  template <class A, class B,                                                                          \
            enable_if_t<is_scalar_v<A> && is_scalar_v<B> && !is_same_v<A, B> &&                        \
                            !is_floating_point_v<A> && !is_floating_point_v<B>, int> = 0>              \
  METAL_SIM_INLINE auto NAME(A a, B b) {                                                               \
    using R = decltype(a + b);                                                                         \
    return NAME(R(a), R(b));                                                                           \
  }
METAL_SIM_INTEGER_MIX(min)
METAL_SIM_INTEGER_MIX(max)
template <class A, class B, class C,
          enable_if_t<is_scalar_v<A> && is_scalar_v<B> && is_scalar_v<C> && !(is_same_v<A, B> && is_same_v<B, C>), int> = 0>
METAL_SIM_INLINE auto clamp(A x, B low, C high) {
  return min(max(x, metal_sim::convert<A>(low)), metal_sim::convert<A>(high));
}
METAL_SIM_LIFT_2(min) METAL_SIM_LIFT_2(max) METAL_SIM_LIFT_3(clamp)
namespace precise { using metal::abs; using metal::clamp; using metal::max; using metal::min; }
namespace fast { using metal::abs; using metal::clamp; using metal::max; using metal::min; }
METAL_SIM_LIFT_3(min3) METAL_SIM_LIFT_3(max3) METAL_SIM_LIFT_3(median3)
METAL_SIM_LIFT_1(abs) METAL_SIM_LIFT_1(popcount) METAL_SIM_LIFT_1(clz) METAL_SIM_LIFT_1(ctz) METAL_SIM_LIFT_1(reverse_bits)
METAL_SIM_LIFT_2(rotate) METAL_SIM_LIFT_2(absdiff) METAL_SIM_LIFT_2(mulhi) METAL_SIM_LIFT_3(madhi)
METAL_SIM_LIFT_2(addsat) METAL_SIM_LIFT_2(subsat) METAL_SIM_LIFT_3(madsat) METAL_SIM_LIFT_2(hadd) METAL_SIM_LIFT_2(rhadd)
METAL_SIM_LIFT_2(mul24) METAL_SIM_LIFT_3(mad24)
template <class T, int N> METAL_SIM_INLINE vec<T, N> extract_bits(vec<T, N> x, uint offset, uint bits) {
  for (int i = 0; i < N; i++) x.components[i] = extract_bits(x.components[i], offset, bits);
  return x;
}
template <class T, int N> METAL_SIM_INLINE vec<T, N> insert_bits(vec<T, N> base, vec<T, N> field, uint offset, uint bits) {
  for (int i = 0; i < N; i++) base.components[i] = insert_bits(base.components[i], field.components[i], offset, bits);
  return base;
}
template <class A, enable_if_t<metal_sim::is_vector<A>, int> = 0> METAL_SIM_INLINE auto ldexp(const A& a, vec<int, Info<A>::count> e) {
  VectorOf<A> result = a;
  for (int i = 0; i < Info<A>::count; i++) result.components[i] = ldexp(result.components[i], e.components[i]);
  return result;
}

// ---- relational ----------------------------------------------------------------------------------
// Written on the bits: fast arithmetic may assume anything about NaN.
METAL_SIM_INLINE uint magnitude_bits(float x) { return as_type<uint>(x) & 0x7fffffffu; }
#define METAL_SIM_CLASSIFY(NAME, EXPRESSION)                                                           \
  METAL_SIM_INLINE bool NAME(float value) { uint bits = magnitude_bits(value); (void)bits; return EXPRESSION; } \
  METAL_SIM_INLINE bool NAME(half value) { return NAME(float(value)); }                                \
  METAL_SIM_INLINE bool NAME(bfloat value) { return NAME(float(value)); }                              \
  METAL_SIM_LIFT_1(NAME)
METAL_SIM_CLASSIFY(isnan, bits > 0x7f800000u)
METAL_SIM_CLASSIFY(isinf, bits == 0x7f800000u)
METAL_SIM_CLASSIFY(isfinite, bits < 0x7f800000u)
METAL_SIM_INLINE bool isnormal(float x) { uint bits = magnitude_bits(x); return bits >= 0x00800000u && bits < 0x7f800000u; }
METAL_SIM_INLINE bool isnormal(half x) { uint bits = as_type<ushort>(x) & 0x7fffu; return bits >= 0x0400u && bits < 0x7c00u; }
template <class B, enable_if_t<is_same_v<B, bfloat>, int> = 0> METAL_SIM_INLINE bool isnormal(B x) { return isnormal(float(x)); }
METAL_SIM_LIFT_1(isnormal)
METAL_SIM_INLINE bool signbit(float x) { return as_type<uint>(x) >> 31; }
METAL_SIM_INLINE bool signbit(half x) { return as_type<ushort>(x) >> 15; }
METAL_SIM_INLINE bool signbit(bfloat x) { return as_type<ushort>(x) >> 15; }
METAL_SIM_LIFT_1(signbit)
template <class T, enable_if_t<is_floating_point_v<T>, int> = 0> METAL_SIM_INLINE bool isunordered(T a, T b) { return isnan(a) || isnan(b); }
template <class T, enable_if_t<is_floating_point_v<T>, int> = 0> METAL_SIM_INLINE bool isordered(T a, T b) { return !isunordered(a, b); }
METAL_SIM_LIFT_2(isunordered) METAL_SIM_LIFT_2(isordered)

METAL_SIM_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
// The types of 16 bits, whose values lie in the order of their bits but for the sign.
template <class T, enable_if_t<is_same_v<T, half> || is_same_v<T, bfloat>, int> = 0> METAL_SIM_INLINE T nextafter(T x, T y) {
  float from = float(x), to = float(y);
  if (isnan(x) || isnan(y) || from == to) return isnan(x) ? x : y;
  if (from == 0.0f) return as_type<T>(ushort(to < 0.0f ? 0x8001 : 1));
  return as_type<T>(ushort(as_type<ushort>(x) + ((from < to) == (from > 0.0f) ? 1 : -1)));
}
METAL_SIM_LIFT_2(nextafter)

METAL_SIM_INLINE bool any(bool value) { return value; }
METAL_SIM_INLINE bool all(bool value) { return value; }
template <int N> METAL_SIM_INLINE bool any(vec<bool, N> v) { bool r = false; for (int i = 0; i < N; i++) r |= v.components[i]; return r; }
template <int N> METAL_SIM_INLINE bool all(vec<bool, N> v) { bool r = true; for (int i = 0; i < N; i++) r &= v.components[i]; return r; }
template <class A, class B, enable_if_t<metal_sim::is_scalar<A> && metal_sim::is_scalar<B>, int> = 0>
METAL_SIM_INLINE auto select(A if_false, B if_true, bool condition) {
  return condition ? metal_sim::convert<A>(if_true) : if_false;
}
template <class A, class B, int N, enable_if_t<any_vector<A, B>, int> = 0>
METAL_SIM_INLINE auto select(const A& if_false, const B& if_true, const vec<bool, N>& condition) {
  using V = CommonVector<A, B>;
  V a = V(if_false), b = V(if_true);
  for (int i = 0; i < N; i++) a.components[i] = condition.components[i] ? b.components[i] : a.components[i];
  return a;
}
template <class A, class B, enable_if_t<any_vector<A, B>, int> = 0>
METAL_SIM_INLINE auto select(const A& if_false, const B& if_true, bool condition) {
  using V = CommonVector<A, B>;
  return condition ? V(if_true) : V(if_false);
}

// ---- geometry ------------------------------------------------------------------------------------
template <class A, class B, enable_if_t<metal_sim::is_vector<A> && metal_sim::is_vector<B>, int> = 0>
METAL_SIM_INLINE auto dot(const A& first, const B& second) {
  METAL_SIM_OPERATOR_CHECKS(A, B)
  VectorOf<A> a = first, b = second;
  ElementOf<A> sum = a.components[0] * b.components[0];
  for (int i = 1; i < Info<A>::count; i++) sum += a.components[i] * b.components[i];
  return sum;
}
template <class A, enable_if_t<metal_sim::is_vector<A>, int> = 0> METAL_SIM_INLINE auto length_squared(const A& a) { return dot(a, a); }
template <class A, enable_if_t<metal_sim::is_vector<A>, int> = 0> METAL_SIM_INLINE auto length(const A& a) { return sqrt(dot(a, a)); }
template <class A, class B, enable_if_t<metal_sim::is_vector<A>, int> = 0> METAL_SIM_INLINE auto distance(const A& a, const B& b) { return length(a - b); }
template <class A, class B, enable_if_t<metal_sim::is_vector<A>, int> = 0> METAL_SIM_INLINE auto distance_squared(const A& a, const B& b) { return length_squared(a - b); }
template <class A, enable_if_t<metal_sim::is_vector<A>, int> = 0> METAL_SIM_INLINE auto normalize(const A& a) { return a * rsqrt(dot(a, a)); }
template <class T> METAL_SIM_INLINE vec<T, 3> cross(vec<T, 3> a, vec<T, 3> b) {
  return vec<T, 3>(a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x);
}
template <class T, int N> METAL_SIM_INLINE vec<T, N> reflect(vec<T, N> i, vec<T, N> n) { return i - n * (T(2) * dot(n, i)); }
template <class T, int N> METAL_SIM_INLINE vec<T, N> faceforward(vec<T, N> n, vec<T, N> i, vec<T, N> reference) {
  return dot(reference, i) < T(0) ? n : -n;
}
template <class T, int N> METAL_SIM_INLINE vec<T, N> refract(vec<T, N> i, vec<T, N> n, type_identity_t<T> ratio) {
  T cosine = dot(n, i), rest = T(1) - ratio * ratio * (T(1) - cosine * cosine);
  return rest < T(0) ? vec<T, N>(T(0)) : vec<T, N>(i * ratio - n * (ratio * cosine + sqrt(rest)));
}
namespace precise { using metal::distance; using metal::length; using metal::normalize; }
namespace fast { using metal::distance; using metal::length; using metal::normalize; }
template <class T> METAL_SIM_INLINE T determinant(const matrix<T, 2, 2>& m) { return m[0].x * m[1].y - m[1].x * m[0].y; }
template <class T> METAL_SIM_INLINE T determinant(const matrix<T, 3, 3>& m) { return dot(m[0], cross(m[1], m[2])); }
// By the minors of the first column.
template <class T> METAL_SIM_INLINE T determinant(const matrix<T, 4, 4>& m) {
  T sum = T(0);
  for (int row = 0; row < 4; row++) {
    matrix<T, 3, 3> minor;
    for (int column = 1; column < 4; column++)
      for (int from = 0, to = 0; from < 4; from++)
        if (from != row) minor[column - 1][to++] = m[column][from];
    sum += (row & 1 ? -m[0][row] : m[0][row]) * determinant(minor);
  }
  return sum;
}
}  // namespace metal

#include "packing.h"
#include "constants.h"
