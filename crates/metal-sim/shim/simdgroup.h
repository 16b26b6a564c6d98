// <metal_simdgroup>, <metal_quadgroup> and the barriers.
//
// A lane writes its value to the exchange area, arrives, and reads the others' values when all have arrived.
// The area has two halves, used in turn, so that a fast lane cannot overwrite what a slow one still reads.
#pragma once
#pragma clang system_header
#include "atomic.h"

namespace metal_sim {
METAL_SIM_UNCHECKED_BEGIN
// Notes where in the source this function's caller is called from, which must be one of the outlined functions.
METAL_SIM_INLINE void note_place(Lane* lane) {
#ifdef METAL_SIM_SANITIZE
  lane->place = METAL_SIM_PLACE;
#endif
}
METAL_SIM_INLINE void synchronise_simdgroup(uint32_t site) {
  Lane* lane = current_lane();
  note_place(lane);
  runtime->simd_arrive(lane, site);
}

// The values of one completed operation.
template <class T> struct Exchanged {
  SimdGroup* group;
  uint32_t lane;
  uint32_t half_index;
  METAL_SIM_INLINE T operator[](uint32_t index) const {
    T value;
    __builtin_memcpy((void*)&value, group->exchange[half_index][index & 31], sizeof(T));
    return value;
  }
  METAL_SIM_INLINE bool is_active(uint32_t index) const { return group->active >> (index & 31) & 1; }
  METAL_SIM_INLINE uint32_t first() const { return uint32_t(__builtin_ctz(group->active)); }
  METAL_SIM_INLINE uint32_t first_of_quad() const { return (lane & ~3u) + uint32_t(__builtin_ctz(group->active >> (lane & ~3u))); }
};
template <class T> METAL_SIM_INLINE Exchanged<T> exchange(const T& value, uint32_t site) {
  static_assert(sizeof(T) <= exchange_bytes, "value too wide for a SIMD-group operation");
  Lane* lane = current_lane();
  note_place(lane);
  SimdGroup* group = lane->simdgroup;
  __builtin_memcpy(group->exchange[group->generation & 1][lane->lane], &value, sizeof(T));
  runtime->simd_arrive(lane, site);
  return {group, lane->lane, (group->generation - 1) & 1};
}
// The last lane to arrive combines all values in a tree; each lane reads the one result.
template <class T, class F> METAL_SIM_INLINE T reduce(const T& value, F combine, uint32_t site) {
  static_assert(sizeof(T) <= exchange_bytes, "value too wide for a SIMD-group operation");
  Lane* lane = current_lane();
  note_place(lane);
  SimdGroup* group = lane->simdgroup;
  __builtin_memcpy(group->exchange[group->generation & 1][lane->lane], &value, sizeof(T));
  bool combines = runtime->simd_arrive(lane, site);
  uint32_t half_index = (group->generation - 1) & 1;
  if (combines) {
    T values[32];
    for (int i = 0; i < 32; i++) __builtin_memcpy((void*)&values[i], group->exchange[half_index][i], sizeof(T));
    uint32_t mask = group->active;
    if (__builtin_expect(mask == ~0u, 1)) {
      for (int width = 16; width; width >>= 1)
        for (int i = 0; i < width; i++) values[i] = combine(values[i], values[i + width]);
    } else {
      int first = __builtin_ctz(mask);
      T total = values[first];
      for (int i = first + 1; i < 32; i++)
        if (mask >> i & 1) total = combine(total, values[i]);
      values[0] = total;
    }
    __builtin_memcpy(group->result[half_index], &values[0], sizeof(T));
  }
  T result;
  __builtin_memcpy((void*)&result, group->result[half_index], sizeof(T));
  return result;
}
template <class T, class F> METAL_SIM_INLINE T reduce_quad(const T& value, F combine, uint32_t site) {
  auto values = exchange(value, site);
  T total = value;
  for (uint32_t other = values.lane & ~3u, end = other + 4; other < end; other++)
    if (other != values.lane && values.is_active(other)) total = combine(total, values[other]);
  return total;
}
// Over the lanes before this one among `width` lanes beside each other, and this one if it is inclusive.
template <bool inclusive, uint32_t width, class T, class F> METAL_SIM_INLINE T scan(const T& value, T identity, F combine, uint32_t site) {
  auto values = exchange(value, site);
  T total = identity;
  for (uint32_t i = values.lane & ~(width - 1), end = values.lane + inclusive; i < end; i++)
    if (values.is_active(i)) total = combine(total, values[i]);
  return total;
}
METAL_SIM_INLINE uint32_t ballot(bool predicate, uint32_t site) {
  auto values = exchange(uint32_t(predicate), site);
  uint32_t bits = 0;
  for (uint32_t i = 0; i < simd_width; i++) bits |= uint32_t(values.is_active(i) && values[i]) << i;
  return bits;
}
// The lanes that take part.
METAL_SIM_INLINE uint32_t active_lanes(uint32_t site) {
  synchronise_simdgroup(site);
  return current_lane()->simdgroup->active;
}
METAL_SIM_UNCHECKED_END
}  // namespace metal_sim

namespace metal {
METAL_SIM_OUTLINE void threadgroup_barrier(mem_flags flags, METAL_SIM_SITE) {
  metal_sim::Lane* lane = metal_sim::current_lane();
  metal_sim::note_place(lane);
  metal_sim::runtime->threadgroup_barrier(lane, uint32_t(flags), site);
}
// Without memory to order it only limits how far lanes drift apart, which nothing here can observe.
METAL_SIM_OUTLINE void simdgroup_barrier(mem_flags flags, METAL_SIM_SITE) {
#ifdef METAL_SIM_SANITIZE
  metal_sim::Lane* lane = metal_sim::current_lane();
  if (flags == mem_flags::mem_none) {
    // Whether the others pass it, too, shows when they next meet.
    lane->silent_barriers = lane->silent_barriers * 31 + site;
    lane->silent_place = METAL_SIM_PLACE;
    return;
  }
  metal_sim::note_place(lane);
  lane->barrier_flags = uint32_t(flags) | metal_sim::simdgroup_barrier_bit;
  metal_sim::runtime->simd_arrive(lane, site);
  lane->barrier_flags = 0;
#else
  if (flags == mem_flags::mem_none) return;
  metal_sim::synchronise_simdgroup(site);
#endif
}
}  // namespace metal
#include "simdgroup_functions.h"
