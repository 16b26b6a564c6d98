// <metal_simdgroup>, <metal_quadgroup> and the barriers, as warp instructions: both are 32 lanes wide.
//
// Every lane that exists must reach a function of these; Metal lets lanes that took another branch stay out.
#pragma once
#pragma clang system_header
#include "atomic.h"

namespace metal_sim {
// The value of another lane, word by word.
template <class T> METAL_SIM_INLINE T from_lane(const T& value, uint32_t lane) {
  constexpr int words = (sizeof(T) + 3) / 4;
  uint32_t parts[words] = {};
  __builtin_memcpy(parts, &value, sizeof(T));
  for (int i = 0; i < words; i++) parts[i] = uint32_t(__nvvm_shfl_sync_idx_i32(int(lane_mask()), int(parts[i]), int(lane), 31));
  T result;
  __builtin_memcpy((void*)&result, parts, sizeof(T));
  return result;
}
METAL_SIM_INLINE bool exists(uint32_t lane) { return lane < simd_width && (lane_mask() >> lane & 1); }
template <class T> METAL_SIM_INLINE auto plain(const T& value) {
  if constexpr (is_vector<T>) return VectorOf<T>(value);
  else return value;
}
// Combines pairs of lanes, then pairs of pairs. `width` lanes beside each other get one result.
template <class T, class F> METAL_SIM_INLINE T reduce(T value, F combine, uint32_t width) {
  for (uint32_t step = width / 2; step; step /= 2) {
    uint32_t other = lane_index() ^ step;
    T theirs = from_lane(value, other);
    if (exists(other)) value = combine(value, theirs);
  }
  // With lanes missing the results differ: the first lane's is that of all.
  if (lane_mask() != ~0u) value = from_lane(value, lane_index() & ~(width - 1));
  return value;
}
template <class T, class F> METAL_SIM_INLINE T scan(T value, F combine, uint32_t width) {
  uint32_t position = lane_index() & (width - 1);
  for (uint32_t step = 1; step < width; step *= 2) {
    T before = from_lane(value, lane_index() - step);
    if (position >= step) value = combine(before, value);
  }
  return value;
}
}  // namespace metal_sim

namespace metal {
METAL_SIM_INLINE void threadgroup_barrier(mem_flags) { __nvvm_barrier_sync(0); }
METAL_SIM_INLINE void threadgroup_barrier(mem_flags, memory_order, thread_scope = thread_scope_threadgroup) { __nvvm_barrier_sync(0); }
METAL_SIM_INLINE void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(metal_sim::lane_mask()); }

#define METAL_SIM_REDUCTION(NAME, EXPRESSION)                                                       \
  template <class S> METAL_SIM_INLINE auto simd_##NAME(const S& value) {                            \
    using T = decltype(metal_sim::plain(value));                                                    \
    return metal_sim::reduce<T>(metal_sim::plain(value), [](T a, T b) { return T(EXPRESSION); }, 32); \
  }                                                                                                 \
  template <class S> METAL_SIM_INLINE auto quad_##NAME(const S& value) {                            \
    using T = decltype(metal_sim::plain(value));                                                    \
    return metal_sim::reduce<T>(metal_sim::plain(value), [](T a, T b) { return T(EXPRESSION); }, 4); \
  }
METAL_SIM_REDUCTION(sum, a + b)
METAL_SIM_REDUCTION(product, a * b)
METAL_SIM_REDUCTION(min, min(a, b))
METAL_SIM_REDUCTION(max, max(a, b))
METAL_SIM_REDUCTION(and, a & b)
METAL_SIM_REDUCTION(or, a | b)
METAL_SIM_REDUCTION(xor, a ^ b)

#define METAL_SIM_PREFIX(SPACE, WIDTH, NAME, IDENTITY, EXPRESSION)                                  \
  template <class T> METAL_SIM_INLINE T SPACE##_prefix_inclusive_##NAME(T value) {                  \
    return metal_sim::scan<T>(value, [](T a, T b) { return T(EXPRESSION); }, WIDTH);                \
  }                                                                                                 \
  template <class T> METAL_SIM_INLINE T SPACE##_prefix_exclusive_##NAME(T value) {                  \
    T inclusive = metal_sim::scan<T>(value, [](T a, T b) { return T(EXPRESSION); }, WIDTH);         \
    T before = metal_sim::from_lane(inclusive, metal_sim::lane_index() - 1);                        \
    return metal_sim::lane_index() % WIDTH == 0 ? T(IDENTITY) : before;                             \
  }
METAL_SIM_PREFIX(simd, 32, sum, 0, a + b)
METAL_SIM_PREFIX(quad, 4, sum, 0, a + b)
METAL_SIM_PREFIX(simd, 32, product, 1, a * b)
METAL_SIM_PREFIX(quad, 4, product, 1, a * b)

