// Normalisations and softmax: a block for each row, or a warp for narrow ones.
#include "common.cuh"

struct NormArgs {
    const float *x, *weight; // or null
    float *out;
    u32 rows, cols, weight_cols; // a row of the weight for every `weight_cols` columns
    float epsilon, scale;
};
extern "C" __global__ void __launch_bounds__(256) rms_norm(const __grid_constant__ NormArgs a) {
    __shared__ float scratch[32];
    const float *x = a.x + (u64)blockIdx.x * a.cols;
    float *out = a.out + (u64)blockIdx.x * a.cols;
    let_next_start();
    after_previous();
    float squares = 0;
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) squares = fmaf(x[i], x[i], squares);
    squares = block_sum(squares, scratch);
    float factor = 1.0f / sqrtf(squares / a.cols + a.epsilon);
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = a.weight ? x[i] * factor * a.weight[i] : x[i] * factor;
}
// Heads: a warp for each.
extern "C" __global__ void __launch_bounds__(128) head_norm(const __grid_constant__ NormArgs a) {
    u32 row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    after_previous();
    if (row >= a.rows) return;
    const float *x = a.x + (u64)row * a.cols;
    float squares = 0;
    for (u32 i = lane; i < a.cols; i += 32) squares = fmaf(x[i], x[i], squares);
    squares = warp_sum(squares);
    float factor = 1.0f / sqrtf(squares / a.cols + a.epsilon);
    for (u32 i = lane; i < a.cols; i += 32) a.out[(u64)row * a.cols + i] = x[i] * factor * a.weight[i];
}
extern "C" __global__ void __launch_bounds__(256) softmax(const __grid_constant__ NormArgs a) {
    __shared__ float scratch[64];
    const float *x = a.x + (u64)blockIdx.x * a.cols;
    float *out = a.out + (u64)blockIdx.x * a.cols;
    let_next_start();
    after_previous();
    float top = -INFINITE, sum = 0;
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) top = fmaxf(top, a.scale * x[i]);
    top = block_max(top, scratch);
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) sum += expf(a.scale * x[i] - top);
    sum = block_sum(sum, scratch + 32);
    for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) out[i] = expf(a.scale * x[i] - top) / sum;
}
