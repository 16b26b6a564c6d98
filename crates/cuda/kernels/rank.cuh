// The order of the elements of a row by which a token is chosen of its logits.
#pragma once
#include "common.cuh"

// The order of rank of elements as integers, above 0: what is no finite number comes before all others. Zeros of either sign
// are equal.
__device__ __forceinline__ u32 key_of(float v) {
    const u32 bits = __float_as_uint(v == 0 ? 0.0f : v);
    if ((bits & 0x7fffffff) >= 0x7f800000) return 0xffffffffu;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
// The same with the element's number, which no two elements share: among equals the first comes first.
__device__ __forceinline__ u64 rank_of(float v, u32 index) { return (u64)key_of(v) << 32 | (u32)~index; }
__device__ __forceinline__ u32 index_of(u64 rank) { return ~(u32)rank; }
__device__ __forceinline__ u64 best_of_warp(u64 best) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) best = max(best, __shfl_xor_sync(FULL, best, i));
    return best;
}
