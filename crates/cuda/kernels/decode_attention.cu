// Attention of one new token over a paged cache of halves or of Q8_0, on the tensor cores: a decode step.
//
// A block takes one KV head, up to 8 of the query heads that read it, and a run of the keys. Its warps take 16 keys at a
// time, each with a ring of its own, so they meet only at the start and at the end. The products have 16 rows for 8
// heads: rows 0 to 7 have a head's queries as halves and rows 8 to 15 what these leave, so that both together are as
// exact as single precision; weights of the softmax likewise. Where a token's keys are shared out over several blocks, the
// last to finish adds up what all of them found, in their order.
//
// What comes before attention happens here too where `k` is given: norms of heads, the rotation, and the store of the new
// key and value, which are not read back from the cache. All other keys were written by earlier forwards, so they are
// fetched before the launches before this one are done; the integers that say where they are were written before those.
#include "cache.cuh"

#ifndef HEAD_DIM
#define HEAD_DIM 128
#define VALUE_DIM 128
#define CACHE_TYPE F16
#define WARPS 8
#define ALL_HEADS 28
#define KV_HEADS 4
#define PAGE_LEN 64
#define SOFT_CAP 0 // whether there is one
#define WINDOWED 0 // whether there is a window
#define SINKS 0    // whether there are
// What comes before is done here: norms of queries (1) and keys (2), and the rotation of so many pairs.
#define BEFORE 1
#define NORMS 0
#define PAIRS 64
#define INTERLEAVED 0
#endif
#define THREADS (WARPS * 32)
#define HEADS 8
#define PER_KV (ALL_HEADS / KV_HEADS)
#define GROUPS ((PER_KV + HEADS - 1) / HEADS) // blocks of heads for each KV head
#define TILE_KEYS 16
// Tiles of keys or values under way in each warp.
#define SLOTS 3
// Halves of a row in shared memory: 16 bytes more than the row, so that the rows of a load meet different banks.
#define KEY_STRIDE (HEAD_DIM + 8)
#define VALUE_STRIDE (VALUE_DIM + 8)
#define SLOT_HALVES (TILE_KEYS * (KEY_STRIDE > VALUE_STRIDE ? KEY_STRIDE : VALUE_STRIDE))
#define LOG2_E 1.4426950408889634f
// Matrices that are fetched ahead, and how many bytes of them a thread asks for at a time.
#define MOST_AHEAD 3
#define AHEAD_LINE 1024

struct DecodeAttentionArgs : Attended {
    const float *k, *v;           // of the new token, before norm and rotation; or null: they are in the cache
    const float *q_norm, *k_norm; // weights, or null
    const float2 *angles;         // cosines and sines of the pairs, or null
    const int *new_rows;          // where the new key goes
    float *partial; // [tokens, blocks of heads, splits, HEADS, VALUE_DIM + 4]: top and sum after the values
    u32 *done;      // [tokens, blocks of heads], zero between launches
    u32 least;      // keys of a block where there are several
    float epsilon;
    u32 splits;     // blocks that the keys are shared out over, at most; those beyond fetch ahead
    // Weights of the products that come later, to be brought to the second-level cache while memory has little to do.
    u32 ahead_bytes[MOST_AHEAD];
    const u8 *ahead[MOST_AHEAD];
};

// Brings what is read later to the second-level cache, shared out over the blocks that do this.
__device__ __forceinline__ void fetch_ahead(const DecodeAttentionArgs &a) {
#if __CUDA_ARCH__ >= 900
    const u32 blocks = gridDim.x - a.splits;
    const u32 block = (blockIdx.z * gridDim.y + blockIdx.y) * blocks + blockIdx.x - a.splits;
    const u32 step = blocks * gridDim.y * gridDim.z * THREADS * AHEAD_LINE;
    for (int i = 0; i < MOST_AHEAD; i++)
        for (u32 at = (block * THREADS + threadIdx.x) * AHEAD_LINE; at < a.ahead_bytes[i]; at += step) {
            const u32 bytes = min((u32)AHEAD_LINE, a.ahead_bytes[i] - at);
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(a.ahead[i] + at), "r"(bytes) : "memory");
        }
#endif
}

