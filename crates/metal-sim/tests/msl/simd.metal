// SIMD-group functions: each kernel writes one value per thread.
#include <metal_stdlib>
using namespace metal;

#define KERNEL(NAME, TYPE, EXPRESSION)                                              \
    kernel void NAME(device const TYPE* in [[buffer(0)]], device TYPE* out [[buffer(1)]], \
                     uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) { \
        TYPE x = in[i];                                                             \
        out[i] = EXPRESSION;                                                        \
    }

KERNEL(sum_int, int, simd_sum(x))
KERNEL(product_int, int, simd_product(x))
KERNEL(min_int, int, simd_min(x))
KERNEL(max_int, int, simd_max(x))
KERNEL(and_int, int, simd_and(x))
KERNEL(or_int, int, simd_or(x))
KERNEL(xor_int, int, simd_xor(x))
KERNEL(prefix_inclusive_int, int, simd_prefix_inclusive_sum(x))
KERNEL(prefix_exclusive_int, int, simd_prefix_exclusive_sum(x))
KERNEL(prefix_inclusive_product_int, int, simd_prefix_inclusive_product(x))
KERNEL(prefix_exclusive_product_int, int, simd_prefix_exclusive_product(x))
KERNEL(shuffle_int, int, simd_shuffle(x, ushort(lane * 7 % 32)))
KERNEL(shuffle_xor_int, int, simd_shuffle_xor(x, 5))
KERNEL(shuffle_up_int, int, simd_shuffle_up(x, 3))
KERNEL(shuffle_down_int, int, simd_shuffle_down(x, 3))
KERNEL(rotate_up_int, int, simd_shuffle_rotate_up(x, 3))
KERNEL(rotate_down_int, int, simd_shuffle_rotate_down(x, 3))
KERNEL(fill_up_int, int, simd_shuffle_and_fill_up(x, 1000 + x, 3))
KERNEL(fill_down_int, int, simd_shuffle_and_fill_down(x, 1000 + x, 3))
KERNEL(fill_up_8_int, int, simd_shuffle_and_fill_up(x, 1000 + x, 3, 8))
KERNEL(fill_down_8_int, int, simd_shuffle_and_fill_down(x, 1000 + x, 3, 8))
KERNEL(broadcast_int, int, simd_broadcast(x, 9))
KERNEL(broadcast_first_int, int, simd_broadcast_first(x))
KERNEL(any_int, int, simd_any(x == 5))
KERNEL(all_int, int, simd_all(x < 1000))
KERNEL(ballot_int, int, int(ulong(simd_ballot((x & 1) != 0))))
KERNEL(active_int, int, int(ulong(simd_active_threads_mask())))
KERNEL(first_int, int, simd_is_first())
KERNEL(sum_float, float, simd_sum(x))
KERNEL(max_float, float, simd_max(x))
KERNEL(quad_sum_int, int, quad_sum(x))
KERNEL(quad_max_int, int, quad_max(x))
KERNEL(quad_broadcast_int, int, quad_broadcast(x, 2))
KERNEL(quad_xor_int, int, quad_shuffle_xor(x, 1))
KERNEL(quad_up_int, int, quad_shuffle_up(x, 1))
KERNEL(quad_down_int, int, quad_shuffle_down(x, 1))
KERNEL(quad_rotate_down_int, int, quad_shuffle_rotate_down(x, 1))
KERNEL(quad_prefix_int, int, quad_prefix_inclusive_sum(x))
KERNEL(quad_all_int, int, quad_all(x >= 4))
KERNEL(quad_ballot_int, int, int(uint(quad_ballot((x & 1) != 0))))

// Vectors go through SIMD-group functions component by component.
kernel void sum_float4(device const float4* in [[buffer(0)]], device float4* out [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) {
    out[i] = simd_sum(in[i]);
}
kernel void shuffle_half4(device const half4* in [[buffer(0)]], device half4* out [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
    out[i] = simd_shuffle_xor(in[i], 16);
}

// Only the threads of one branch take part.
kernel void divergent_sum(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                          uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    int x = in[i];
    if (lane < 10) {
        out[i] = simd_sum(x);
    } else {
        out[i] = -simd_sum(x);
    }
}
// Threads leave the loop one by one.
kernel void divergent_loop(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                           uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    int total = 0;
    for (uint step = 0; step <= lane; step++) {
        total += simd_sum(1);
    }
    out[i] = total + 1000 * simd_sum(1);
}
// Some threads return before the operation.
kernel void early_return(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                         uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    out[i] = 0;
    if (lane % 3 == 0) return;
    out[i] = simd_sum(1);
}
