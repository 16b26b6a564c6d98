// Attention of prompts over a paged cache of halves or of Q8_0, on the tensor cores, after FlashAttention-2 (Dao 2023).
//
// Rows are the query heads that read one KV head, of all tokens of a sequence: row `r` is token `r / per_kv`. A block takes
// ROWS of them, a warp 16, and goes through the keys that any of them sees in tiles of KEYS, the next tile coming in while
// one is worked on. Queries, keys, values and weights are halves, sums and the softmax single precision.
#include "cache.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#define VALUE_DIM 128
#define CACHE_TYPE F16
#define WARPS 8
#define HOPPER 0 // products of warpgroups: compute capability 9.0, widths of whole panels of 64
#endif
#if HOPPER
#include "hopper.cuh"
#endif
#define KEYS 64
#define THREADS (WARPS * 32)
#define ROWS (WARPS * 16)

typedef Attended FlashArgs;

// How COUNT rows of DIM halves lie in shared memory: for products of warpgroups in swizzled panels of 64 columns, else
// 16 bytes longer than they need, so that the lanes of a load meet different banks.
template <int COUNT, int DIM> struct Layout {
    enum { STRIDE = DIM * 2 + 16, PANEL = COUNT * 128, SIZE = HOPPER ? COUNT * DIM * 2 : COUNT * STRIDE };
    // The byte where columns `col ..` of a row begin, a multiple of 4.
    static __device__ __forceinline__ u32 at(u32 row, u32 col) {
        if constexpr (HOPPER) return col / 64 * PANEL + row * 128 + ((col / 8 % 8) ^ (row % 8)) * 16 + col % 8 * 2;
        else return row * STRIDE + col * 2;
    }
};
typedef Layout<ROWS, HEAD_DIM> Queries;
typedef Layout<KEYS, HEAD_DIM> Keys;
typedef Layout<KEYS, VALUE_DIM> Values;

// A thread's share of a tile: the same 8 columns of every few keys.
template <int DIM> struct Share {
    enum { PIECES = DIM / 8, ALL = KEYS * PIECES, COUNT = (ALL + THREADS - 1) / THREADS };
    u32 rows[COUNT]; // of the cache

    // Where the keys lie, those outside of what is seen nowhere.
    __device__ __forceinline__ void find(const FlashArgs &a, const int *pages, u32 at, u32 first, u32 end) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const u32 key = at + (threadIdx.x + i * THREADS) / PIECES;
            u32 row = 0xffffffffu;
            if (key >= first && key < end) {
                row = (u32)pages[key / a.page_len] * a.page_len + key % a.page_len;
                // The host has checked it; this keeps a broken promise inside the cache.
                if (row >= a.cache_rows) row = 0xffffffffu;
            }
            rows[i] = row;
        }
    }
    __device__ __forceinline__ void bring(const u8 *cache, u32 cols, u32 first_col, u8 *to) const {
        const u64 bytes = cache_row_bytes(CACHE_TYPE, cols);
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const u32 index = threadIdx.x + i * THREADS, key = index / PIECES, c = index % PIECES * 8;
            if (ALL % THREADS != 0 && index >= ALL) continue;
            u8 *place = to + Layout<KEYS, DIM>::at(key, c);
            if (rows[i] == 0xffffffffu) {
                *(uint4 *)place = make_uint4(0, 0, 0, 0);
            } else if constexpr (CACHE_TYPE == F16) {
                copy16(place, cache + rows[i] * bytes + (first_col + c) * 2);
            } else {
                *(uint4 *)place = halves_of_q8_0(cache + rows[i] * bytes, first_col + c);
            }
        }
    }
};

// The scores of a warp's 16 rows with a tile of keys: 8 columns for each `n`, as the results of a product lie.
__device__ __forceinline__ void score(float (&s)[KEYS / 8][4], const u8 *queries, const u8 *keys, int warp, int lane) {
#if HOPPER
    products_fence();
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        const u32 in_panel = k % 4 * 32;
        const u8 *q = queries + k / 4 * Queries::PANEL + warp / 4 * 64 * 128 + in_panel;
        product_of_shared(s[0], swizzled_matrix(shared_address(q)),
                          swizzled_matrix(shared_address(keys + k / 4 * Keys::PANEL + in_panel)), k != 0);
    }
    products_commit();
    products_wait<0>();
