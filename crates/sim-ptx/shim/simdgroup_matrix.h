// <metal_simdgroup_matrix>: 8x8 matrices, two elements a lane, multiplied through shuffles. The layout over the lanes is
// the simulator's.
#pragma once
#pragma clang system_header
#include "simdgroup.h"

namespace metal_sim {
METAL_SIM_INLINE uint32_t matrix_row(uint32_t lane) { return (lane >> 2 & 4) + (lane >> 1 & 3); }
METAL_SIM_INLINE uint32_t matrix_column(uint32_t lane) { return (lane >> 2 & 2) * 2 + (lane & 1) * 2; }
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
  METAL_SIM_INLINE vec<T, 2>& thread_elements() { return *reinterpret_cast<vec<T, 2>*>(elements); }
  METAL_SIM_INLINE const vec<T, 2>& thread_elements() const { return *reinterpret_cast<const vec<T, 2>*>(elements); }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C, int R = C> METAL_SIM_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(type_identity_t<T> value) {
  simdgroup_matrix<T, C, R> result;
  result.elements[0] = result.elements[1] = value;
  return result;
}
template <class T, int C, int R = C> METAL_SIM_INLINE simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(type_identity_t<T> value) {
  return simdgroup_matrix<T, C, R>(value);
}
template <class T>
METAL_SIM_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, const type_identity_t<T>* source, ulong elements_per_row = 8,
                                     ulong2 origin = ulong2(0), bool transpose = false) {
  uint32_t lane = metal_sim::lane_index();
  ulong row = metal_sim::matrix_row(lane), column = metal_sim::matrix_column(lane);
  source += origin.y * elements_per_row + origin.x;
  matrix.elements[0] = transpose ? source[column * elements_per_row + row] : source[row * elements_per_row + column];
  matrix.elements[1] = transpose ? source[(column + 1) * elements_per_row + row] : source[row * elements_per_row + column + 1];
}
template <class T>
METAL_SIM_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, type_identity_t<T>* destination, ulong elements_per_row = 8,
                                      ulong2 origin = ulong2(0), bool transpose = false) {
  uint32_t lane = metal_sim::lane_index();
  ulong row = metal_sim::matrix_row(lane), column = metal_sim::matrix_column(lane);
  destination += origin.y * elements_per_row + origin.x;
  ulong step = transpose ? elements_per_row : 1;
  T* first = transpose ? destination + column * elements_per_row + row : destination + row * elements_per_row + column;
  first[0] = matrix.elements[0];
  first[step] = matrix.elements[1];
}
template <class D, class A, class B, class C>
METAL_SIM_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                                    const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c) {
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
template <class D, class A, class B>
METAL_SIM_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)));
}
template <class T>
METAL_SIM_INLINE simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8>& a, const simdgroup_matrix<T, 8, 8>& b) {
  simdgroup_matrix<T, 8, 8> result;
  simdgroup_multiply(result, a, b);
  return result;
}
}  // namespace metal
using metal::simdgroup_bfloat8x8;
using metal::simdgroup_float8x8;
using metal::simdgroup_half8x8;
