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
// Plain type of a value that may be a swizzle.
template <class T> METAL_SIM_INLINE auto plain(const T& value) {
  if constexpr (is_vector<T>) return VectorOf<T>(value);
  else return value;
}
METAL_SIM_UNCHECKED_END
}  // namespace metal_sim

namespace metal {
METAL_SIM_OUTLINE void threadgroup_barrier(mem_flags flags, METAL_SIM_SITE) {
  metal_sim::Lane* lane = metal_sim::current_lane();
  metal_sim::note_place(lane);
  metal_sim::runtime->threadgroup_barrier(lane, uint32_t(flags), site);
}
METAL_SIM_INLINE void threadgroup_barrier(mem_flags flags, memory_order, thread_scope = thread_scope_threadgroup, METAL_SIM_SITE) {
  threadgroup_barrier(flags, site);
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

#define METAL_SIM_REDUCTION(NAME, EXPRESSION)                                                       \
  template <class S> METAL_SIM_OUTLINE auto simd_##NAME(const S& value, METAL_SIM_SITE) {            \
    using T = decltype(metal_sim::plain(value));                                                    \
    return metal_sim::reduce<T>(metal_sim::plain(value), [](T a, T b) { return T(EXPRESSION); }, site); \
  }                                                                                                 \
  template <class S> METAL_SIM_OUTLINE auto quad_##NAME(const S& value, METAL_SIM_SITE) {            \
    using T = decltype(metal_sim::plain(value));                                                    \
    auto values = metal_sim::exchange<T>(metal_sim::plain(value), site);                            \
    T a = values[values.lane];                                                                      \
    for (uint32_t other = values.lane & ~3u, end = other + 4; other < end; other++)                 \
      if (other != values.lane && values.is_active(other)) { T b = values[other]; a = T(EXPRESSION); } \
    return a;                                                                                       \
  }
METAL_SIM_REDUCTION(sum, a + b)
METAL_SIM_REDUCTION(product, a * b)
METAL_SIM_REDUCTION(min, min(a, b))
METAL_SIM_REDUCTION(max, max(a, b))
METAL_SIM_REDUCTION(and, a & b)
METAL_SIM_REDUCTION(or, a | b)
METAL_SIM_REDUCTION(xor, a ^ b)

#define METAL_SIM_PREFIX(NAME, IDENTITY, EXPRESSION)                                                \
  template <class T> METAL_SIM_OUTLINE T simd_prefix_inclusive_##NAME(T value, METAL_SIM_SITE) {     \
    auto values = metal_sim::exchange(value, site);                                                 \
    T a = T(IDENTITY);                                                                              \
    for (uint32_t i = 0; i <= values.lane; i++)                                                     \
      if (values.is_active(i)) { T b = values[i]; a = T(EXPRESSION); }                              \
    return a;                                                                                       \
  }                                                                                                 \
  template <class T> METAL_SIM_OUTLINE T simd_prefix_exclusive_##NAME(T value, METAL_SIM_SITE) {     \
    auto values = metal_sim::exchange(value, site);                                                 \
    T a = T(IDENTITY);                                                                              \
    for (uint32_t i = 0; i < values.lane; i++)                                                      \
      if (values.is_active(i)) { T b = values[i]; a = T(EXPRESSION); }                              \
    return a;                                                                                       \
  }                                                                                                 \
  template <class T> METAL_SIM_OUTLINE T quad_prefix_inclusive_##NAME(T value, METAL_SIM_SITE) {     \
    auto values = metal_sim::exchange(value, site);                                                 \
    T a = T(IDENTITY);                                                                              \
    for (uint32_t i = values.lane & ~3u; i <= values.lane; i++)                                     \
      if (values.is_active(i)) { T b = values[i]; a = T(EXPRESSION); }                              \
    return a;                                                                                       \
  }                                                                                                 \
  template <class T> METAL_SIM_OUTLINE T quad_prefix_exclusive_##NAME(T value, METAL_SIM_SITE) {     \
    auto values = metal_sim::exchange(value, site);                                                 \
    T a = T(IDENTITY);                                                                              \
    for (uint32_t i = values.lane & ~3u; i < values.lane; i++)                                      \
      if (values.is_active(i)) { T b = values[i]; a = T(EXPRESSION); }                              \
    return a;                                                                                       \
  }
METAL_SIM_PREFIX(sum, 0, a + b)
METAL_SIM_PREFIX(product, 1, a * b)

