// Attention of any shape over a paged cache, in single precision.
//
// A block takes one token, one KV head and up to GROUP of the query heads that read it, and a run of the keys. It goes
// through its keys in tiles of KEYS: four threads score a key, and a thread sums a column of the values over a part of the
// keys. Where a token's keys are shared out over several blocks, the last to finish adds up what all of them found, in
// their order.
#include "cache.cuh"

// Query heads of a block, and the widths of heads.
#ifndef GROUP
#define GROUP 8
#define HEAD_DIM 128
#define VALUE_DIM 128
#endif
#define KEYS 64
#define THREADS 256
#define PER_KEY (THREADS / KEYS)

struct AttentionArgs : Attended {
    float *partial; // [tokens, blocks of heads, splits, GROUP, value_dim + 2]
    u32 *done;      // [tokens, blocks of heads], zero between launches
    u32 groups, splits; // groups: blocks of heads for each KV head
    int key_type, value_type;
};

__device__ __forceinline__ float scored(const AttentionArgs &a, float s) {
    s *= a.scale;
    return a.soft_cap != 0 ? a.soft_cap * tanhf(s / a.soft_cap) : s;
}

// Rows of the cache as floats, `stride` apart.
template <u32 dim>
__device__ __forceinline__ void
load_tile(const u8 *cache, int type, u32 cols, u32 first_col, const u32 *rows, u32 n, float *to, u32 stride) {
    u64 bytes = cache_row_bytes(type, cols);
    if (type == F16 && dim % 8 == 0) {
        u32 line = dim / 8;
        for (u32 i = threadIdx.x; i < n * line; i += THREADS) {
            u32 key = i / line, c = i % line * 8;
            uint4 v = *(const uint4 *)(cache + rows[key] * bytes + (first_col + c) * 2);
            float *p = to + key * stride + c;
            *(float4 *)p = make_float4(low_half(v.x), high_half(v.x), low_half(v.y), high_half(v.y));
            *(float4 *)(p + 4) = make_float4(low_half(v.z), high_half(v.z), low_half(v.w), high_half(v.w));
        }
    } else {
        for (u32 i = threadIdx.x; i < n * dim; i += THREADS) {
            u32 key = i / dim, c = i % dim;
            to[key * stride + c] = cache_element(cache + rows[key] * bytes, type, first_col + c);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(const __grid_constant__ AttentionArgs a) {
    extern __shared__ __align__(16) float memory[];
    constexpr u32 q_stride = (HEAD_DIM + 15) / 16 * 16, key_stride = q_stride + 4, value_stride = (VALUE_DIM + 3) / 4 * 4;
    float *q = memory;                    // [GROUP, q_stride]
    float *keys = q + GROUP * q_stride;   // [KEYS, key_stride]
    float *values = keys + KEYS * key_stride; // [KEYS, value_stride]
    float *p = values + KEYS * value_stride;  // [GROUP, KEYS]
    __shared__ u32 rows[KEYS];
    __shared__ float tops[GROUP], sums[GROUP], shrinks[GROUP];
    __shared__ u32 arrived;

    const u32 token = blockIdx.z, kv = blockIdx.y / a.groups, group = blockIdx.y % a.groups;
    const u32 per_kv = a.heads / a.kv_heads, head0 = kv * per_kv + group * GROUP;
    const u32 count = min((u32)GROUP, per_kv - group * GROUP);
    let_next_start();
    after_previous();

    u32 sequence = 0;
    while (sequence + 1 < a.sequences && token >= (u32)a.ranges[sequence + 1]) sequence++;
    const u32 n_all = (u32)a.positions[token] + 1;
    const u32 first_all = a.window != 0 && n_all > a.window ? n_all - a.window : 0;
    // Whole tiles for each split.
    const u32 tiles = (n_all - first_all + KEYS - 1) / KEYS, per_split = (tiles + a.splits - 1) / a.splits;
    const u32 used = (tiles + per_split - 1) / per_split;
    if (blockIdx.x >= used) return;
    const u32 first = first_all + blockIdx.x * per_split * KEYS, end = min(n_all, first + per_split * KEYS);

    for (u32 i = threadIdx.x; i < GROUP * q_stride; i += THREADS) {
        u32 h = i / q_stride, c = i % q_stride;
        q[i] = h < count && c < HEAD_DIM ? a.q[((u64)token * a.heads + head0 + h) * HEAD_DIM + c] : 0;
    }
    if (threadIdx.x < GROUP) {
        // A sink is a score without a value.
        const bool has_sink = a.sinks && blockIdx.x == 0 && threadIdx.x < count;
        tops[threadIdx.x] = has_sink ? a.sinks[head0 + threadIdx.x] : -INFINITE;
        sums[threadIdx.x] = has_sink ? 1 : 0;
    }
    // A column of the values for each thread; where there are fewer columns, several threads share the keys.
    constexpr u32 lanes = VALUE_DIM > 128 ? 256 : VALUE_DIM > 64 ? 128 : VALUE_DIM > 32 ? 64 : 32, parts = THREADS / lanes;
    const u32 col = threadIdx.x % lanes, part = threadIdx.x / lanes;
    float acc[GROUP];
#pragma unroll
    for (int h = 0; h < GROUP; h++) acc[h] = 0;

    for (u32 at = first; at < end; at += KEYS) {
        const u32 n = min((u32)KEYS, end - at);
        __syncthreads();
        if (threadIdx.x < KEYS) {
            u32 key = at + min(threadIdx.x, n - 1);
            u32 page = (u32)a.pages[sequence * a.max_pages + key / a.page_len];
            u32 row = page * a.page_len + key % a.page_len;
            // The host has checked it; this keeps a broken promise inside the cache.
            rows[threadIdx.x] = row < a.cache_rows ? row : 0;
        }
        __syncthreads();
        load_tile<HEAD_DIM>(a.keys, a.key_type, a.kv_heads * HEAD_DIM, kv * HEAD_DIM, rows, n, keys, key_stride);
        load_tile<VALUE_DIM>(a.values, a.value_type, a.kv_heads * VALUE_DIM, kv * VALUE_DIM, rows, n, values, value_stride);
        // Past the last column of a head that is no whole number of loads.
        if constexpr (HEAD_DIM != q_stride) {
            constexpr u32 rest = q_stride - HEAD_DIM;
            for (u32 i = threadIdx.x; i < n * rest; i += THREADS) keys[i / rest * key_stride + HEAD_DIM + i % rest] = 0;
        }
        __syncthreads();
        {
            const u32 key = threadIdx.x / PER_KEY, quarter = threadIdx.x % PER_KEY;
            float s[GROUP];
#pragma unroll
            for (int h = 0; h < GROUP; h++) s[h] = 0;
            if (key < n) {
                for (u32 c = quarter * 4; c < q_stride; c += PER_KEY * 4) {
                    float4 k = *(const float4 *)(keys + key * key_stride + c);
#pragma unroll
                    for (int h = 0; h < GROUP; h++) {
                        float4 v = *(const float4 *)(q + h * q_stride + c);
                        s[h] = fmaf(k.x, v.x, fmaf(k.y, v.y, fmaf(k.z, v.z, fmaf(k.w, v.w, s[h]))));
                    }
                }
            }
#pragma unroll
            for (int h = 0; h < GROUP; h++) {
                s[h] += __shfl_xor_sync(FULL, s[h], 1);
                s[h] += __shfl_xor_sync(FULL, s[h], 2);
                if (quarter == 0) p[h * KEYS + key] = key < n ? scored(a, s[h]) : -INFINITE;
            }
        }
        __syncthreads();
        // Softmax of the tile: a warp for each head.
        for (u32 h = threadIdx.x / 32; h < GROUP; h += THREADS / 32) {
            const u32 lane = threadIdx.x % 32;
            float u = p[h * KEYS + lane], v = p[h * KEYS + 32 + lane];
            float top = fmaxf(tops[h], warp_max(fmaxf(u, v)));
            u = expf(u - top), v = expf(v - top);
            p[h * KEYS + lane] = u, p[h * KEYS + 32 + lane] = v;
            float sum = warp_sum(u + v);
            if (lane == 0) {
                float old = expf(tops[h] - top);
                shrinks[h] = old;
                sums[h] = sums[h] * old + sum;
                tops[h] = top;
            }
        }
        __syncthreads();
        if (col < VALUE_DIM) {
#pragma unroll
            for (int h = 0; h < GROUP; h++) acc[h] *= shrinks[h];
            for (u32 key = part * 4; key < n; key += parts * 4) {
                float x[4];
#pragma unroll
                for (u32 k = 0; k < 4; k++) x[k] = key + k < n ? values[(key + k) * value_stride + col] : 0;
#pragma unroll
                for (int h = 0; h < GROUP; h++) {
                    float4 w = *(const float4 *)(p + h * KEYS + key);
                    acc[h] = fmaf(w.x, x[0], fmaf(w.y, x[1], fmaf(w.z, x[2], fmaf(w.w, x[3], acc[h]))));
                }
            }
        }
    }
    // The parts of a column, in their order.
    if constexpr (parts > 1) {
        float *shared = keys; // [parts, GROUP, lanes]: at most THREADS * GROUP floats
        __syncthreads();
#pragma unroll
        for (int h = 0; h < GROUP; h++) shared[(part * GROUP + h) * lanes + col] = acc[h];
        __syncthreads();
        if (part == 0) {
#pragma unroll
            for (int h = 0; h < GROUP; h++)
                for (u32 i = 1; i < parts; i++) acc[h] += shared[(i * GROUP + h) * lanes + col];
        }
    }
    const bool mine = part == 0 && col < VALUE_DIM;

    if (used == 1) {
        if (mine) {
#pragma unroll
            for (int h = 0; h < GROUP; h++)
                if (h < count) a.out[((u64)token * a.heads + head0 + h) * VALUE_DIM + col] = acc[h] / sums[h];
        }
        return;
    }
    constexpr u32 width = VALUE_DIM + 2;
    const u64 place = (u64)token * gridDim.y + blockIdx.y;
    float *partial = a.partial + (place * a.splits + blockIdx.x) * GROUP * width;
    if (mine) {
#pragma unroll
        for (int h = 0; h < GROUP; h++) partial[h * width + col] = acc[h];
    }
    if (threadIdx.x < GROUP) {
        partial[threadIdx.x * width + VALUE_DIM] = tops[threadIdx.x];
        partial[threadIdx.x * width + VALUE_DIM + 1] = sums[threadIdx.x];
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(a.done + place, 1);
    __syncthreads();
    if (arrived + 1 < used) return;
    __threadfence();
    const volatile float *all = a.partial + place * a.splits * GROUP * width;
    for (u32 i = threadIdx.x; i < count * VALUE_DIM; i += THREADS) {
        u32 h = i / VALUE_DIM, column = i % VALUE_DIM;
        float top = -INFINITE, sum = 0, value = 0;
        for (u32 s = 0; s < used; s++) top = fmaxf(top, all[(s * GROUP + h) * width + VALUE_DIM]);
        for (u32 s = 0; s < used; s++) {
            const volatile float *found = all + (s * GROUP + h) * width;
            float w = expf(found[VALUE_DIM] - top);
            sum = fmaf(w, found[VALUE_DIM + 1], sum);
            value = fmaf(w, found[column], value);
        }
        a.out[((u64)token * a.heads + head0 + h) * VALUE_DIM + column] = value / sum;
    }
    if (threadIdx.x == 0) a.done[place] = 0;
}
