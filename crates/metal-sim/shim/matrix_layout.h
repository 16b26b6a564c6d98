// Where the elements of an 8x8 simdgroup_matrix are: two to a lane.
#pragma once
#pragma clang system_header
#include "types.h"

namespace metal_sim {
// The position of a lane's first element; the second one is to its right. This is the layout of Apple's GPUs.
__attribute__((always_inline)) inline uint32_t matrix_row(uint32_t lane) { return (lane >> 2 & 4) + (lane >> 1 & 3); }
__attribute__((always_inline)) inline uint32_t matrix_column(uint32_t lane) { return (lane >> 2 & 2) * 2 + (lane & 1) * 2; }
}  // namespace metal_sim
