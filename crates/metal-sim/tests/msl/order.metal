// Threadgroups and dispatches that share memory, barriers that not all threads reach, and loops without end.
#include <metal_stdlib>
using namespace metal;

// ---- threadgroups of one dispatch -------------------------------------------------------------------
kernel void same_element(device int* out [[buffer(1)]], uint group [[threadgroup_position_in_grid]],
                         uint i [[thread_index_in_threadgroup]]) {
    if (i == 0) out[0] += int(group);  // @same_element
}
kernel void neighbour_group(device int* data [[buffer(0)]], device int* out [[buffer(1)]],
                            uint i [[thread_position_in_grid]], uint count [[threads_per_grid]]) {
    data[i] = i;  // @neighbour_group write
    threadgroup_barrier(mem_flags::mem_device);
    out[i] = data[(i + 64) % count];  // @neighbour_group read
}
kernel void in_place(device int* data [[buffer(0)]], uint i [[thread_position_in_grid]],
                     uint count [[threads_per_grid]]) {
    data[i] = data[count - 1 - i];  // @in_place
}
// The last threadgroup adds up what all have left, without a fence.
kernel void split_without_fence(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                                device atomic_uint* counter [[buffer(2)]], device int* partial [[buffer(3)]],
                                uint group [[threadgroup_position_in_grid]],
                                uint groups [[threadgroups_per_grid]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup bool is_last;
    partial[group * 64 + i] = in[i] + int(group);  // @split_without_fence write
    threadgroup_barrier(mem_flags::mem_device);
    if (i == 0) is_last = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed) == groups - 1;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_last) {
        int sum = 0;
        for (uint k = 0; k < groups; k++) sum += partial[k * 64 + i];  // @split_without_fence read
        out[i] = sum;
    }
}
// With a fence, but before all threads of the threadgroup have written.
kernel void split_without_barrier(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                                  device atomic_uint* counter [[buffer(2)]], device int* partial [[buffer(3)]],
                                  uint group [[threadgroup_position_in_grid]],
                                  uint groups [[threadgroups_per_grid]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup bool is_last;
    partial[group * 64 + i] = in[i] + int(group);  // @split_without_barrier write
    if (i == 0) {
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        is_last = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed) == groups - 1;
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_last) {
        int sum = 0;
        for (uint k = 0; k < groups; k++) sum += partial[k * 64 + i];  // @split_without_barrier read
        out[i] = sum;
    }
}
// The fence reaches the threadgroup alone.
kernel void narrow_fence(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                         device atomic_uint* counter [[buffer(2)]], device int* partial [[buffer(3)]],
                         uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
                         uint i [[thread_index_in_threadgroup]]) {
    threadgroup bool is_last;
    partial[group * 64 + i] = in[i] + int(group);  // @narrow_fence write
    threadgroup_barrier(mem_flags::mem_device);
    if (i == 0) {
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_threadgroup);
        is_last = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed) == groups - 1;
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_threadgroup);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_last) out[i] = partial[(group + groups - 1) % groups * 64 + i];  // @narrow_fence read
}

