// Faults as they come in real kernels, each beside its twin: with the constant `mended` nothing is wrong.
#include <metal_stdlib>
using namespace metal;

constant bool mended [[function_constant(0)]];

// The sums of the variance overwrite those of the mean, which another SIMD-group may still read.
kernel void normalised_rows(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                            uint t [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                            uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float sums[4];
    float sum = simd_sum(in[t]);
    if (lane == 0) sums[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float mean = simd_sum(lane < 4 ? sums[lane] : 0.0f) / 128;  // @normalised_rows read
    if (mended) threadgroup_barrier(mem_flags::mem_threadgroup);
    float squares = simd_sum((in[t] - mean) * (in[t] - mean));
    if (lane == 0) sums[simd] = squares;  // @normalised_rows write
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[t] = (in[t] - mean) * rsqrt(simd_sum(lane < 4 ? sums[lane] : 0.0f) / 128 + 1);
}
// In one of its rounds a product with two tiles in turn loads the tile that it multiplies.
kernel void tiles_in_turn(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                          uint t [[thread_index_in_threadgroup]]) {
    threadgroup float tiles[2][16][9];
    uint row = t / 8, column = t % 8;
    float sum = 0;
    tiles[0][row][column] = in[t];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < 4; k++) {
        int current = k & 1, next = !mended && k == 2 ? current : current ^ 1;
        if (k < 3) tiles[next][row][column] = in[(t + k) % 128];  // @tiles_in_turn write
        for (int j = 0; j < 8; j++) sum += tiles[current][j][column];  // @tiles_in_turn read
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[t] = sum;
}
// Memory of a tile of halves serves for the sums, too.
kernel void memory_of_two_types(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                                threadgroup uchar* memory [[threadgroup(0)]], uint t [[thread_index_in_threadgroup]],
                                uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup half* tile = (threadgroup half*)memory;
    threadgroup float* sums = (threadgroup float*)memory;
    tile[t] = half(in[t]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = simd_sum(float(tile[127 - t]));  // @memory_of_two_types read
    if (mended) threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t % 32 == 0) sums[simd] = sum;  // @memory_of_two_types write
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[t] = sums[t / 32];
}
// A matrix is stored by all lanes, and each reads what others have stored.
kernel void stored_matrix(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                          uint t [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                          uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float tiles[4][64];
    simdgroup_float8x8 m;
    simdgroup_load(m, in, 8);
    simdgroup_store(m, tiles[simd], 8);  // @stored_matrix write
    if (mended) simdgroup_barrier(mem_flags::mem_threadgroup);
    out[t] = tiles[simd][lane] + tiles[simd][lane + 32];  // @stored_matrix read
}
// A flag tells that a value is there: atomics order nothing else.
kernel void value_behind_a_flag(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                                uint t [[thread_index_in_threadgroup]]) {
    threadgroup float value;
    threadgroup atomic_int flag;
    if (t == 0) atomic_store_explicit(&flag, 0, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (t == 0) {
        value = in[0];  // @value_behind_a_flag write
        atomic_store_explicit(&flag, 1, memory_order_relaxed);
    }
    for (int k = 0; k < 100 && atomic_load_explicit(&flag, memory_order_relaxed) == 0; k++) {}
    if (mended) threadgroup_barrier(mem_flags::mem_threadgroup);
    out[t] = value;  // @value_behind_a_flag read
}
// The last threadgroup adds up what all have written; it must not read before it knows that it is the last.
kernel void last_adds_up(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                         device atomic_uint* ticket [[buffer(2)]], uint group [[threadgroup_position_in_grid]],
                         uint groups [[threadgroups_per_grid]], uint t [[thread_index_in_threadgroup]]) {
    threadgroup bool is_last;
    float sum = simd_sum(in[t]);
    if (t == 0) {
        out[group] = sum;  // @last_adds_up write
        atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
        is_last = atomic_fetch_add_explicit(ticket, 1u, memory_order_relaxed) == groups - 1;
        if (mended) atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    if (is_last && t == 0) {
        float total = 0;
        for (uint k = 0; k < groups; k++) total += out[k];  // @last_adds_up read
        out[groups] = total;
    }
}
// The last threadgroup is moved back so that its tile is whole: it meets the one before.
kernel void tile_moved_back(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                            uint group [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
    uint at = mended ? group * 32 + t : min(group * 32, 68u) + t;
    if (at < 100) out[at] = in[at];  // @tile_moved_back
}
// SIMD-groups take rows in turn, and one has a row more than the other.
kernel void rows_in_turn(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                         uint t [[thread_index_in_threadgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup float row[128];
    float sum = 0;
    for (uint k = mended ? 0 : simd; k < 9; k += 4) {
        row[t] = in[t] + k;
        threadgroup_barrier(mem_flags::mem_threadgroup);  // @rows_in_turn
        sum += row[127 - t];
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    out[t] = sum;
}
// The threads behind the end leave their part of the tile as it was.
kernel void tail_of_a_tile(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                           uint t [[thread_index_in_threadgroup]]) {
    threadgroup float tile[128];
    if (t < 100) tile[t] = in[t];
    else if (mended) tile[t] = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0;
    for (int k = 0; k < 128; k++) sum += tile[k];  // @tail_of_a_tile
    out[t] = sum;
}
// A matrix of 8 rows begins at the second of 8.
kernel void matrix_too_low(device const float* in [[buffer(0)]], device float* out [[buffer(1)]]) {
    simdgroup_float8x8 m;
    simdgroup_load(m, in, 16, ulong2(8, mended ? 0 : 1));  // @matrix_too_low
    simdgroup_store(m, out, 8);
}
