// Adds up the sums of products whose columns were shared out over blocks.
#include "common.cuh"

struct CombineArgs {
    const float *parts; // [splits, tokens, rows]
    const float *bias, *residual; // or null
    float *out;
    u32 rows, elements, splits;
};
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ CombineArgs a) {
    let_next_start();
    after_previous();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.elements; i += gridDim.x * blockDim.x) {
        float v = 0;
        for (u32 s = 0; s < a.splits; s++) v += a.parts[(u64)s * a.elements + i];
        if (a.bias) v += a.bias[i % a.rows];
        if (a.residual) v += a.residual[i];
        a.out[i] = v;
    }
}
