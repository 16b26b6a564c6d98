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
// Combines pairs of lanes, then pairs of pairs. `width` lanes beside each other get one result.
template <uint32_t width, class T, class F> METAL_SIM_INLINE T reduce_lanes(T value, F combine) {
  for (uint32_t step = width / 2; step; step /= 2) {
    uint32_t other = lane_index() ^ step;
    T theirs = from_lane(value, other);
    if (exists(other)) value = combine(value, theirs);
  }
  // With lanes missing the results differ: the first lane's is that of all.
  if (lane_mask() != ~0u) value = from_lane(value, lane_index() & ~(width - 1));
  return value;
}
template <class T, class F> METAL_SIM_INLINE T reduce(const T& value, F combine, uint32_t) { return reduce_lanes<simd_width>(value, combine); }
template <class T, class F> METAL_SIM_INLINE T reduce_quad(const T& value, F combine, uint32_t) { return reduce_lanes<4>(value, combine); }
template <bool inclusive, uint32_t width, class T, class F> METAL_SIM_INLINE T scan(T value, T identity, F combine, uint32_t) {
  uint32_t position = lane_index() & (width - 1);
  for (uint32_t step = 1; step < width; step *= 2) {
    T before = from_lane(value, lane_index() - step);
    if (position >= step) value = combine(before, value);
  }
  if constexpr (inclusive) return value;
  T before = from_lane(value, lane_index() - 1);
  return position == 0 ? identity : before;
}
// The values of all lanes.
template <class T> struct Exchanged {
  T value;
  uint32_t lane;
  METAL_SIM_INLINE T operator[](uint32_t index) const { return from_lane(value, index); }
  METAL_SIM_INLINE uint32_t first() const { return 0; }
  METAL_SIM_INLINE uint32_t first_of_quad() const { return lane & ~3u; }
};
template <class T> METAL_SIM_INLINE Exchanged<T> exchange(const T& value, uint32_t) { return {value, lane_index()}; }
METAL_SIM_INLINE uint32_t ballot(bool predicate, uint32_t) { return uint32_t(__nvvm_vote_ballot_sync(lane_mask(), predicate)); }
METAL_SIM_INLINE uint32_t active_lanes(uint32_t) { return lane_mask(); }
}  // namespace metal_sim

namespace metal {
METAL_SIM_INLINE void threadgroup_barrier(mem_flags, METAL_SIM_SITE) { __nvvm_barrier_sync(0); }
METAL_SIM_INLINE void simdgroup_barrier(mem_flags) { __nvvm_bar_warp_sync(metal_sim::lane_mask()); }
}  // namespace metal
#include "simdgroup_functions.h"
