// Accesses of memory that is not there, or has no value, and what only looks like it.
#include <metal_stdlib>
using namespace metal;

struct Tile { float values[8]; int count; };

// ---- out of bounds ----------------------------------------------------------------------------------
kernel void past_the_end(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                         uint i [[thread_position_in_grid]]) {
    out[i] = in[i + 1];  // @past_the_end
}
kernel void before_the_start(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                             uint i [[thread_position_in_grid]]) {
    out[i] = in[int(i) - 1];  // @before_the_start
}
kernel void half_of_a_vector(device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    ((device float4*)out)[i] = float4(1.0f);  // @half_of_a_vector
}
kernel void atomic_outside(device atomic_int* counters [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(counters + i * 2, 1, memory_order_relaxed);  // @atomic_outside
}
kernel void inline_bytes(constant int* values [[buffer(0)]], device int* out [[buffer(1)]],
                         uint i [[thread_position_in_grid]]) {
    out[i] = values[i];  // @inline_bytes
}
kernel void threadgroup_slot(device int* out [[buffer(1)]], threadgroup int* shared [[threadgroup(0)]],
                             uint i [[thread_index_in_threadgroup]]) {
    shared[i + 1] = i;  // @threadgroup_slot
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = shared[i + 1];
}
kernel void threadgroup_variable(device int* out [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup int first[32];
    threadgroup int second[32];
    threadgroup int* pointer = first;
    pointer[i] = i;  // @threadgroup_variable
    second[i % 32] = i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = pointer[i / 2] + second[i / 2];
}
kernel void thread_array(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                         uint i [[thread_position_in_grid]]) {
    int local[16];
    for (int k = 0; k < 16; k++) local[k] = in[k];
    out[i] = local[(i + in[1]) % 17];  // @thread_array
}
kernel void member_array(device const Tile* tiles [[buffer(0)]], device float* out [[buffer(1)]],
                         uint i [[thread_position_in_grid]]) {
    out[i] = tiles[0].values[i];  // @member_array
}

// ---- innocent ---------------------------------------------------------------------------------------
kernel void guarded(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) {
    out[i] = (i + 1 < 64 ? in[i + 1] : 0) + (i > 0 ? in[i - 1] : 0);
}
kernel void padded_tail(device const float4* in [[buffer(0)]], device float* out [[buffer(1)]],
                        uint i [[thread_index_in_threadgroup]]) {
    // 61 numbers in 64 places: the last vector is read whole.
    if (i < 16) {
        float4 v = in[i];
        for (uint k = 0; k < 4; k++)
            if (i * 4 + k < 61) out[i * 4 + k] = v[k];
    }
}
kernel void whole_arrays(device const Tile* tiles [[buffer(0)]], device float* out [[buffer(1)]],
                         uint i [[thread_index_in_threadgroup]]) {
    threadgroup float3 vectors[64];
    float local[8];
    for (int k = 0; k < 8; k++) local[k] = tiles[0].values[k];
    vectors[i] = float3(local[i % 8], 1.0f, 2.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float3 v = vectors[63 - i];
    packed_float3 p = packed_float3(v);
    out[i] = v.x + p.y + vectors[i].z;
}

// clang gives up on these before it has their values: they are computed when the library is loaded.
static float hash(int count) {
    uint x = 1, last[64] = {0};
    for (int k = 0; k < count; k++) last[x & 63] = x = x * 1664525 + 1013904223;
    return float(x + last[count & 63] * 0);
}
constant float hashes[2] = {hash(200000), hash(200001)};
kernel void computed_constants(device float* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    out[i] = hashes[i % 2];
}

// ---- without a value --------------------------------------------------------------------------------
kernel void copies(device const int* in [[buffer(0)]], device int* out [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
    out[i] = in[i];  // @copies
}
kernel void threadgroup_without_value(device int* out [[buffer(1)]], threadgroup int* shared [[threadgroup(0)]],
                                      uint i [[thread_index_in_threadgroup]]) {
    if (i < 63) shared[i] = i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = shared[i];  // @threadgroup_without_value
}
// What the threadgroup before left there is no value.
kernel void left_over(device int* out [[buffer(1)]], threadgroup int* shared [[threadgroup(0)]],
                      uint i [[thread_index_in_threadgroup]], uint group [[threadgroup_position_in_grid]]) {
    if (group == 0) shared[i] = i;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[group * 64 + i] = shared[i];  // @left_over
}
kernel void counter_without_value(device int* out [[buffer(1)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup atomic_int counter;
    atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);  // @counter_without_value
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = i;
}
kernel void writes_all(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = i; }
kernel void writes_bytes(device uchar* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    for (uint k = 0; k < 4; k++) out[i * 4 + k] = uchar(k);
}
kernel void writes_half(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (i < 32) out[i] = i;
}

// ---- misaligned -------------------------------------------------------------------------------------
kernel void misaligned_read(device const float* in [[buffer(0)]], device float4* out [[buffer(1)]],
                            uint i [[thread_position_in_grid]]) {
    if (i < 8) out[i] = *(device const float4*)(in + i * 4 + 1);  // @misaligned_read
}
kernel void misaligned_write(device uchar* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    if (i < 8) *(device ushort*)(out + i * 2 + 1) = ushort(i);  // @misaligned_write
}
kernel void misaligned_threadgroup(device half4* out [[buffer(1)]], threadgroup half* shared [[threadgroup(0)]],
                                   uint i [[thread_index_in_threadgroup]]) {
    shared[i] = half(i);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < 8) out[i] = *(threadgroup half4*)(shared + i * 4 + 2);  // @misaligned_threadgroup
}
kernel void aligned(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                    uint i [[thread_index_in_threadgroup]]) {
    if (i < 8) {
        float4 v = *(device const float4*)(in + i * 4);
        packed_float3 p = *(device const packed_float3*)(in + i * 3 + 1);
        *(device float2*)(out + i * 4 + 2) = v.xy + float2(p.x, p.y);
    }
}
struct Block { half scale; uchar bytes[16]; };
kernel void packed_blocks(device const Block* blocks [[buffer(0)]], device float* out [[buffer(1)]],
                          uint i [[thread_index_in_threadgroup]]) {
    if (i < 8) {
        device const ushort* pairs = (device const ushort*)blocks[i].bytes;
        float sum = float(blocks[i].scale);
        for (int k = 0; k < 8; k++) sum += float(pairs[k]);
        out[i] = sum;
    }
}

// ---- a pointer that outlives its buffer -------------------------------------------------------------
kernel void remember(device int* data [[buffer(0)]], device ulong* pointers [[buffer(1)]],
                     uint i [[thread_position_in_grid]]) {
    if (i == 0) pointers[0] = (ulong)data;
}
kernel void recall(device const ulong* pointers [[buffer(0)]], device int* out [[buffer(1)]],
                   uint i [[thread_position_in_grid]]) {
    out[i] = ((device const int*)pointers[0])[i];  // @recall
}
kernel void recall_to_write(device const ulong* pointers [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    ((device int*)pointers[0])[i] = i;  // @recall_to_write
}
kernel void recall_bound(device const ulong* pointers [[buffer(0)]], device int* out [[buffer(1)]],
                         device const int* data [[buffer(2)]], uint i [[thread_position_in_grid]]) {
    out[i] = ((device const int*)pointers[0])[i] + data[i];
}