// From where all multiprocessors see it.
__device__ __forceinline__ float4 load_shared_by_all(const float *p) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
    return v;
}
__device__ __forceinline__ float2 load_pair_by_all(const float *p) {
    float2 v;
    asm volatile("ld.global.cg.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
    return v;
}

// What a warp has found: of head `lane / 4`, the columns `8 n + 2 (lane % 4)` and the one after it.
struct Found {
    float top, sum; // the sum is this lane's part
    float o[VALUE_DIM / 8][4];
};

// The angles of a lane's pairs.
#define LANE_PAIRS ((HEAD_DIM / 2 + 31) / 32)

// A head's row in shared memory, normed and turned.
__device__ __forceinline__ void prepare_head(const DecodeAttentionArgs &a, const float *x, const float *norm,
                                             const float2 (&angles)[LANE_PAIRS], float *row) {
    const int lane = threadIdx.x % 32;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < (HEAD_DIM + 31) / 32; i++) {
        const int c = i * 32 + lane;
        float v = c < HEAD_DIM ? x[c] : 0;
        if (c < HEAD_DIM) row[c] = v;
        squares = fmaf(v, v, squares);
    }
    if (NORMS != 0 && norm) {
        float factor = rsqrtf(warp_sum(squares) * (1.0f / HEAD_DIM) + a.epsilon);
        for (int c = lane; c < HEAD_DIM; c += 32) row[c] = row[c] * factor * norm[c];
    }
    __syncwarp();
    if (BEFORE && PAIRS != 0) {
#pragma unroll
        for (int j = 0; j < LANE_PAIRS; j++) {
            const u32 i = j * 32 + lane;
            if (i >= PAIRS) continue;
            const u32 p = INTERLEAVED ? 2 * i : i, q = INTERLEAVED ? 2 * i + 1 : i + PAIRS;
            float u = row[p], v = row[q];
            row[p] = __fsub_rn(__fmul_rn(u, angles[j].x), __fmul_rn(v, angles[j].y));
            row[q] = __fadd_rn(__fmul_rn(u, angles[j].y), __fmul_rn(v, angles[j].x));
        }
        __syncwarp();
    }
}

// The keys of a tile: their scores, their weights, and what these make of the values. `factor` is of the lane's head.
__device__ __forceinline__ void scores(const u16 *q, const u16 *keys, u32 count, float factor, float soft_cap,
                                       Found &found, u32 (&weights)[4]) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    float c[2][4] = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    const u16 *q_at = q + ((lane & 7) + (lane >> 3 & 1) * 8) * KEY_STRIDE + (lane >> 4) * 8;
    const u16 *k_at = keys + ((lane & 7) + (lane >> 4) * 8) * KEY_STRIDE + (lane >> 3 & 1) * 8;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        u32 x[4], k[4];
        load_matrices(x, q_at + i * 16);
        load_matrices(k, k_at + i * 16);
        mma(c[0], x[0], x[1], x[2], x[3], k[0], k[1]);
        mma(c[1], x[0], x[1], x[2], x[3], k[2], k[3]);
    }
    float s[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float v = (c[j / 2][j % 2] + c[j / 2][2 + j % 2]) * factor;
        if (SOFT_CAP) v = soft_cap * tanhf(v / soft_cap);
        const u32 key = j / 2 * 8 + 2 * t + j % 2;
        s[j] = key < count ? v * LOG2_E : -INFINITE;
    }
    float top = fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3]));
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
    top = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
    top = fmaxf(top, found.top);
    const float shrink = power_of_two(found.top - top);
    if (__any_sync(FULL, top != found.top)) {
#pragma unroll
        for (int n = 0; n < VALUE_DIM / 8; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) found.o[n][j] *= shrink;
    }
    float p[4];
#pragma unroll
    for (int j = 0; j < 4; j++) p[j] = power_of_two(s[j] - top);
    found.sum = fmaf(found.sum, shrink, (p[0] + p[1]) + (p[2] + p[3]));
    found.top = top;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const u32 high = to_half2(p[2 * j], p[2 * j + 1]);
        weights[2 * j] = high;
        weights[2 * j + 1] = to_half2(p[2 * j] - low_half(high), p[2 * j + 1] - high_half(high));
    }
}
__device__ __forceinline__ void weighted_values(const u32 (&weights)[4], const u16 *values, Found &found) {
    const int lane = threadIdx.x % 32;
    const u16 *at = values + ((lane & 7) + (lane >> 3 & 1) * 8) * VALUE_STRIDE + (lane >> 4) * 8;
#pragma unroll
    for (int n = 0; n < VALUE_DIM / 16; n++) {
        u32 v[4];
        load_transposed(v, at + n * 16);
        mma(found.o[2 * n], weights[0], weights[1], weights[2], weights[3], v[0], v[1]);
        mma(found.o[2 * n + 1], weights[0], weights[1], weights[2], weights[3], v[2], v[3]);
    }
}