// ---- innocent ---------------------------------------------------------------------------------------
kernel void split_with_fence(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                             device atomic_uint* counter [[buffer(2)]], device int* partial [[buffer(3)]],
                             uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
                             uint i [[thread_index_in_threadgroup]]) {
    threadgroup bool is_last;
    partial[group * 64 + i] = in[i] + int(group);
    threadgroup_barrier(mem_flags::mem_device);
    if (i == 0) {
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        is_last = atomic_fetch_add_explicit(counter, 1, memory_order_relaxed) == groups - 1;
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (is_last) {
        int sum = 0;
        for (uint k = 0; k < groups; k++) sum += partial[k * 64 + i];
        out[i] = sum;
    }
}
kernel void disjoint_rows(device const int* in [[buffer(0)]], device half* out [[buffer(1)]],
                          uint i [[thread_position_in_grid]]) {
    // Three threadgroups share every 16 bytes.
    out[i % 64 * 3 + i / 64] = half(in[i % 64]);
}
kernel void histogram(device const int* in [[buffer(0)]], device atomic_int* out [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(out + (in[i % 64] & 7), 1, memory_order_relaxed);
}
kernel void early_exit(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                       threadgroup int* shared [[threadgroup(0)]], uint group [[threadgroup_position_in_grid]],
                       uint i [[thread_index_in_threadgroup]]) {
    if (group > 0) return;
    shared[i] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = shared[63 - i];
}

// ---- dispatches -------------------------------------------------------------------------------------
kernel void produce(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    out[i] = i;  // @produce
}
kernel void consume(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    out[i] = in[63 - i];  // @consume
}
kernel void first_half(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i / 2] = i; }
kernel void forever(device atomic_int* flag [[buffer(0)]], device int* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    while (atomic_load_explicit(flag, memory_order_relaxed) == 1) {}  // @forever
    out[i] = 1;
}
kernel void forever_with_barriers(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    do { threadgroup_barrier(mem_flags::mem_device); } while (simd_any(true));  // @forever_with_barriers
    out[i] = 1;
}
kernel void forever_in_registers(device const uint* in [[buffer(0)]], device uint* out [[buffer(1)]],
                                 uint i [[thread_position_in_grid]]) {
    uint x = in[0];
    while (x != 0) x = x * 1664525 + 1013904223 | 1;  // @forever_in_registers
    out[i] = x;
}
kernel void long_loop(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    for (int k = 0; k < 20000; k++) out[i] = out[i] + k;
}

kernel void divide(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
    out[i] = in[i] / (in[0] - 1);  // @divide
}
kernel void divide_by_zero_in_floats(device const int* in [[buffer(0)]], device float* out [[buffer(1)]],
                                     uint i [[thread_position_in_grid]]) {
    out[i] = float(in[i]) / float(in[0] - 1) + float(in[i] / in[0]);
}

// ---- barriers ---------------------------------------------------------------------------------------
kernel void early_return(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                         threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    if (i >= 40) return;
    shared[i] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);  // @early_return
    out[i] = shared[39 - i];
}
kernel void two_barriers(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                         threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];
    if (i < 32) threadgroup_barrier(mem_flags::mem_threadgroup);  // @two_barriers first
    else threadgroup_barrier(mem_flags::mem_threadgroup);  // @two_barriers second
    out[i] = shared[63 - i];
}
kernel void barrier_in_a_branch(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                                threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]]) {
    shared[i] = in[i];
    if (i % 2 == 0) threadgroup_barrier(mem_flags::mem_threadgroup);  // @barrier_in_a_branch
    out[i] = shared[i];
}
kernel void simdgroup_barrier_in_a_branch(device int* out [[buffer(1)]], uint lane [[thread_index_in_simdgroup]],
                                          uint i [[thread_index_in_threadgroup]]) {
    if (lane < 16) simdgroup_barrier(mem_flags::mem_threadgroup);  // @simdgroup_barrier_in_a_branch
    out[i] = i;
}
kernel void simdgroup_barrier_after_return(device int* out [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
    if (i == 5) return;
    simdgroup_barrier(mem_flags::mem_device);  // @simdgroup_barrier_after_return
    out[i] = i;
}
// A barrier that orders nothing must be passed by all threads, too.
kernel void silent_barrier_in_a_branch(device int* out [[buffer(1)]], uint lane [[thread_index_in_simdgroup]],
                                       uint i [[thread_index_in_threadgroup]]) {
    if (lane == 7) simdgroup_barrier(mem_flags::mem_none);  // @silent_barrier_in_a_branch
    out[i] = simd_sum(1);
}
kernel void silent_barriers(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                            uint i [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    for (int k = 0; k < in[0] + int(simd); k++) simdgroup_barrier(mem_flags::mem_none);
    threadgroup_barrier(mem_flags::mem_none);
    out[i] = simd_sum(1);
}
kernel void barriers_in_loops(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                              threadgroup int* shared [[threadgroup(0)]], uint i [[thread_index_in_threadgroup]],
                              uint simd [[simdgroup_index_in_threadgroup]]) {
    int sum = 0;
    for (int k = 0; k < in[0] + 3; k++) {
        if (k % 2 == 0) threadgroup_barrier(mem_flags::mem_threadgroup);
        else threadgroup_barrier(mem_flags::mem_threadgroup);
        // A branch that all threads of a SIMD-group take.
        if (simd == 1) simdgroup_barrier(mem_flags::mem_threadgroup);
        // A function of the active threads is no barrier.
        if (i % 3 == 0) sum += simd_sum(1);
    }
    if (i >= 40) return;
    out[i] = sum;
}