#else
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) s[n][k] = 0;
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
        u32 q[4];
        load_matrices(q, queries + Queries::at(warp * 16 + lane % 16, k * 16 + lane / 16 * 8));
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            u32 b[4];
            load_matrices(b, keys + Keys::at(n * 16 + lane % 8 + lane / 16 * 8, k * 16 + lane / 8 % 2 * 8));
            mma(s[2 * n], q[0], q[1], q[2], q[3], b[0], b[1]);
            mma(s[2 * n + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
        }
    }
#endif
}

// Adds the values of a tile, weighed by `s`.
__device__ __forceinline__ void
add_values(float (&out)[VALUE_DIM / 8][4], const float (&s)[KEYS / 8][4], const u8 *values, int lane) {
    u32 p[KEYS / 16][4];
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) p[k][i] = to_half2(s[2 * k + i / 2][i % 2 * 2], s[2 * k + i / 2][i % 2 * 2 + 1]);
#if HOPPER
    products_fence();
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 64; n++)
            product_of_rows(out[n * 8], p[k], swizzled_matrix(shared_address(values + n * Values::PANEL + k * 16 * 128)));
    products_commit();
    products_wait<0>();
#else
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++)
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 16; n++) {
            u32 b[4];
            load_transposed(b, values + Values::at(k * 16 + lane % 16, n * 16 + lane / 16 * 8));
            mma(out[2 * n], p[k][0], p[k][1], p[k][2], p[k][3], b[0], b[1]);
            mma(out[2 * n + 1], p[k][0], p[k][1], p[k][2], p[k][3], b[2], b[3]);
        }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, WARPS == 8 && HEAD_DIM <= 128 && VALUE_DIM <= 128 ? 2 : 1)
    flash(const __grid_constant__ FlashArgs a) {
    extern __shared__ u8 memory[];
    u8 *queries = memory + (1024 - shared_address(memory) % 1024) % 1024;
    u8 *keys = queries + Queries::SIZE;      // two tiles
    u8 *values = keys + 2 * Keys::SIZE;      // two tiles
    __shared__ u32 least, most;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u32 per_kv = a.heads / a.kv_heads, kv = blockIdx.y;
    let_next_start();
    after_previous();

    // Blocks with many keys come first.
    u32 tile = gridDim.x - 1 - blockIdx.x, sequence = 0, token0 = 0, count = 0;
    for (; sequence < a.sequences; sequence++) {
        token0 = (u32)a.ranges[sequence];
        count = ((u32)a.ranges[sequence + 1] - token0) * per_kv;
        const u32 tiles = (count + ROWS - 1) / ROWS;
        if (tile < tiles) break;
        tile -= tiles;
    }
    if (sequence == a.sequences) return;
    const u32 row0 = tile * ROWS, rows = min((u32)ROWS, count - row0);
    const int *pages = a.pages + (u64)sequence * a.max_pages;

    // The keys that each row sees, and those that any does.
    if (threadIdx.x == 0) least = 0xffffffffu, most = 0;
    __syncthreads();
    u32 first[2], end[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 row = warp * 16 + g + 8 * r;
        first[r] = 0, end[r] = 0;
        if (row < rows) {
            end[r] = (u32)a.positions[token0 + (row0 + row) / per_kv] + 1;
            first[r] = a.window != 0 && end[r] > a.window ? end[r] - a.window : 0;
            if (t == 0) atomicMin(&least, first[r]), atomicMax(&most, end[r]);
        }
    }
    // Queries, so that products are powers of two, or what the soft cap takes.
    const float factor = a.soft_cap != 0 ? a.scale / a.soft_cap : a.scale * 1.4426950408889634f;
    const float cap = a.soft_cap * 1.4426950408889634f;
    for (u32 i = threadIdx.x; i < ROWS * (HEAD_DIM / 4); i += THREADS) {
        const u32 row = i / (HEAD_DIM / 4), c = i % (HEAD_DIM / 4) * 4;
        float4 v = make_float4(0, 0, 0, 0);
        if (row < rows) {
            const u32 index = row0 + row, head = kv * per_kv + index % per_kv;
            v = *(const float4 *)(a.q + ((u64)(token0 + index / per_kv) * a.heads + head) * HEAD_DIM + c);
        }
        *(uint2 *)(queries + Queries::at(row, c)) =
            make_uint2(to_half2(v.x * factor, v.y * factor), to_half2(v.z * factor, v.w * factor));
    }
    __syncthreads();
    const u32 seen = least, all = most, begin = seen / KEYS * KEYS;
    // Of the rows of a warp: what all of them see.
    u32 inner_first = max(first[0], first[1]), inner_end = min(end[0], end[1]);
#pragma unroll
    for (int i = 4; i < 32; i <<= 1) {
        inner_first = max(inner_first, __shfl_xor_sync(FULL, inner_first, i));
        inner_end = min(inner_end, __shfl_xor_sync(FULL, inner_end, i));
    }
    // A product takes whole warpgroups, or a warp.
    const bool works = (HOPPER ? warp / 4 * 64 : warp * 16) < rows;

    float out[VALUE_DIM / 8][4], top[2] = {-INFINITE, -INFINITE}, sum[2] = {0, 0};
#pragma unroll
    for (int n = 0; n < VALUE_DIM / 8; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) out[n][k] = 0;

    Share<HEAD_DIM> key_share;
    Share<VALUE_DIM> value_share;
    auto bring = [&](u32 stage) {
        u8 *to = values + stage * Values::SIZE;
        key_share.bring(a.keys, a.kv_heads * HEAD_DIM, kv * HEAD_DIM, keys + stage * Keys::SIZE);
        if constexpr (HEAD_DIM == VALUE_DIM) key_share.bring(a.values, a.kv_heads * VALUE_DIM, kv * VALUE_DIM, to);
        else value_share.bring(a.values, a.kv_heads * VALUE_DIM, kv * VALUE_DIM, to);
        copies_commit();
    };
    auto find = [&](u32 at) {
        key_share.find(a, pages, at, seen, all);
        if constexpr (HEAD_DIM != VALUE_DIM) value_share.find(a, pages, at, seen, all);
    };
    find(begin);
    bring(0);
    find(begin + KEYS);
    u32 stage = 0;
    for (u32 at = begin; at < all; at += KEYS, stage ^= 1) {
        copies_wait<0>();
#if HOPPER
        stores_visible();
#endif
        // Now this tile is there for all, and all are done with the one before.
        __syncthreads();
        if (at + KEYS < all) {
            bring(stage ^ 1);
            find(at + 2 * KEYS);
        }
        if (works) {
            float s[KEYS / 8][4];
            score(s, queries, keys + stage * Keys::SIZE, warp, lane);
            if (a.soft_cap != 0) {
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int k = 0; k < 4; k++) s[n][k] = cap * tanhf(s[n][k]);
            }
            if (at < inner_first || at + KEYS > inner_end) {
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const u32 key = at + n * 8 + 2 * t + k % 2;
                        if (key < first[k / 2] || key >= end[k / 2]) s[n][k] = -INFINITE;
                    }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float high = top[r];
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++) high = fmaxf(high, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
                high = fmaxf(high, __shfl_xor_sync(FULL, high, 1));
                high = fmaxf(high, __shfl_xor_sync(FULL, high, 2));
                // Nothing seen yet: no difference of infinities.
                const float base = high == -INFINITE ? 0 : high;
                const float old = power_of_two(top[r] - base);
                top[r] = high;
                sum[r] *= old;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const float p = power_of_two(s[n][2 * r + k] - base);
                        s[n][2 * r + k] = p;
                        sum[r] += p;
                    }
#pragma unroll
                for (int n = 0; n < VALUE_DIM / 8; n++) out[n][2 * r] *= old, out[n][2 * r + 1] *= old;
            }
            add_values(out, s, values + stage * Values::SIZE, lane);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] += __shfl_xor_sync(FULL, sum[r], 1);
        sum[r] += __shfl_xor_sync(FULL, sum[r], 2);
        const u32 row = warp * 16 + g + 8 * r;
        if (row >= rows) continue;
        const u32 index = row0 + row, head = kv * per_kv + index % per_kv;
        float *to = a.out + ((u64)(token0 + index / per_kv) * a.heads + head) * VALUE_DIM;
        // A sink is a score without a value. Weights are halves, so it does not make them smaller while they are added up.
        if (a.sinks) sum[r] += power_of_two(a.sinks[head] * 1.4426950408889634f - top[r]);
        const float inverse = 1.0f / sum[r];
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; n++)
            *(float2 *)(to + n * 8 + 2 * t) = make_float2(out[n][2 * r] * inverse, out[n][2 * r + 1] * inverse);
    }
}