// Element `c` of a new key or value of a head, as it is read back from the row of the cache, where it is stored if it `stores`.
template <int DIM>
__device__ __forceinline__ u16 store_new(u8 *row, u32 kv, int c, float v, bool stores) {
    if constexpr (CACHE_TYPE == F16) {
        const u16 half = to_half(v);
        if (stores) ((u16 *)row)[kv * DIM + c] = half;
        return half;
    } else {
        // Heads are whole blocks, so all lanes are here.
        const float d = warp_max(fabsf(v)) / 127.0f;
        if (stores) store_run(row, CACHE_TYPE, kv * DIM + c - c % 32, c % 32, v, true);
        return to_half(from_half(to_half(d)) * (float)__float2int_rn(v * (d != 0 ? 1.0f / d : 0.0f)));
    }
}

// The cache rows of a tile: lane `i` has that of key `first + i % 16`.
__device__ __forceinline__ u32 rows_of_tile(const DecodeAttentionArgs &a, const int *table, u32 first, u32 end) {
    if (first >= end) return 0;
    const u32 key = min(first + threadIdx.x % 16, end - 1);
    const u32 row = (u32)table[key / PAGE_LEN] * PAGE_LEN + key % PAGE_LEN;
    // The host has checked it; this keeps a broken promise inside the cache.
    return row < a.cache_rows ? row : 0;
}
// A tile of keys or values, `DIM` wide, into shared memory.
template <int DIM, int STRIDE>
__device__ __forceinline__ void fetch(const DecodeAttentionArgs &a, const u8 *cache, u32 kv, u32 rows, bool exists, u16 *to) {
    if (exists) {
        const u64 bytes = cache_row_bytes(CACHE_TYPE, KV_HEADS * DIM);
        const int lines = TILE_KEYS * DIM / 8; // a multiple of 32
#pragma unroll
        for (int i = 0; i < lines; i += 32) {
            const int line = i + threadIdx.x % 32, key = line / (DIM / 8), c = line % (DIM / 8);
            const u8 *from = cache + __shfl_sync(FULL, rows, key) * bytes;
            u16 *place = to + key * STRIDE + c * 8;
            if constexpr (CACHE_TYPE == F16) copy16(place, from + kv * DIM * 2 + c * 16);
            else *(uint4 *)place = halves_of_q8_0(from, kv * DIM + c * 8);
        }
    }
    copies_commit();
}
__device__ __forceinline__ u32 next_slot(u32 slot) { return slot + 1 == SLOTS ? 0 : slot + 1; }

