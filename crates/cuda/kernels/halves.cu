// Rows of activations as halves in the order of the slots, for products of several rows. A norm can come first.
#include "tiled.cuh"

struct HalvesArgs {
    const float *x;
    const float *norm; // weight, or null
    u16 *halves;       // [rows, padded]
    float *unscale;    // what the products of each row must be multiplied by
    u32 cols, padded, normed;
    float epsilon;
};

// A block for each row.
extern "C" __global__ void __launch_bounds__(256) halves(const __grid_constant__ HalvesArgs a) {
    __shared__ float scratch[64];
    const float *x = a.x + (u64)blockIdx.x * a.cols;
    u16 *out = a.halves + (u64)blockIdx.x * a.padded;
    let_next_start();
    after_previous();
    float squares = 0, top = 0;
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) {
        float v = x[i];
        squares = fmaf(v, v, squares);
        top = fmaxf(top, fabsf(a.norm ? v * a.norm[i] : v));
    }
    squares = block_sum(squares, scratch);
    top = block_max(top, scratch + 32);
    float factor = a.normed ? 1.0f / sqrtf(squares / a.cols + a.epsilon) : 1.0f;
    float scale = half_range_scale(top * factor);
    factor *= scale;
    if (threadIdx.x == 0) a.unscale[blockIdx.x] = 1.0f / scale;
    for (u32 c = threadIdx.x; c < a.padded / 8; c += blockDim.x) {
        u32 packed[4];
#pragma unroll
        for (int p = 0; p < 8; p += 2) {
            float v[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                u32 col = c / 4 * 32 + slot_column(c % 4, slot_at(p + k));
                v[k] = col < a.cols ? x[col] * factor : 0;
                if (a.norm && col < a.cols) v[k] *= a.norm[col];
            }
            packed[p / 2] = to_half2(v[0], v[1]);
        }
        *(uint4 *)(out + c * 8) = *(uint4 *)packed;
    }
}
