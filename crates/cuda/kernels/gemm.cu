// Several rows of activations times a matrix: prompts and batches.
//
// Weights are decoded to scaled halves in registers, where the tensor cores take them from; activations come as halves
// from shared memory. A block makes ROWS results of each of TOKENS rows of activations. Where there are few blocks, the
// columns are shared out over several, whose sums `combine` adds up in their order.
#include "tiled.cuh"

struct GemmArgs {
    const u8 *weight;   // tiled
    const u16 *halves;  // [tokens, padded]
    const float *unscale; // of each row of activations
    const float *bias;  // or null
    const float *residual; // [tokens, rows], or null
    float *out;         // [tokens, rows], or [splits, tokens, rows]
    u32 rows, tokens, padded;
    u32 tiles, units, units_per_split;
    // Where each row of results is with one of several matrices, which lie below each other: what `experts.cu` made of the
    // choice, `tokens` being results in all.
    u32 matrices, products_per_row; // products_per_row: of a row of activations
    const int *order;
    const uint4 *work;
};

// Tiles per warp, groups of 8 tokens per warp, warps by rows and by tokens, stages.
#ifndef CONFIG
#define CONFIG 1, 1, 8, 1, 3
#define CHOSEN 0 // whether there are several matrices
#endif

// The rows of results of a block: `first ..` up to `end`, or of the places in the order.
struct Rows {
    u32 first, end;
    // The row of results.
    __device__ __forceinline__ u32 result(const GemmArgs &a, u32 at) const { return CHOSEN ? (u32)a.order[at] : at; }
    // The row of activations, also for places behind the end.
    __device__ __forceinline__ u32 input(const GemmArgs &a, u32 at) const {
        at = at < end ? at : end - 1;
        return CHOSEN ? (u32)a.order[at] / a.products_per_row : at;
    }
};

template <int F> __device__ __forceinline__ u32 pair_of(float v) {
    u32 h = to_half(v);
    return h | h << 16;
}

template <int F, int MI, int NI, int WM, int WN, int STAGES> struct Gemm {
    typedef Record<F> R;
    enum {
        THREADS = WM * WN * 32,
        TILES = MI * WM,
        TOKENS = NI * 8 * WN,
        // 64 bytes more than a whole number of lines, so that the lanes of a load meet different banks.
        STRIDE = R::UNIT * 2 + 64,
        A_BYTES = TILES * R::SIZE,
        B_BYTES = TOKENS * STRIDE,
        STAGE = A_BYTES + B_BYTES
    };
};

template <int F, int MI, int NI, int WM, int WN, int STAGES>
__device__ __forceinline__ void fetch(const GemmArgs &a, const u8 *weight, const Rows &rows, u8 *to, u32 tile0, u32 unit) {
    typedef Gemm<F, MI, NI, WM, WN, STAGES> G;
    typedef Record<F> R;
    const int tid = threadIdx.x;
    for (int i = tid; i < G::A_BYTES / 16; i += G::THREADS) {
        u32 tile = tile0 + i / (R::SIZE / 16);
        tile = tile < a.tiles ? tile : a.tiles - 1;
        copy16(to + i * 16, record<F>(weight, a.units, tile, unit) + i % (R::SIZE / 16) * 16);
    }
    const int line = R::UNIT * 2 / 16;
    for (int i = tid; i < G::TOKENS * line; i += G::THREADS) {
        const u32 token = rows.input(a, rows.first + i / line);
        copy16(to + G::A_BYTES + i / line * G::STRIDE + i % line * 16,
               a.halves + (u64)token * a.padded + unit * R::UNIT + i % line * 8);
    }
}