// Shuffles: WIDTH lanes exchange; FROM says which of them a lane reads.
#define METAL_SIM_SHUFFLE(NAME, PARAMETER, FROM)                                                    \
  template <class S> METAL_SIM_OUTLINE auto simd_##NAME(const S& value, ushort PARAMETER, METAL_SIM_SITE) { \
    constexpr int width = 32;                                                                       \
    auto values = metal_sim::exchange(metal_sim::plain(value), site);                               \
    int lane = int(values.lane), base = 0, from = FROM;                                             \
    return values[uint32_t(base + (from < 0 || from >= width ? lane : from))];                      \
  }                                                                                                 \
  template <class S> METAL_SIM_OUTLINE auto quad_##NAME(const S& value, ushort PARAMETER, METAL_SIM_SITE) { \
    constexpr int width = 4;                                                                        \
    auto values = metal_sim::exchange(metal_sim::plain(value), site);                               \
    int lane = int(values.lane & 3), base = int(values.lane) - lane, from = FROM;                   \
    return values[uint32_t(base + (from < 0 || from >= width ? lane : from))];                      \
  }
METAL_SIM_SHUFFLE(broadcast, from_lane, int(from_lane) & (width - 1))
METAL_SIM_SHUFFLE(shuffle, from_lane, int(from_lane) & (width - 1))
METAL_SIM_SHUFFLE(shuffle_xor, mask, (lane ^ int(mask)) & (width - 1))
METAL_SIM_SHUFFLE(shuffle_down, delta, lane + int(delta))
METAL_SIM_SHUFFLE(shuffle_up, delta, lane - int(delta))
METAL_SIM_SHUFFLE(shuffle_rotate_down, delta, (lane + int(delta)) & (width - 1))
METAL_SIM_SHUFFLE(shuffle_rotate_up, delta, (lane - int(delta)) & (width - 1))

template <class T> METAL_SIM_OUTLINE T simd_shuffle_and_fill_down(T value, T fill, ushort delta, ushort modulo = 32, METAL_SIM_SITE) {
  struct Pair { T value, fill; };
  auto values = metal_sim::exchange(Pair{value, fill}, site);
  uint32_t in_segment = values.lane % modulo, base = values.lane - in_segment, from = in_segment + delta;
  return from < modulo ? values[base + from].value : values[base + from - modulo].fill;
}
template <class T> METAL_SIM_OUTLINE T simd_shuffle_and_fill_up(T value, T fill, ushort delta, ushort modulo = 32, METAL_SIM_SITE) {
  struct Pair { T value, fill; };
  auto values = metal_sim::exchange(Pair{value, fill}, site);
  uint32_t in_segment = values.lane % modulo, base = values.lane - in_segment;
  return in_segment >= delta ? values[base + in_segment - delta].value : values[base + in_segment + modulo - delta].fill;
}
template <class S> METAL_SIM_OUTLINE auto simd_broadcast_first(const S& value, METAL_SIM_SITE) {
  auto values = metal_sim::exchange(metal_sim::plain(value), site);
  return values[__builtin_ctz(values.group->active)];
}
template <class S> METAL_SIM_OUTLINE auto quad_broadcast_first(const S& value, METAL_SIM_SITE) {
  auto values = metal_sim::exchange(metal_sim::plain(value), site);
  return values[__builtin_ctz(values.group->active >> (values.lane & ~3u)) + (values.lane & ~3u)];
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
METAL_SIM_OUTLINE simd_vote simd_ballot(bool predicate, METAL_SIM_SITE) {
  auto values = metal_sim::exchange(uint32_t(predicate), site);
  ulong bits = 0;
  for (uint32_t i = 0; i < 32; i++) bits |= ulong(values.is_active(i) && values[i]) << i;
  return simd_vote(bits);
}
METAL_SIM_INLINE quad_vote quad_ballot(bool predicate, METAL_SIM_SITE) {
  return quad_vote(uint(simd_ballot(predicate, site).bits >> (metal_sim::current_lane()->lane & ~3u)) & 15);
}
METAL_SIM_INLINE bool simd_any(bool predicate, METAL_SIM_SITE) { return simd_ballot(predicate, site).any(); }
METAL_SIM_INLINE bool simd_all(bool predicate, METAL_SIM_SITE) { return !simd_ballot(!predicate, site).any(); }
METAL_SIM_INLINE bool quad_any(bool predicate, METAL_SIM_SITE) { return quad_ballot(predicate, site).any(); }
METAL_SIM_INLINE bool quad_all(bool predicate, METAL_SIM_SITE) { return !quad_ballot(!predicate, site).any(); }
METAL_SIM_OUTLINE simd_vote simd_active_threads_mask(METAL_SIM_SITE) {
  metal_sim::synchronise_simdgroup(site);
  return simd_vote(metal_sim::current_lane()->simdgroup->active);
}
METAL_SIM_OUTLINE bool simd_is_first(METAL_SIM_SITE) {
  metal_sim::synchronise_simdgroup(site);
  auto lane = metal_sim::current_lane();
  return lane->lane == uint32_t(__builtin_ctz(lane->simdgroup->active));
}
METAL_SIM_INLINE bool simd_is_helper_thread() { return false; }
METAL_SIM_INLINE ushort get_simd_width() { return 32; }
}  // namespace metal
