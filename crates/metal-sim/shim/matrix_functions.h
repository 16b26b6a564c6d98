// What all of <metal_simdgroup_matrix> has in common, whatever multiplies: names, loads, stores, and products without a third
// matrix.
#pragma once
#pragma clang system_header

namespace metal {
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C, int R = C>
METAL_SIM_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(type_identity_t<T> value) {
  simdgroup_matrix<T, C, R> result;
  result.elements[0] = result.elements[1] = value;
  return result;
}
template <class T, int C, int R = C>
METAL_SIM_INLINE simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(type_identity_t<T> value) {
  return simdgroup_matrix<T, C, R>(value);
}
template <class T>
METAL_SIM_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& matrix, const type_identity_t<T>* source, ulong elements_per_row = 8,
                                     ulong2 origin = ulong2(0), bool transpose = false) {
  uint32_t lane = metal_sim::lane_index();
  ulong row = metal_sim::matrix_row(lane), column = metal_sim::matrix_column(lane);
  source += origin.y * elements_per_row + origin.x;
  if (transpose) {
    matrix.set(source[column * elements_per_row + row], source[(column + 1) * elements_per_row + row]);
  } else {
    T pair[2];   // one access
    __builtin_memcpy(pair, source + row * elements_per_row + column, sizeof pair);
    matrix.set(pair[0], pair[1]);
  }
}
template <class T>
METAL_SIM_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& matrix, type_identity_t<T>* destination, ulong elements_per_row = 8,
                                      ulong2 origin = ulong2(0), bool transpose = false, METAL_SIM_SITE) {
  matrix.settle(site);
  uint32_t lane = metal_sim::lane_index();
  ulong row = metal_sim::matrix_row(lane), column = metal_sim::matrix_column(lane);
  destination += origin.y * elements_per_row + origin.x;
  if (transpose) {
    T* first = destination + column * elements_per_row + row;
    first[0] = matrix.elements[0];
    first[elements_per_row] = matrix.elements[1];
  } else {
    __builtin_memcpy(destination + row * elements_per_row + column, matrix.elements, sizeof matrix.elements);
  }
}
template <class D, class A, class B>
METAL_SIM_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b, METAL_SIM_SITE) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>(D(0)), site);
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
