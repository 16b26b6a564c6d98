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
    u32 holds; // whether a row fits in shared memory
    int activation;
    float epsilon;
};

__device__ __forceinline__ float4 times(float4 a, float4 b) {
    return make_float4(a.x * b.x, a.y * b.y, a.z * b.z, a.w * b.w);
}
// Four columns of a row, zeros past the last.
__device__ __forceinline__ float4 columns(const float *x, u32 col, u32 cols) {
    if (cols % 4 == 0) return col < cols ? *(const float4 *)(x + col) : make_float4(0, 0, 0, 0);
    return make_float4(col < cols ? x[col] : 0, col + 1 < cols ? x[col + 1] : 0, col + 2 < cols ? x[col + 2] : 0,
                       col + 3 < cols ? x[col + 3] : 0);
}

// A block for each row. What was read stays in shared memory, where there is room: fours of columns, of each 16 in an order
// by which the lanes of a warp meet different banks.
extern "C" __global__ void __launch_bounds__(512) panels(const __grid_constant__ PanelsArgs a) {
    extern __shared__ float4 held[];
    __shared__ float scratch[64];
    const u32 token = blockIdx.x;
    const float *x = a.x + (u64)token * a.cols, *gate = a.gate + (u64)token * a.cols;
    auto place = [](u32 four) { return four ^ (four / 8 % 4); };
    float squares = 0;
    // Four columns after the gate and the norm's weight.
    auto read = [&](u32 four) {
        float4 v = columns(x, four * 4, a.cols);
        if (a.gate) {
            const float4 by = columns(gate, four * 4, a.cols);
            v = times(v, make_float4(activate(a.activation, by.x), activate(a.activation, by.y),
                                     activate(a.activation, by.z), activate(a.activation, by.w)));
        }
        squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, squares))));
        return a.norm ? times(v, columns(a.norm, four * 4, a.cols)) : v;
    };
    let_next_start();
    after_previous();
    float top = 0;
#pragma unroll 4
    for (u32 four = threadIdx.x; four < a.padded / 4; four += blockDim.x) {
        const float4 v = read(four);
        top = fmaxf(top, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        if (a.holds) held[place(four)] = v;
    }
    squares = block_sum(squares, scratch);
    top = block_max(top, scratch + 32);
    float factor = a.normed ? 1.0f / sqrtf(squares / a.cols + a.epsilon) : 1.0f;
    const float scale = half_range_scale(top * factor);
    factor *= scale;
    if (threadIdx.x == 0) a.unscale[token] = 1.0f / scale;
    for (u32 run = threadIdx.x; run < a.padded / 16; run += blockDim.x) {
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = a.holds ? held[place(run * 4 + i)] : read(run * 4 + i);
        u8 *line = a.panels + ((u64)(run / 4) * a.padded_tokens + token) * 128;
        u32 even[4], odd[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            even[i] = to_half2(v[i].x * factor, v[i].z * factor);
            odd[i] = to_half2(v[i].y * factor, v[i].w * factor);
        }
        const u32 piece = run % 4 * 2 ^ token % 8;
        *(uint4 *)(line + piece * 16) = *(uint4 *)even;
        *(uint4 *)(line + (piece ^ 1) * 16) = *(uint4 *)odd;
    }
}