#define METAL_SIM_SHUFFLE(NAME, PARAMETER, FROM)                                                    \
  template <class S> METAL_SIM_INLINE auto simd_##NAME(const S& value, ushort PARAMETER) {          \
    constexpr int width = 32;                                                                       \
    int lane = int(metal_sim::lane_index()), from = FROM;                                           \
    return metal_sim::from_lane(metal_sim::plain(value), uint32_t(from < 0 || from >= width ? lane : from)); \
  }                                                                                                 \
  template <class S> METAL_SIM_INLINE auto quad_##NAME(const S& value, ushort PARAMETER) {          \
    constexpr int width = 4;                                                                        \
    int lane = int(metal_sim::lane_index() & 3), base = int(metal_sim::lane_index()) - lane, from = FROM; \
    return metal_sim::from_lane(metal_sim::plain(value), uint32_t(base + (from < 0 || from >= width ? lane : from))); \
  }
METAL_SIM_SHUFFLE(broadcast, from_lane, int(from_lane) & (width - 1))
METAL_SIM_SHUFFLE(shuffle, from_lane, int(from_lane) & (width - 1))
METAL_SIM_SHUFFLE(shuffle_xor, mask, (lane ^ int(mask)) & (width - 1))
METAL_SIM_SHUFFLE(shuffle_down, delta, lane + int(delta))
METAL_SIM_SHUFFLE(shuffle_up, delta, lane - int(delta))
METAL_SIM_SHUFFLE(shuffle_rotate_down, delta, (lane + int(delta)) & (width - 1))
METAL_SIM_SHUFFLE(shuffle_rotate_up, delta, (lane - int(delta)) & (width - 1))

template <class T> METAL_SIM_INLINE T simd_shuffle_and_fill_down(T value, T fill, ushort delta, ushort modulo = 32) {
  uint32_t lane = metal_sim::lane_index(), in_segment = lane % modulo, base = lane - in_segment, from = in_segment + delta;
  uint32_t other = base + (from < modulo ? from : from - modulo);
  T a = metal_sim::from_lane(value, other), b = metal_sim::from_lane(fill, other);
  return from < modulo ? a : b;
}
template <class T> METAL_SIM_INLINE T simd_shuffle_and_fill_up(T value, T fill, ushort delta, ushort modulo = 32) {
  uint32_t lane = metal_sim::lane_index(), in_segment = lane % modulo, base = lane - in_segment;
  uint32_t other = base + (in_segment >= delta ? in_segment - delta : in_segment + modulo - delta);
  T a = metal_sim::from_lane(value, other), b = metal_sim::from_lane(fill, other);
  return in_segment >= delta ? a : b;
}
template <class S> METAL_SIM_INLINE auto simd_broadcast_first(const S& value) { return metal_sim::from_lane(metal_sim::plain(value), 0); }
template <class S> METAL_SIM_INLINE auto quad_broadcast_first(const S& value) {
  return metal_sim::from_lane(metal_sim::plain(value), metal_sim::lane_index() & ~3u);
}

struct simd_vote {
  typedef ulong vote_t;
  vote_t bits;
  explicit METAL_SIM_INLINE constexpr simd_vote(vote_t bits = 0) : bits(bits) {}
  explicit METAL_SIM_INLINE constexpr operator vote_t() const { return bits; }
  METAL_SIM_INLINE bool all() const { return bits == 0xffffffffu; }
  METAL_SIM_INLINE bool any() const { return bits != 0; }
};
struct quad_vote {
  typedef uint vote_t;
  vote_t bits;
  explicit METAL_SIM_INLINE constexpr quad_vote(vote_t bits = 0) : bits(bits) {}
  explicit METAL_SIM_INLINE constexpr operator vote_t() const { return bits; }
  METAL_SIM_INLINE bool all() const { return bits == 0xf; }
  METAL_SIM_INLINE bool any() const { return bits != 0; }
};
METAL_SIM_INLINE simd_vote simd_ballot(bool predicate) { return simd_vote(uint32_t(__nvvm_vote_ballot_sync(metal_sim::lane_mask(), predicate))); }
METAL_SIM_INLINE quad_vote quad_ballot(bool predicate) { return quad_vote(uint(simd_ballot(predicate).bits >> (metal_sim::lane_index() & ~3u)) & 15); }
METAL_SIM_INLINE bool simd_any(bool predicate) { return simd_ballot(predicate).any(); }
METAL_SIM_INLINE bool simd_all(bool predicate) { return !simd_ballot(!predicate).any(); }
METAL_SIM_INLINE bool quad_any(bool predicate) { return quad_ballot(predicate).any(); }
METAL_SIM_INLINE bool quad_all(bool predicate) { return !quad_ballot(!predicate).any(); }
METAL_SIM_INLINE simd_vote simd_active_threads_mask() { return simd_vote(metal_sim::lane_mask()); }
METAL_SIM_INLINE bool simd_is_first() { return metal_sim::lane_index() == 0; }
METAL_SIM_INLINE bool simd_is_helper_thread() { return false; }
METAL_SIM_INLINE ushort get_simd_width() { return 32; }
}  // namespace metal
