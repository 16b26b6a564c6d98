// A layer's cache: the types of its elements.
#pragma once
#include "decode.cuh"

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// What attention reads, and where its results go: the same for all its kernels.
struct Attended {
    const float *q; // [tokens, heads * key width]
    float *out;     // [tokens, heads * value width]
    u8 *keys, *values;
    const int *positions, *ranges, *pages;
    const float *sinks; // of each head, or null
    u32 tokens, sequences, max_pages, page_len, cache_rows;
    u32 heads, kv_heads;
    u32 window; // 0: all keys
    float scale, soft_cap; // soft cap 0: none
};

// A run of 32 elements of a row, element `lane` in each lane of a warp.
__device__ __forceinline__ void store_run(u8 *row, int type, u32 first, int lane, float v, bool inside) {
    u32 i = first + lane;
    if (type == Q8_0) {
        float top = warp_max(fabsf(v));
        float d = top / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
        BlockQ8_0 *block = (BlockQ8_0 *)row + first / 32;
        if (lane == 0) block->d = to_half(d);
        block->qs[lane] = (signed char)__float2int_rn(v * inverse);
    } else if (inside) {
        if (type == F32) ((float *)row)[i] = v;
        else if (type == F16) ((u16 *)row)[i] = to_half(v);
        else ((u16 *)row)[i] = to_bf16(v);
    }
}
__device__ __forceinline__ u64 cache_row_bytes(int type, u32 cols) {
    return type == F32 ? (u64)cols * 4 : type == Q8_0 ? (u64)cols / 32 * sizeof(BlockQ8_0) : (u64)cols * 2;
}
__device__ __forceinline__ float cache_element(const u8 *row, int type, u32 i) {
    if (type == F16) return from_half(((const u16 *)row)[i]);
    if (type == F32) return ((const float *)row)[i];
    if (type == BF16) return from_bf16(((const u16 *)row)[i]);
    const BlockQ8_0 *block = (const BlockQ8_0 *)row + i / 32;
    return from_half(block->d) * (float)block->qs[i % 32];
}
// Eight elements of a row of Q8_0 as halves, from a multiple of 8 on.
__device__ __forceinline__ uint4 halves_of_q8_0(const u8 *row, u32 first) {
    const BlockQ8_0 *block = (const BlockQ8_0 *)row + first / 32;
    const float d = from_half(block->d);
    const u16 *codes = (const u16 *)(block->qs + first % 32);
    u32 v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const u32 two = codes[k];
        v[k] = to_half2((float)(signed char)(two & 255) * d, (float)(signed char)(two >> 8) * d);
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}
