// The foundation of the shim on an NVIDIA GPU: types, macros and what a thread can ask about itself.
//
// The headers that know no runtime (vectors, mathematics, atomics) are those of the simulator; this one, simdgroup.h,
// simdgroup_matrix.h and context.h take the place of its own.
#pragma once
#pragma clang system_header
#define METAL_SIM_INLINE inline __attribute__((always_inline))
#define METAL_SIM_OUTLINE METAL_SIM_INLINE
#define METAL_SIM_ENTRY METAL_SIM_INLINE
#define METAL_SIM_FENCE() __nvvm_membar_gl()
// How a loop is to be compiled: on a GPU unrolling is what makes registers of arrays.
#define METAL_SIM_LOOP(DIRECTIVE) _Pragma(DIRECTIVE)
#define METAL_SIM_UNCHECKED
#define METAL_SIM_UNCHECKED_BEGIN
#define METAL_SIM_UNCHECKED_END
#define METAL_SIM_SITE uint32_t site = 0
#define METAL_SIM_PLACE 0u

#include "types.h"

// clang's builtins become intrinsics that the PTX back end has no code for: these are its approximations, and what can
// be made of them.
METAL_SIM_INLINE float ptx_exp2(float x) { return __nvvm_ex2_approx_f(x); }
METAL_SIM_INLINE float ptx_exp(float x) { return __nvvm_ex2_approx_f(x * 1.44269504088896340736f); }
METAL_SIM_INLINE float ptx_log2(float x) { return __nvvm_lg2_approx_f(x); }
METAL_SIM_INLINE float ptx_log(float x) { return __nvvm_lg2_approx_f(x) * 0.69314718055994530942f; }
METAL_SIM_INLINE float ptx_log10(float x) { return __nvvm_lg2_approx_f(x) * 0.30102999566398119521f; }
METAL_SIM_INLINE float ptx_sqrt(float x) { return __nvvm_sqrt_rn_f(x); }
METAL_SIM_INLINE float ptx_abs(float x) { return x < 0.0f ? -x : x; }
METAL_SIM_INLINE float ptx_trunc(float x) { return __nvvm_trunc_f(x); }
METAL_SIM_INLINE float ptx_pow(float x, float y) {
  // Of a negative number to an integer power.
  if (x < 0.0f && ptx_trunc(y) == y) {
    float magnitude = ptx_exp2(y * ptx_log2(-x)), half_of_y = y * 0.5f;
    return ptx_trunc(half_of_y) == half_of_y ? magnitude : -magnitude;
  }
  return y == 0.0f ? 1.0f : ptx_exp2(y * ptx_log2(x));
}
// To the nearest multiple of a quarter turn, in three steps, then a polynomial: good to a few units in the last place for
// arguments up to a few thousand.
METAL_SIM_INLINE float ptx_sin_turned(float x, int quarters) {
  float n = __nvvm_trunc_f(x * 0.636619772367581343076f + (x < 0.0f ? -0.5f : 0.5f));
  float r = __nvvm_fma_rn_f(n, -1.57079601287841796875f, x);
  r = __nvvm_fma_rn_f(n, -3.1391647326017846353e-7f, r);
  r = __nvvm_fma_rn_f(n, -5.3903029534742383e-15f, r);
  float s = r * r;
  float sine = r + r * s * (-0.16666666641626f + s * (0.00833333167f + s * (-0.000198408743f + s * 2.75285562e-6f)));
  float cosine = 1.0f + s * (-0.5f + s * (0.0416666641f + s * (-0.00138888228f + s * 2.47604e-5f)));
  int q = int(n) + quarters;
  float value = q & 1 ? cosine : sine;
  return q & 2 ? -value : value;
}
METAL_SIM_INLINE float ptx_sin(float x) { return ptx_sin_turned(x, 0); }
METAL_SIM_INLINE float ptx_cos(float x) { return ptx_sin_turned(x, 1); }
METAL_SIM_INLINE float ptx_tan(float x) { return ptx_sin(x) / ptx_cos(x); }
METAL_SIM_INLINE float ptx_tanh(float x) {
  float magnitude = ptx_abs(x);
  if (magnitude < 0.125f) { float s = x * x; return x + x * s * (-0.333333333f + s * (0.133333333f - s * 0.053968254f)); }
  float e = ptx_exp(-2.0f * magnitude), t = (1.0f - e) / (1.0f + e);
  return x < 0.0f ? -t : t;
}
METAL_SIM_INLINE float ptx_sinh(float x) { return ptx_abs(x) < 0.125f ? x + x * x * x * 0.166666667f : 0.5f * (ptx_exp(x) - ptx_exp(-x)); }
METAL_SIM_INLINE float ptx_cosh(float x) { return 0.5f * (ptx_exp(x) + ptx_exp(-x)); }
METAL_SIM_INLINE float ptx_round(float x) { float t = __nvvm_trunc_f(x); return ptx_abs(x - t) >= 0.5f ? t + (x < 0.0f ? -1.0f : 1.0f) : t; }
METAL_SIM_INLINE float ptx_atan(float x) {
  float magnitude = ptx_abs(x), base = 0.0f, sign = x < 0.0f ? -1.0f : 1.0f;
  if (magnitude > 2.414213562f) { base = 1.57079632679f; magnitude = -1.0f / magnitude; }
  else if (magnitude > 0.4142135624f) { base = 0.785398163397f; magnitude = (magnitude - 1.0f) / (magnitude + 1.0f); }
  float s = magnitude * magnitude;
  float value = magnitude + magnitude * s * (-0.333329491f + s * (0.199777106f + s * (-0.138776856f + s * 0.0805374449f)));
  return sign * (base + value);
}
METAL_SIM_INLINE float ptx_atan2(float y, float x) {
  if (x == 0.0f) return y == 0.0f ? 0.0f : y > 0.0f ? 1.57079632679f : -1.57079632679f;
  float value = ptx_atan(y / x);
  return x > 0.0f ? value : y < 0.0f ? value - 3.14159265359f : value + 3.14159265359f;
}
METAL_SIM_INLINE float ptx_asin(float x) { return ptx_atan2(x, ptx_sqrt((1.0f - x) * (1.0f + x))); }
METAL_SIM_INLINE float ptx_acos(float x) { return 1.57079632679f - ptx_asin(x); }
METAL_SIM_INLINE float ptx_asinh(float x) { float a = ptx_abs(x), v = ptx_log(a + ptx_sqrt(a * a + 1.0f)); return x < 0.0f ? -v : v; }
METAL_SIM_INLINE float ptx_acosh(float x) { return ptx_log(x + ptx_sqrt(x * x - 1.0f)); }
METAL_SIM_INLINE float ptx_atanh(float x) { return 0.5f * ptx_log((1.0f + x) / (1.0f - x)); }
METAL_SIM_INLINE float ptx_fmod(float x, float y) { return __nvvm_fma_rn_f(-__nvvm_trunc_f(x / y), y, x); }
METAL_SIM_INLINE int ptx_ilogb(float x) { return int(__nvvm_floor_f(ptx_log2(ptx_abs(x)))); }
METAL_SIM_INLINE float ptx_ldexp(float x, int e) {
  int first = e / 2;
  return x * ptx_exp2(float(first)) * ptx_exp2(float(e - first));
}
METAL_SIM_INLINE float ptx_frexp(float x, int* e) {
  if (x == 0.0f) { *e = 0; return x; }
  *e = ptx_ilogb(x) + 1;
  float m = ptx_ldexp(x, -*e);
  if (ptx_abs(m) >= 1.0f) { m *= 0.5f; *e += 1; }
  if (ptx_abs(m) < 0.5f) { m *= 2.0f; *e -= 1; }
  return m;
}
METAL_SIM_INLINE float ptx_nextafter(float x, float y) {
  if (x == y) return y;
  uint bits;
  __builtin_memcpy(&bits, &x, 4);
  if (x == 0.0f) bits = y > 0.0f ? 1u : 0x80000001u;
  else bits += (x < y) == (x > 0.0f) ? 1u : ~0u;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
#define __builtin_exp2f ptx_exp2
#define __builtin_expf ptx_exp
#define __builtin_log2f ptx_log2
#define __builtin_logf ptx_log
#define __builtin_log10f ptx_log10
#define __builtin_sqrtf ptx_sqrt
#define __builtin_powf ptx_pow
#define __builtin_sinf ptx_sin
#define __builtin_cosf ptx_cos
#define __builtin_tanf ptx_tan
#define __builtin_tanhf ptx_tanh
#define __builtin_sinhf ptx_sinh
#define __builtin_coshf ptx_cosh
#define __builtin_roundf ptx_round
#define __builtin_atanf ptx_atan
#define __builtin_atan2f ptx_atan2
#define __builtin_asinf ptx_asin
#define __builtin_acosf ptx_acos
#define __builtin_asinhf ptx_asinh
#define __builtin_acoshf ptx_acosh
#define __builtin_atanhf ptx_atanh
#define __builtin_fmodf ptx_fmod
#define __builtin_ilogbf ptx_ilogb
#define __builtin_ldexpf ptx_ldexp
#define __builtin_frexpf ptx_frexp
#define __builtin_nextafterf ptx_nextafter

namespace metal_sim {

// What a launch passes to a kernel; mirrors `Arguments` in src/launch.rs.
struct Arguments {
  char* buffers[31];
  uint32_t dynamic_memory[31];    // offset of each slot in the launch's shared memory
  Uint3 offset;                   // of this launch's first threadgroup in the grid
  Uint3 threadgroups, grid, dispatch_size;
};

METAL_SIM_INLINE Uint3 thread_position() {
  return {uint32_t(__nvvm_read_ptx_sreg_tid_x()), uint32_t(__nvvm_read_ptx_sreg_tid_y()), uint32_t(__nvvm_read_ptx_sreg_tid_z())};
}
METAL_SIM_INLINE Uint3 threadgroup_size() {
  return {uint32_t(__nvvm_read_ptx_sreg_ntid_x()), uint32_t(__nvvm_read_ptx_sreg_ntid_y()), uint32_t(__nvvm_read_ptx_sreg_ntid_z())};
}
METAL_SIM_INLINE uint32_t thread_index() {
  Uint3 position = thread_position(), size = threadgroup_size();
  return position.x + size.x * (position.y + size.y * position.z);
}
METAL_SIM_INLINE uint32_t lane_index() { return thread_index() & (simd_width - 1); }
// The lanes that exist in this thread's SIMD-group: it is the last one that may have fewer.
METAL_SIM_INLINE uint32_t lane_mask() {
  uint32_t rest = volume(threadgroup_size()) - (thread_index() & ~(simd_width - 1));
  return rest >= simd_width ? ~0u : (1u << rest) - 1;
}
struct Lane { uint32_t lane; const Lane* operator->() const { return this; } };
METAL_SIM_INLINE Lane current_lane() { return {lane_index()}; }
}  // namespace metal_sim
