// Sums each block of 256 numbers, with a mistake.
#include <metal_stdlib>
using namespace metal;

kernel void block_sum(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                      uint block [[threadgroup_position_in_grid]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup float sums[256];
    sums[i] = in[block * 256 + i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint width = 128; width > 0; width /= 2) {
        if (i < width) sums[i] += sums[i + width];
        // Threads of one SIMD-group run in lockstep, or do they?
        if (width > 32) threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (i == 0) out[block] = sums[0];
}
