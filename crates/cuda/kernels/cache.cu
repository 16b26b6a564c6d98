// What lies between the projections and attention: biases, norms of heads, rotation, and the store.
#include "cache.cuh"

// Heads of one kind: where they come from, what is done to them, and where they go.
struct Heads {
    const float *x; // null if there are none
    const float *bias, *norm; // or null
    float *out;     // rows as those of `x` without gaps, or null: to the cache
    u8 *cache;
    u32 heads, width, x_stride, out_stride;
    u32 turned;
    int type; // of the cache
};
struct HeadsArgs {
    Heads kinds[3];
    const float2 *angles;
    const int *cache_rows;
    u32 tokens, cache_rows_limit, pairs;
    u32 interleaved;
    float epsilon;
};

// A warp for each head of each token, with a head's elements in shared memory.
extern "C" __global__ void __launch_bounds__(128) heads(const __grid_constant__ HeadsArgs a) {
    extern __shared__ float rows[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 head = blockIdx.x * (blockDim.x / 32) + warp, token = blockIdx.y, kind = 0;
    while (kind < 3 && head >= a.kinds[kind].heads) head -= a.kinds[kind++].heads;
    let_next_start();
    after_previous();
    if (kind == 3) return;
    const Heads &h = a.kinds[kind];
    u32 most = max(a.kinds[0].width, max(a.kinds[1].width, a.kinds[2].width));
    float *row = rows + warp * (most + 32);
    const float *x = h.x + (u64)token * h.x_stride + head * h.width;
    float squares = 0;
#pragma unroll 4
    for (u32 i = lane; i < h.width; i += 32) {
        float v = x[i];
        if (h.bias) v += h.bias[head * h.width + i];
        row[i] = v;
        squares = fmaf(v, v, squares);
    }
    if (h.norm) {
        squares = warp_sum(squares);
        float factor = 1.0f / sqrtf(squares / h.width + a.epsilon);
        for (u32 i = lane; i < h.width; i += 32) row[i] = row[i] * factor * h.norm[i];
    }
    __syncwarp();
    if (h.turned) {
        for (u32 i = lane; i < a.pairs; i += 32) {
            u32 p = a.interleaved ? 2 * i : i, q = a.interleaved ? 2 * i + 1 : i + a.pairs;
            float2 cs = a.angles[(u64)token * a.pairs + i];
            float u = row[p], v = row[q];
            row[p] = __fsub_rn(__fmul_rn(u, cs.x), __fmul_rn(v, cs.y));
            row[q] = __fadd_rn(__fmul_rn(u, cs.y), __fmul_rn(v, cs.x));
        }
        __syncwarp();
    }
    if (h.out) {
        float *out = h.out + (u64)token * h.out_stride + head * h.width;
        for (u32 i = lane; i < h.width; i += 32) out[i] = row[i];
    } else {
        u32 at = (u32)a.cache_rows[token];
        // The host has checked it; this keeps a broken promise from writing elsewhere.
        if (at >= a.cache_rows_limit) return;
        u64 bytes = cache_row_bytes(h.type, h.heads * h.width);
        u8 *to = h.cache + at * bytes + cache_row_bytes(h.type, head * h.width);
        for (u32 first = 0; first < h.width; first += 32) {
            bool inside = first + lane < h.width;
            store_run(to, h.type, first, lane, inside ? row[first + lane] : 0, inside);
        }
    }
}

struct LoadArgs {
    const u8 *cache;
    const int *rows;
    float *out;
    u32 limit, cols;
    int type;
};
extern "C" __global__ void __launch_bounds__(256) kv_load(const __grid_constant__ LoadArgs a) {
    let_next_start();
    after_previous();
    u32 row = (u32)a.rows[blockIdx.x];
    row = row < a.limit ? row : 0;
    const u8 *from = a.cache + row * cache_row_bytes(a.type, a.cols);
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) a.out[(u64)blockIdx.x * a.cols + i] = cache_element(from, a.type, i);
}
