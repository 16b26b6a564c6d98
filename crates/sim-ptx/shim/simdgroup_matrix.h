// <metal_simdgroup_matrix>: 8x8 matrices, two elements a lane, multiplied through shuffles. The layout over the lanes is
// the simulator's.
#pragma once
#pragma clang system_header
#include "matrix_layout.h"
#include "simdgroup.h"

namespace metal_sim {
METAL_SIM_INLINE uint32_t matrix_lane(uint32_t row, uint32_t column) {
  return (row & 4) << 2 | (row & 3) << 1 | (column & 4) << 1 | (column & 2) >> 1;
}
}  // namespace metal_sim

namespace metal {
template <class T, int Columns, int Rows> struct simdgroup_matrix {
  static_assert(Columns == 8 && Rows == 8, "simdgroup_matrix is 8x8");
  static_assert(is_floating_point_v<T>, "simdgroup_matrix holds half, bfloat or float");
  T elements[2];
  simdgroup_matrix() = default;
  explicit METAL_SIM_INLINE simdgroup_matrix(T diagonal) {
    uint32_t lane = metal_sim::lane_index(), row = metal_sim::matrix_row(lane), column = metal_sim::matrix_column(lane);
    elements[0] = row == column ? diagonal : T(0);
    elements[1] = row == column + 1 ? diagonal : T(0);
  }
  METAL_SIM_INLINE void set(T first, T second) { elements[0] = first; elements[1] = second; }
  // Products are there at once.
  METAL_SIM_INLINE void settle(uint32_t) const {}
  METAL_SIM_INLINE vec<T, 2>& thread_elements() { return *reinterpret_cast<vec<T, 2>*>(elements); }
  METAL_SIM_INLINE const vec<T, 2>& thread_elements() const { return *reinterpret_cast<const vec<T, 2>*>(elements); }
};
template <class D, class A, class B, class C>
METAL_SIM_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                                    const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c, METAL_SIM_SITE) {
  uint32_t lane = metal_sim::lane_index(), row = metal_sim::matrix_row(lane), column = metal_sim::matrix_column(lane);
  float left[8], a0 = metal_sim::convert<float>(a.elements[0]), a1 = metal_sim::convert<float>(a.elements[1]);
  float b0 = metal_sim::convert<float>(b.elements[0]), b1 = metal_sim::convert<float>(b.elements[1]);
  float sum0 = metal_sim::convert<float>(c.elements[0]), sum1 = metal_sim::convert<float>(c.elements[1]);
  for (uint32_t k = 0; k < 8; k += 2) {
    left[k] = metal_sim::from_lane(a0, metal_sim::matrix_lane(row, k));
    left[k + 1] = metal_sim::from_lane(a1, metal_sim::matrix_lane(row, k));
  }
  for (uint32_t k = 0; k < 8; k++) {
    sum0 += left[k] * metal_sim::from_lane(b0, metal_sim::matrix_lane(k, column));
    sum1 += left[k] * metal_sim::from_lane(b1, metal_sim::matrix_lane(k, column));
  }
  d.elements[0] = metal_sim::convert<D>(sum0);
  d.elements[1] = metal_sim::convert<D>(sum1);
}
}  // namespace metal
#include "matrix_functions.h"
