// Kernels that go wrong.
#include <metal_stdlib>
using namespace metal;

struct Arguments { uint a, b; float4 c; };

kernel void past_the_end(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    out[i] = in[i + (i == 5 ? 4096u : 0u)];
}
kernel void unaligned(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    if (i == 3) *(device float4*)(out + in[0]) = float4(i);
}
kernel void divide(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    out[i] = 100 / in[i];
}
kernel void endless(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    while (in[0] == 0) { out[i] += 1; }
}
kernel void endless_and_empty(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    while (in[0] == 0) {}
    out[i] = 1;
}
kernel void endless_with_barriers(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    while (in[0] == 0) {
        threadgroup_barrier(mem_flags::mem_device);
        out[i] += simd_sum(1);
    }
}
kernel void deep(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    volatile int large[100000];
    for (int k = 0; k < 100000; k++) large[k] = k + i;
    out[i] = large[in[0]];
}
kernel void good(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    out[i] = in[i] + 1;
}
kernel void arguments(constant Arguments& arguments [[buffer(1)]], device float* out [[buffer(2)]],
                      threadgroup float* scratch [[threadgroup(1)]], uint i [[thread_position_in_grid]]) {
    scratch[i] = arguments.c.x;
    out[i] = scratch[i] + arguments.a;
}
kernel void greedy(device int* out [[buffer(0)]], threadgroup int* dynamic [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup int large[8000];
    large[i] = i;
    dynamic[i] = large[i];
    out[i] = dynamic[i];
}
[[max_total_threads_per_threadgroup(64)]]
kernel void small(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = 1; }
// Two habits of code for lockstep, each short of barriers: a sum in a tree, and a first lane that overwrites what all read.
kernel void lockstep(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                     uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
    threadgroup int sums[32];
    threadgroup int shared;
    sums[lane] = in[i];
    if (lane == 0) shared = 5;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 16; step > 0; step /= 2)
        if (lane < step) sums[lane] += sums[lane + step];
    int before = shared;
    if (lane == 0) shared = 6;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = 10 * sums[0] + before;
}
kernel void asserts(device const int* in [[buffer(0)]], device int* out [[buffer(3)]], uint i [[thread_position_in_grid]]) {
    assert(in[i] == 1);
    out[i] = in[i] + 1;
}