extern "C" __global__ void __launch_bounds__(THREADS, 2) decode_attention(const __grid_constant__ DecodeAttentionArgs a) {
    extern __shared__ __align__(16) u8 memory[];
    // [2 HEADS][KEY_STRIDE] halves, tiles of the new key and value, [WARPS][HEAD_DIM] floats, and
    // [WARPS][SLOTS][SLOT_HALVES] halves
    u16 *q = (u16 *)memory;
    u16 *new_tiles = q + 2 * HEADS * KEY_STRIDE;
    float *rows = (float *)(new_tiles + 2 * SLOT_HALVES);
    u16 *rings = (u16 *)(rows + WARPS * HEAD_DIM);
    __shared__ float factors[HEADS];
    __shared__ float2 ends[WARPS][HEADS]; // top and sum
    __shared__ u32 arrived;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *row = rows + warp * HEAD_DIM;
    u16 *ring = rings + warp * SLOTS * SLOT_HALVES;

    const u32 token = blockIdx.z, kv = blockIdx.y / GROUPS, group = blockIdx.y % GROUPS;
    const u32 head0 = kv * PER_KV + group * HEADS;
    const u32 splits = a.splits;
    const u32 count = min((u32)HEADS, PER_KV - group * HEADS);
    let_next_start();
    if (blockIdx.x >= splits) return fetch_ahead(a);

    // Most often each sequence has one token. Of one sequence nothing is read.
    u32 sequence = min(token, a.sequences - 1);
    if (a.sequences > 1 && (token < (u32)a.ranges[sequence] || token >= (u32)a.ranges[sequence + 1]))
        for (sequence = 0; sequence + 1 < a.sequences && token >= (u32)a.ranges[sequence + 1];) sequence++;
    // The new token's own key is apart.
    const u32 last_key = (u32)a.positions[token];
    const u32 first_all = WINDOWED && last_key + 1 > a.window ? last_key + 1 - a.window : 0;
    const u32 older = last_key - first_all;
    const u32 per_split = (max(a.least, (older + splits - 1) / splits) + TILE_KEYS - 1) / TILE_KEYS * TILE_KEYS;
    const u32 used = max(1u, (older + per_split - 1) / per_split);
    if (blockIdx.x >= used) return;
    const bool has_new = blockIdx.x == used - 1;
    const u32 first = first_all + blockIdx.x * per_split, end = min(last_key, first + per_split);
    // Other tokens of the sequence may have written keys in this forward.
    const bool early = BEFORE || CACHE_TYPE == F16 && a.ranges[sequence + 1] - a.ranges[sequence] == 1;
    if (!early) after_previous();
    const int *table = a.pages + sequence * a.max_pages;
    const u32 start = first + warp * TILE_KEYS, step = WARPS * TILE_KEYS;
    u32 tile_rows = rows_of_tile(a, table, start, end);
    fetch<HEAD_DIM, KEY_STRIDE>(a, a.keys, kv, tile_rows, start < end, ring);
    fetch<VALUE_DIM, VALUE_STRIDE>(a, a.values, kv, tile_rows, start < end, ring + SLOT_HALVES);
    tile_rows = rows_of_tile(a, table, start + step, end);
    fetch<HEAD_DIM, KEY_STRIDE>(a, a.keys, kv, tile_rows, start + step < end, ring + 2 * SLOT_HALVES);
    float2 angles[LANE_PAIRS];
#pragma unroll
    for (int j = 0; j < LANE_PAIRS; j++)
        angles[j] = BEFORE && j * 32 + lane < PAIRS ? a.angles[j * 32 + lane] : make_float2(1, 0);
    // The new key and value are the first row of tiles of zeros; the last warp sees to them, and to where they are stored.
    const bool makes_new = has_new && warp == WARPS - 1;
    u16 *new_key = new_tiles, *new_value = new_tiles + SLOT_HALVES;
    u32 new_row = 0;
    if (makes_new) {
#pragma unroll 1
        for (int i = lane; i < 2 * SLOT_HALVES / 8; i += 32) ((uint4 *)new_tiles)[i] = make_uint4(0, 0, 0, 0);
        new_row = BEFORE ? (u32)a.new_rows[token] : (u32)table[last_key / PAGE_LEN] * PAGE_LEN + last_key % PAGE_LEN;
        // The host has checked it; this keeps a broken promise inside the cache.
        new_row = new_row < a.cache_rows ? new_row : 0;
        __syncwarp();
    }
    u8 *cached_key = a.keys + new_row * cache_row_bytes(CACHE_TYPE, KV_HEADS * HEAD_DIM);
    u8 *cached_value = a.values + new_row * cache_row_bytes(CACHE_TYPE, KV_HEADS * VALUE_DIM);
    // Rows of heads that there are not.
    for (u32 h = count + warp; h < HEADS; h += WARPS) {
#pragma unroll
        for (int c = lane; c < HEAD_DIM; c += 32) q[h * KEY_STRIDE + c] = 0, q[(HEADS + h) * KEY_STRIDE + c] = 0;
        if (lane == 0) factors[h] = 0;
    }
    if (early) after_previous();

    // Read before the keys, and used after them.
    float value[(VALUE_DIM + 31) / 32];
    if (BEFORE && makes_new) {
        const float *from = a.v + ((u64)token * KV_HEADS + kv) * VALUE_DIM;
#pragma unroll
        for (int j = 0; j < (VALUE_DIM + 31) / 32; j++) value[j] = j * 32 + lane < VALUE_DIM ? from[j * 32 + lane] : 0;
    }
    // Queries, and in the last warp the new key besides.
#pragma unroll 1
    for (int i = 0; i <= HEADS / WARPS; i++) {
        const bool is_key = i == HEADS / WARPS;
        const u32 h = i * WARPS + warp;
        if (is_key ? !(BEFORE && makes_new) : h >= count) continue;
        const float *x = is_key ? a.k + ((u64)token * KV_HEADS + kv) * HEAD_DIM
                                : a.q + ((u64)token * ALL_HEADS + head0 + h) * HEAD_DIM;
        prepare_head(a, x, is_key ? (NORMS & 2 ? a.k_norm : 0) : NORMS & 1 ? a.q_norm : 0, angles, row);
        if (is_key) {
#pragma unroll
            for (int c = lane; c < HEAD_DIM; c += 32)
                new_key[c] = store_new<HEAD_DIM>(cached_key, kv, c, row[c], group == 0);
            break;
        }
        u16 *high = q + h * KEY_STRIDE, *low = q + (HEADS + h) * KEY_STRIDE;
        float v[(HEAD_DIM + 31) / 32], top = 0;
#pragma unroll
        for (int j = 0; j < (HEAD_DIM + 31) / 32; j++) {
            v[j] = j * 32 + lane < HEAD_DIM ? row[j * 32 + lane] : 0;
            top = fmaxf(top, fabsf(v[j]));
        }
        const float scale = half_range_scale(warp_max(top));
#pragma unroll
        for (int j = 0; j < (HEAD_DIM + 31) / 32; j++) {
            const u16 half = to_half(v[j] * scale);
            if (j * 32 + lane < HEAD_DIM)
                high[j * 32 + lane] = half, low[j * 32 + lane] = to_half(v[j] * scale - from_half(half));
        }
        if (lane == 0) factors[h] = __fdividef(a.scale, scale);
        __syncwarp();
    }
    if (makes_new) {
        if (!BEFORE)
            for (int c = lane; c < HEAD_DIM; c += 32)
                new_key[c] = to_half(cache_element(cached_key, CACHE_TYPE, kv * HEAD_DIM + c));
#pragma unroll
        for (int j = 0; j < (VALUE_DIM + 31) / 32; j++) {
            const int c = j * 32 + lane;
            if (c >= VALUE_DIM) continue;
            new_value[c] = BEFORE ? store_new<VALUE_DIM>(cached_value, kv, c, value[j], group == 0)
                                  : to_half(cache_element(cached_value, CACHE_TYPE, kv * VALUE_DIM + c));
        }
    }
    __syncthreads();

    Found found;
    found.top = -INFINITE, found.sum = 0;
#pragma unroll
    for (int n = 0; n < VALUE_DIM / 8; n++)
#pragma unroll
        for (int j = 0; j < 4; j++) found.o[n][j] = 0;
    const float factor = factors[lane / 4];
    u32 weights[4], slot = 0;
#pragma unroll 1
    for (u32 at = start; at < end || makes_new; at += step) {
        // At the end, in one warp, the new key alone.
        const bool is_new = at >= end;
        copies_wait<SLOTS - 1>();
        __syncwarp();
        const u16 *keys = is_new ? new_key : ring + slot * SLOT_HALVES;
        scores(q, keys, is_new ? 1 : end - at, factor, a.soft_cap, found, weights);
        __syncwarp();
        fetch<VALUE_DIM, VALUE_STRIDE>(a, a.values, kv, tile_rows, at + step < end, ring + slot * SLOT_HALVES);
        if (at + step < end) tile_rows = rows_of_tile(a, table, at + 2 * step, end);
        slot = next_slot(slot);
        copies_wait<SLOTS - 1>();
        __syncwarp();
        weighted_values(weights, is_new ? new_value : ring + slot * SLOT_HALVES, found);
        if (is_new) break;
        __syncwarp();
        fetch<HEAD_DIM, KEY_STRIDE>(a, a.keys, kv, tile_rows, at + 2 * step < end, ring + slot * SLOT_HALVES);
        slot = next_slot(slot);
    }

    // What the warps found, in their order.
    found.sum += __shfl_xor_sync(FULL, found.sum, 1);
    found.sum += __shfl_xor_sync(FULL, found.sum, 2);
    if (lane % 4 == 0) ends[warp][lane / 4] = make_float2(found.top, found.sum);
    // [HEADS][stride] in the ring of each warp, of which no copy is under way.
    const int stride = VALUE_DIM + 4, warp_stride = SLOTS * SLOT_HALVES / 2;
    static_assert(HEADS * stride <= warp_stride, "the ring has room");
    float *sums = (float *)rings;
    __syncwarp();
#pragma unroll
    for (int n = 0; n < VALUE_DIM / 8; n++) {
        float *to = sums + warp * warp_stride + lane / 4 * stride + n * 8 + lane % 4 * 2;
        *(float2 *)to = make_float2(found.o[n][0] + found.o[n][2], found.o[n][1] + found.o[n][3]);
    }
    __syncthreads();
    const u64 place = (u64)token * gridDim.y + blockIdx.y;
    float *partial = a.partial + (place * splits + blockIdx.x) * HEADS * (VALUE_DIM + 4);
    for (u32 i = threadIdx.x; i < count * (VALUE_DIM / 4); i += THREADS) {
        const u32 h = i / (VALUE_DIM / 4), c = i % (VALUE_DIM / 4) * 4;
        float top = ends[0][h].x;
#pragma unroll
        for (int w = 1; w < WARPS; w++) top = fmaxf(top, ends[w][h].x);
        float4 v = make_float4(0, 0, 0, 0);
        float sum = 0;
        if (SINKS && used == 1) {
            const float sink = a.sinks[head0 + h] * LOG2_E;
            top = fmaxf(top, sink);
            sum = power_of_two(sink - top);
        }
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float weight = power_of_two(ends[w][h].x - top);
            const float4 x = *(const float4 *)(sums + w * warp_stride + h * stride + c);
            sum = fmaf(weight, ends[w][h].y, sum);
            v.x = fmaf(weight, x.x, v.x), v.y = fmaf(weight, x.y, v.y);
            v.z = fmaf(weight, x.z, v.z), v.w = fmaf(weight, x.w, v.w);
        }
        if (used == 1) {
            const float inverse = __fdividef(1.0f, sum);
            v.x *= inverse, v.y *= inverse, v.z *= inverse, v.w *= inverse;
            *(float4 *)(a.out + ((u64)token * ALL_HEADS + head0 + h) * VALUE_DIM + c) = v;
        } else {
            *(float4 *)(partial + h * (VALUE_DIM + 4) + c) = v;
            if (c == 0) *(float2 *)(partial + h * (VALUE_DIM + 4) + VALUE_DIM) = make_float2(top, sum);
        }
    }
    if (used == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(a.done + place, 1);
    __syncthreads();
    if (arrived + 1 < used) return;
    __threadfence();
    const float *all = a.partial + place * splits * HEADS * (VALUE_DIM + 4);
    // A warp for each head.
    for (u32 h = warp; h < count; h += WARPS) {
        const float *of_head = all + h * (VALUE_DIM + 4);
        float top = -INFINITE;
        for (u32 s = lane; s < used; s += 32) top = fmaxf(top, load_pair_by_all(of_head + s * HEADS * (VALUE_DIM + 4) + VALUE_DIM).x);
        top = warp_max(top);
        float sum = 0;
        if (SINKS) {
            const float sink = a.sinks[head0 + h] * LOG2_E;
            top = fmaxf(top, sink);
            if (lane == 0) sum = power_of_two(sink - top);
        }
        const int parts = (VALUE_DIM + 127) / 128;
        float4 v[parts];
#pragma unroll
        for (int i = 0; i < parts; i++) v[i] = make_float4(0, 0, 0, 0);
        for (u32 s0 = 0; s0 < used; s0 += 32) {
            float weight = 0;
            if (s0 + lane < used) {
                const float2 pair = load_pair_by_all(of_head + (s0 + lane) * HEADS * (VALUE_DIM + 4) + VALUE_DIM);
                weight = power_of_two(pair.x - top);
                sum = fmaf(weight, pair.y, sum);
            }
            const u32 n = min(32u, used - s0);
#pragma unroll 8
            for (u32 s = 0; s < n; s++) {
                const float w = __shfl_sync(FULL, weight, s);
                const float *from = of_head + (s0 + s) * HEADS * (VALUE_DIM + 4);
#pragma unroll
                for (int i = 0; i < parts; i++) {
                    const int c = (i * 32 + lane) * 4;
                    if (c >= VALUE_DIM) continue;
                    const float4 x = load_shared_by_all(from + c);
                    v[i].x = fmaf(w, x.x, v[i].x), v[i].y = fmaf(w, x.y, v[i].y);
                    v[i].z = fmaf(w, x.z, v[i].z), v[i].w = fmaf(w, x.w, v[i].w);
                }
            }
        }
        const float inverse = __fdividef(1.0f, warp_sum(sum));
#pragma unroll
        for (int i = 0; i < parts; i++) {
            const int c = (i * 32 + lane) * 4;
            if (c >= VALUE_DIM) continue;
            v[i].x *= inverse, v[i].y *= inverse, v[i].z *= inverse, v[i].w *= inverse;
            *(float4 *)(a.out + ((u64)token * ALL_HEADS + head0 + h) * VALUE_DIM + c) = v[i];
        }
    }
    if (threadIdx.x == 0) a.done[place] = 0;
}
