// Rows of activations as halves, in panels of 64 columns that bulk copies bring to shared memory as they are: a row of a
// panel is 128 bytes, whose 16-byte pieces are swapped by the lowest three bits of the row's number. Of 16 columns, those
// of even numbers come first: so the lanes that have decoded weights find theirs (see `tiled.cuh`). A norm or a gate can
// come first.
#include "common.cuh"

struct PanelsArgs {
    const float *x;
    const float *norm; // weight, or null
    const float *gate; // `x` is multiplied by its activation, or null
    u8 *panels;        // [padded / 64, padded_tokens, 64 halves]
    float *unscale;    // what the products of each row must be multiplied by
    u32 cols, padded, padded_tokens, normed;
    int activation;
    float epsilon;
};

// 16 columns, zeros past the last.
struct Columns {
    float v[16];

    __device__ __forceinline__ void read(const float *x, u32 col, u32 cols) {
        if (cols % 16 == 0) {
#pragma unroll
            for (int i = 0; i < 16; i += 4) {
                float4 f = make_float4(0, 0, 0, 0);
                if (col < cols) f = *(const float4 *)(x + col + i);
                v[i] = f.x, v[i + 1] = f.y, v[i + 2] = f.z, v[i + 3] = f.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < 16; i++) v[i] = col + i < cols ? x[col + i] : 0;
        }
    }
    __device__ __forceinline__ void times(const Columns &other) {
#pragma unroll
        for (int i = 0; i < 16; i++) v[i] *= other.v[i];
    }
};

// A block for each row, a thread for every few columns: the first HELD of its runs of 16 stay in registers.
enum { HELD = 3 };
extern "C" __global__ void __launch_bounds__(512) panels(const __grid_constant__ PanelsArgs a) {
    __shared__ float scratch[64];
    const u32 token = blockIdx.x;
    const float *x = a.x + (u64)token * a.cols, *gate = a.gate + (u64)token * a.cols;
    let_next_start();
    after_previous();
    float squares = 0, top = 0;
    auto load = [&](Columns &c, u32 run) {
        c.read(x, run * 16, a.cols);
        if (a.gate) {
            Columns by;
            by.read(gate, run * 16, a.cols);
#pragma unroll
            for (int i = 0; i < 16; i++) c.v[i] = activate(a.activation, by.v[i]) * c.v[i];
        }
    };
    // After the sum of squares, what a norm multiplies by.
    auto weigh = [&](Columns &c, u32 run) {
        if (a.norm) {
            Columns weight;
            weight.read(a.norm, run * 16, a.cols);
            c.times(weight);
        }
    };
    auto measure = [&](Columns &c, u32 run) {
#pragma unroll
        for (int i = 0; i < 16; i++) squares = fmaf(c.v[i], c.v[i], squares);
        weigh(c, run);
#pragma unroll
        for (int i = 0; i < 16; i++) top = fmaxf(top, fabsf(c.v[i]));
    };
    const u32 runs = a.padded / 16;
    Columns held[HELD];
#pragma unroll
    for (u32 h = 0; h < HELD; h++) {
        const u32 run = threadIdx.x + h * blockDim.x;
        if (run < runs) load(held[h], run), measure(held[h], run);
    }
    for (u32 run = threadIdx.x + HELD * blockDim.x; run < runs; run += blockDim.x) {
        Columns c;
        load(c, run), measure(c, run);
    }
    squares = block_sum(squares, scratch);
    top = block_max(top, scratch + 32);
    float factor = a.normed ? 1.0f / sqrtf(squares / a.cols + a.epsilon) : 1.0f;
    const float scale = half_range_scale(top * factor);
    factor *= scale;
    if (threadIdx.x == 0) a.unscale[token] = 1.0f / scale;
    auto store = [&](const Columns &c, u32 run) {
        u8 *line = a.panels + ((u64)(run / 4) * a.padded_tokens + token) * 128;
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            u32 packed[4];
#pragma unroll
            for (int p = 0; p < 4; p++)
                packed[p] = to_half2(c.v[4 * p + odd] * factor, c.v[4 * p + 2 + odd] * factor);
            const u32 piece = (run % 4 * 2 + odd) ^ (token % 8);
            *(uint4 *)(line + piece * 16) = *(uint4 *)packed;
        }
    };
#pragma unroll
    for (u32 h = 0; h < HELD; h++) {
        const u32 run = threadIdx.x + h * blockDim.x;
        if (run < runs) store(held[h], run);
    }
    for (u32 run = threadIdx.x + HELD * blockDim.x; run < runs; run += blockDim.x) {
        Columns c;
        load(c, run), weigh(c, run), store(c, run);
    }
}