template <int F, int MI, int NI, int WM, int WN, int STAGES> __device__ __forceinline__ void gemm(const GemmArgs &a) {
    typedef Gemm<F, MI, NI, WM, WN, STAGES> G;
    typedef Record<F> R;
    extern __shared__ __align__(16) u8 shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int wm = warp % WM, wn = warp / WM;
    const u32 tile0 = blockIdx.y * G::TILES;
    const u32 first = blockIdx.z * a.units_per_split;
    const u32 last = min(first + a.units_per_split, a.units);
    float acc[MI][NI][4];
#pragma unroll
    for (int m = 0; m < MI; m++)
#pragma unroll
        for (int n = 0; n < NI; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) acc[m][n][k] = 0;
    let_next_start();
    after_previous();
    Rows rows = {blockIdx.x * G::TOKENS, a.tokens};
    const u8 *weight = a.weight;
    const float *bias = a.bias;
#if CHOSEN
    const uint4 work = a.work[blockIdx.x];
    if (work.z == 0) return;
    rows.first = work.y, rows.end = work.y + work.z;
    if (work.x >= a.matrices) {
        // There is no such matrix.
        for (u32 i = threadIdx.x; i < work.z * G::TILES * 16; i += G::THREADS) {
            const u32 row = tile0 * 16 + i % (G::TILES * 16);
            if (row < a.rows) a.out[(u64)rows.result(a, rows.first + i / (G::TILES * 16)) * a.rows + row] = __int_as_float(0x7fc00000);
        }
        return;
    }
    weight += (u64)work.x * a.tiles * a.units * R::SIZE;
    if (bias) bias += (u64)work.x * a.rows;
#endif
    const float scale = weight_scale(a.weight);
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s < last) fetch<F, MI, NI, WM, WN, STAGES>(a, weight, rows, shared + s * G::STAGE, tile0, first + s);
        copies_commit();
    }
    u32 stage = 0;
    for (u32 unit = first; unit < last; unit++) {
        copies_wait<STAGES - 2>();
        __syncthreads();
        u32 ahead = unit + STAGES - 1, into = stage + STAGES - 1 >= STAGES ? stage - 1 : stage + STAGES - 1;
        if (ahead < last) fetch<F, MI, NI, WM, WN, STAGES>(a, weight, rows, shared + into * G::STAGE, tile0, ahead);
        copies_commit();
        const u8 *A = shared + stage * G::STAGE + wm * MI * R::SIZE;
        const u8 *B = shared + stage * G::STAGE + G::A_BYTES + (wn * NI * 8 + g) * G::STRIDE + t * 16;
        Scales<F> scales[MI];
#pragma unroll
        for (int m = 0; m < MI; m++) scales[m].read(A + m * R::SIZE, g);
#pragma unroll
        for (int i = 0; i < R::GROUPS; i++) {
            uint4 b[NI];
#pragma unroll
            for (int n = 0; n < NI; n++) b[n] = *(const uint4 *)(B + n * 8 * G::STRIDE + i * 64);
#pragma unroll
            for (int m = 0; m < MI; m++) {
                const u8 *rec = A + m * R::SIZE;
                u32 w[2][4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    halves_of_row<F>(rec, lane, i, r, w[r]);
                    if constexpr (!R::IS_FLOAT) {
#pragma unroll
                        for (int j = 0; j < 64 / R::SPAN / 2; j++) {
                            float s, m0;
                            scales[m].at(rec, g, 2 * i + j, r, s, m0);
                            u32 s2 = pair_of<F>(s * scale), m2 = R::HAS_MIN ? pair_of<F>(m0 * scale) : 0;
#pragma unroll
                            for (int p = R::SPAN / 8 * j; p < R::SPAN / 8 * (j + 1); p++)
                                w[r][p] = R::HAS_MIN ? half2_fma(w[r][p], s2, m2) : half2_mul(w[r][p], s2);
                        }
                    }
                }
#pragma unroll
                for (int n = 0; n < NI; n++) {
                    mma(acc[m][n], w[0][0], w[1][0], w[0][1], w[1][1], b[n].x, b[n].y);
                    mma(acc[m][n], w[0][2], w[1][2], w[0][3], w[1][3], b[n].z, b[n].w);
                }
                if constexpr (R::BITS == 32) {
                    low_halves(rec, lane, i, 0, w[0]);
                    low_halves(rec, lane, i, 1, w[1]);
#pragma unroll
                    for (int n = 0; n < NI; n++) {
                        mma(acc[m][n], w[0][0], w[1][0], w[0][1], w[1][1], b[n].x, b[n].y);
                        mma(acc[m][n], w[0][2], w[1][2], w[0][3], w[1][3], b[n].z, b[n].w);
                    }
                }
            }
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    const bool whole = gridDim.z == 1;
    const float unscale = 1.0f / scale;
    float *out = a.out + (u64)blockIdx.z * a.tokens * a.rows;
#pragma unroll
    for (int n = 0; n < NI; n++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const u32 at = rows.first + (wn * NI + n) * 8 + 2 * t + k;
            if (at >= rows.end) continue;
            const u32 token = rows.result(a, at);
            const float factor = a.unscale[rows.input(a, at)] * unscale;
#pragma unroll
            for (int m = 0; m < MI; m++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    u32 row = (tile0 + wm * MI + m) * 16 + g + 8 * r;
                    if (row >= a.rows) continue;
                    float v = acc[m][n][2 * r + k] * factor;
                    if (whole) {
                        if (bias) v += bias[row];
                        if (a.residual) v += a.residual[(u64)token * a.rows + row];
                    }
                    out[(u64)token * a.rows + row] = v;
                }
        }
}
extern "C" __global__ void NAME(const __grid_constant__ GemmArgs a) { gemm<FORMAT, CONFIG>(a); }
