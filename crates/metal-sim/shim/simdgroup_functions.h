// The functions of <metal_simdgroup> and <metal_quadgroup>, made of what simdgroup.h has for the processor at hand: exchange,
// reduce, reduce_quad, scan, ballot, active_lanes and the barriers. All lanes that take part reach each of these together.
#pragma once
#pragma clang system_header

namespace metal {
METAL_SIM_INLINE void threadgroup_barrier(mem_flags flags, memory_order, thread_scope = thread_scope_threadgroup, METAL_SIM_SITE) {
  threadgroup_barrier(flags, site);
}

#define METAL_SIM_REDUCTION(NAME, EXPRESSION)                                                       \
  template <class S> METAL_SIM_OUTLINE auto simd_##NAME(const S& value, METAL_SIM_SITE) {            \
    using T = decltype(metal_sim::plain(value));                                                    \
    return metal_sim::reduce<T>(metal_sim::plain(value), [](T a, T b) { return T(EXPRESSION); }, site); \
  }                                                                                                 \
  template <class S> METAL_SIM_OUTLINE auto quad_##NAME(const S& value, METAL_SIM_SITE) {            \
    using T = decltype(metal_sim::plain(value));                                                    \
    return metal_sim::reduce_quad<T>(metal_sim::plain(value), [](T a, T b) { return T(EXPRESSION); }, site); \
  }
METAL_SIM_REDUCTION(sum, a + b)
METAL_SIM_REDUCTION(product, a * b)
METAL_SIM_REDUCTION(min, min(a, b))
METAL_SIM_REDUCTION(max, max(a, b))
METAL_SIM_REDUCTION(and, a & b)
METAL_SIM_REDUCTION(or, a | b)
METAL_SIM_REDUCTION(xor, a ^ b)

#define METAL_SIM_PREFIX(SPACE, WIDTH, NAME, IDENTITY, EXPRESSION)                                  \
  template <class T> METAL_SIM_OUTLINE T SPACE##_prefix_inclusive_##NAME(T value, METAL_SIM_SITE) {  \
    return metal_sim::scan<true, WIDTH>(value, T(IDENTITY), [](T a, T b) { return T(EXPRESSION); }, site); \
  }                                                                                                 \
  template <class T> METAL_SIM_OUTLINE T SPACE##_prefix_exclusive_##NAME(T value, METAL_SIM_SITE) {  \
    return metal_sim::scan<false, WIDTH>(value, T(IDENTITY), [](T a, T b) { return T(EXPRESSION); }, site); \
  }
METAL_SIM_PREFIX(simd, 32, sum, 0, a + b)
METAL_SIM_PREFIX(quad, 4, sum, 0, a + b)
METAL_SIM_PREFIX(simd, 32, product, 1, a * b)
METAL_SIM_PREFIX(quad, 4, product, 1, a * b)

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
  Pair theirs = values[base + (from < modulo ? from : from - modulo)];
  return from < modulo ? theirs.value : theirs.fill;
}
template <class T> METAL_SIM_OUTLINE T simd_shuffle_and_fill_up(T value, T fill, ushort delta, ushort modulo = 32, METAL_SIM_SITE) {
  struct Pair { T value, fill; };
  auto values = metal_sim::exchange(Pair{value, fill}, site);
  uint32_t in_segment = values.lane % modulo, base = values.lane - in_segment;
  Pair theirs = values[base + (in_segment >= delta ? in_segment - delta : in_segment + modulo - delta)];
  return in_segment >= delta ? theirs.value : theirs.fill;
}
template <class T> METAL_SIM_INLINE T quad_shuffle_and_fill_down(T value, T fill, ushort delta, ushort modulo = 4, METAL_SIM_SITE) {
  return simd_shuffle_and_fill_down(value, fill, delta, modulo, site);
}
template <class T> METAL_SIM_INLINE T quad_shuffle_and_fill_up(T value, T fill, ushort delta, ushort modulo = 4, METAL_SIM_SITE) {
  return simd_shuffle_and_fill_up(value, fill, delta, modulo, site);
}
template <class S> METAL_SIM_OUTLINE auto simd_broadcast_first(const S& value, METAL_SIM_SITE) {
  auto values = metal_sim::exchange(metal_sim::plain(value), site);
  return values[values.first()];
}
template <class S> METAL_SIM_OUTLINE auto quad_broadcast_first(const S& value, METAL_SIM_SITE) {
  auto values = metal_sim::exchange(metal_sim::plain(value), site);
  return values[values.first_of_quad()];
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
METAL_SIM_OUTLINE simd_vote simd_ballot(bool predicate, METAL_SIM_SITE) { return simd_vote(metal_sim::ballot(predicate, site)); }
METAL_SIM_INLINE quad_vote quad_ballot(bool predicate, METAL_SIM_SITE) {
  return quad_vote(uint(simd_ballot(predicate, site).bits >> (metal_sim::current_lane()->lane & ~3u)) & 15);
}
METAL_SIM_INLINE bool simd_any(bool predicate, METAL_SIM_SITE) { return simd_ballot(predicate, site).any(); }
METAL_SIM_INLINE bool simd_all(bool predicate, METAL_SIM_SITE) { return !simd_ballot(!predicate, site).any(); }
METAL_SIM_INLINE bool quad_any(bool predicate, METAL_SIM_SITE) { return quad_ballot(predicate, site).any(); }
METAL_SIM_INLINE bool quad_all(bool predicate, METAL_SIM_SITE) { return !quad_ballot(!predicate, site).any(); }
METAL_SIM_OUTLINE simd_vote simd_active_threads_mask(METAL_SIM_SITE) { return simd_vote(metal_sim::active_lanes(site)); }
METAL_SIM_OUTLINE bool simd_is_first(METAL_SIM_SITE) {
  uint32_t active = metal_sim::active_lanes(site);
  return metal_sim::current_lane()->lane == uint32_t(__builtin_ctz(active));
}
METAL_SIM_INLINE quad_vote quad_active_threads_mask(METAL_SIM_SITE) {
  return quad_vote(uint(simd_active_threads_mask(site).bits >> (metal_sim::current_lane()->lane & ~3u)) & 15);
}
METAL_SIM_INLINE bool quad_is_first(METAL_SIM_SITE) {
  uint active = quad_active_threads_mask(site).bits;
  return (metal_sim::current_lane()->lane & 3) == uint(__builtin_ctz(active));
}
METAL_SIM_INLINE bool simd_is_helper_thread() { return false; }
METAL_SIM_INLINE ushort get_simd_width() { return 32; }
}  // namespace metal
