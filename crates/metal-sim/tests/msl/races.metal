// Races within a threadgroup, and what only looks like one.
#include <metal_stdlib>
using namespace metal;

kernel void missing_barrier(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                            threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];  // @missing_barrier write
    out[i] = shared[63 - i];  // @missing_barrier read
}
// Lanes of one SIMD-group do not run in lockstep.
kernel void lockstep(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                     threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];  // @lockstep write
    out[i] = shared[i ^ 1];  // @lockstep read
}
// A reduction that stops to wait when 32 threads are left.
kernel void warp_reduction(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                           threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint width = 32; width > 0; width /= 2) {
        if (i < width) shared[i] += shared[i + width];  // @warp_reduction
        if (width > 32) threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[i] = i == 0 ? shared[0] : 0;
}
// The barrier waits, but orders another kind of memory.
kernel void wrong_flags(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                        threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];  // @wrong_flags write
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = shared[63 - i];  // @wrong_flags read
}
kernel void device_memory(device int* data [[buffer(0)]], device int* out [[buffer(1)]],
                          uint i [[thread_index_in_threadgroup]]) {
    data[i] = i;  // @device_memory write
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = data[63 - i];  // @device_memory read
}
// The tile is loaded again while others still read it.
kernel void write_after_read(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                             threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    int sum = 0;
    for (int tile = 0; tile < 4; tile++) {
        shared[i] = in[i];  // @write_after_read write
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sum += shared[(i + 32) % 64];  // @write_after_read read
    }
    out[i] = sum;
}
kernel void all_write(device int* out [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
    out[0] = i;  // @all_write
}
kernel void plain_and_atomic(device atomic_int* counter [[buffer(0)]], device int* out [[buffer(1)]],
                             uint i [[thread_index_in_threadgroup]]) {
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);  // @plain_and_atomic atomic
    if (i == 40) out[0] = *(device int*)counter;  // @plain_and_atomic plain
}

// ---- innocent ---------------------------------------------------------------------------------------
kernel void reduction_tree(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                           threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];
    for (uint width = 32; width > 0; width /= 2) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i < width) shared[i] += shared[i + width];
    }
    if (i == 0) out[0] = shared[0];
}
kernel void simdgroup_ordered(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                              threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    int other = shared[i ^ 1];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    shared[i] = other;
    simdgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = shared[i ^ 3];
}
kernel void double_buffered(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                            threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    int sum = 0;
    shared[i] = in[i];
    for (int tile = 0; tile < 6; tile++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (tile < 5) shared[(tile + 1) % 2 * 64 + i] = in[i] + tile;
        sum += shared[tile % 2 * 64 + 63 - i];
    }
    out[i] = sum;
}
// Neighbouring halves and bytes belong to different threads.
kernel void neighbours(device int* out [[buffer(1)]], threadgroup int* shared [[threadgroup(0)]],
                       uint i [[thread_index_in_threadgroup]]) {
    threadgroup half* halves = (threadgroup half*)shared;
    threadgroup uchar* bytes = (threadgroup uchar*)(halves + 64);
    halves[i] = half(i);
    bytes[i] = uchar(i);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device half* out_halves = (device half*)out;
    device uchar* out_bytes = (device uchar*)(out + 32);
    out_halves[i] = halves[63 - i];
    out_bytes[i] = bytes[63 - i];
    // Later as something else.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    shared[i] = i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ((device uchar*)(out + 48))[i] = uchar(shared[63 - i]);
}
// Two threads write the two halves of each vector.
kernel void halves_of_a_vector(device uint4* out [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
    if (i % 2 == 0) out[i / 2].xy = uint2(i);
    else out[i / 2].zw = uint2(i);
}
kernel void atomics_only(device atomic_int* counter [[buffer(0)]], device int* out [[buffer(1)]],
                         threadgroup atomic_int* local [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    if (i == 0) atomic_store_explicit(local, 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(local, 1, memory_order_relaxed);
    atomic_fetch_max_explicit(counter, int(i), memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    out[i] = *(threadgroup int*)local + *(device int*)counter;
}
kernel void matrices(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                     threadgroup float* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]]) {
    for (uint k = i; k < 64; k += 64) shared[k] = in[k];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 a, b(2.0f), c(0.0f);
    simdgroup_load(a, shared);
    for (int step = 0; step < 4; step++) simdgroup_multiply_accumulate(c, a, b, c);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_store(c, shared + 64 * simd);
    simdgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_load(a, shared + 64 * simd, 8, ulong2(0), true);
    simdgroup_store(a, out + 64 * simd);
}
// More barriers than the counters of a stamp can count.
kernel void many_barriers(device int* out [[buffer(1)]], threadgroup int* shared [[threadgroup(0)]],
                          uint i [[thread_index_in_threadgroup]]) {
    shared[i] = i;
    for (int step = 0; step < 5000; step++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (i == 3) shared[64] = step;
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[i] = shared[63 - i];
}
