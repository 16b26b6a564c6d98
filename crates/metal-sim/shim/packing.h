// <metal_pack>: normalised integers in one word. Components stand from the low end on.
#pragma once
#pragma clang system_header
#include "vector.h"

namespace metal_sim {
using metal::vec;
// Reads one component after the other: how many bits it has, and whether it has a sign.
template <int... bits> METAL_SIM_INLINE vec<float, sizeof...(bits)> unpack(uint word, bool is_signed) {
  vec<float, sizeof...(bits)> result;
  int index = 0, offset = 0;
  auto next = [&](int count) {
    uint value = word << (32 - offset - count);
    offset += count;
    float most = float((1u << (count - is_signed)) - 1);
    float component = is_signed ? float(int(value) >> (32 - count)) : float(value >> (32 - count));
    // The smallest integer stands for -1 as does the one above it.
    result.components[index++] = __builtin_fmaxf(component / most, -1.0f);
  };
  (next(bits), ...);
  return result;
}
template <int... bits> METAL_SIM_INLINE uint pack(const vec<float, sizeof...(bits)>& values, bool is_signed) {
  uint word = 0;
  int index = 0, offset = 0;
  auto next = [&](int count) {
    float low = is_signed ? -1.0f : 0.0f, most = float((1u << (count - is_signed)) - 1);
    float value = __builtin_fminf(__builtin_fmaxf(values.components[index++], low), 1.0f);
    uint bits_of_value = uint(int(__builtin_rintf(value * most)));
    word |= (bits_of_value & ((1u << count) - 1)) << offset;
    offset += count;
  };
  (next(bits), ...);
  return word;
}
METAL_SIM_INLINE float linear_of_srgb(float c) {
  return c <= 0.04045f ? c / 12.92f : __builtin_powf((c + 0.055f) / 1.055f, 2.4f);
}
METAL_SIM_INLINE float srgb_of_linear(float c) {
  return c <= 0.0031308f ? c * 12.92f : 1.055f * __builtin_powf(c, 1.0f / 2.4f) - 0.055f;
}
}  // namespace metal_sim

namespace metal {
// Both directions of one format, for float and half.
#define METAL_SIM_PACKING(NAME, WORD, COUNT, IS_SIGNED, ...)                                           \
  METAL_SIM_INLINE float##COUNT unpack_##NAME##_to_float(WORD word) { return metal_sim::unpack<__VA_ARGS__>(word, IS_SIGNED); } \
  METAL_SIM_INLINE half##COUNT unpack_##NAME##_to_half(WORD word) { return half##COUNT(unpack_##NAME##_to_float(word)); } \
  METAL_SIM_INLINE WORD pack_float_to_##NAME(float##COUNT values) { return WORD(metal_sim::pack<__VA_ARGS__>(values, IS_SIGNED)); } \
  METAL_SIM_INLINE WORD pack_half_to_##NAME(half##COUNT values) { return pack_float_to_##NAME(float##COUNT(values)); }
METAL_SIM_PACKING(unorm4x8, uint, 4, false, 8, 8, 8, 8)
METAL_SIM_PACKING(snorm4x8, uint, 4, true, 8, 8, 8, 8)
METAL_SIM_PACKING(unorm2x16, uint, 2, false, 16, 16)
METAL_SIM_PACKING(snorm2x16, uint, 2, true, 16, 16)
METAL_SIM_PACKING(unorm10a2, uint, 4, false, 10, 10, 10, 2)
// Alpha is linear.
METAL_SIM_INLINE float4 unpack_unorm4x8_srgb_to_float(uint word) {
  float4 v = unpack_unorm4x8_to_float(word);
  for (int i = 0; i < 3; i++) v.components[i] = metal_sim::linear_of_srgb(v.components[i]);
  return v;
}
METAL_SIM_INLINE half4 unpack_unorm4x8_srgb_to_half(uint word) { return half4(unpack_unorm4x8_srgb_to_float(word)); }
METAL_SIM_INLINE uint pack_float_to_srgb_unorm4x8(float4 values) {
  for (int i = 0; i < 3; i++) values.components[i] = metal_sim::srgb_of_linear(__builtin_fmaxf(values.components[i], 0.0f));
  return pack_float_to_unorm4x8(values);
}
METAL_SIM_INLINE uint pack_half_to_srgb_unorm4x8(half4 values) { return pack_float_to_srgb_unorm4x8(float4(values)); }
}  // namespace metal
