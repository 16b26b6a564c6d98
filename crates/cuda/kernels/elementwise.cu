// Element by element, and copies.
#include "common.cuh"

enum { ADD, MUL, SCALE, ACTIVATION, SOFT_CAP, GATED, CLAMPED };
struct ElementwiseArgs {
    const float *a, *b;
    float *out;
    u32 elements, b_elements; // b is repeated
    int op, activation;
    float factor, limit;
};
extern "C" __global__ void __launch_bounds__(256) elementwise(const __grid_constant__ ElementwiseArgs e) {
    let_next_start();
    after_previous();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < e.elements; i += gridDim.x * blockDim.x) {
        float a = e.a[i], b = e.b ? e.b[e.b_elements == e.elements ? i : i % e.b_elements] : 0, y;
        switch (e.op) {
        case ADD: y = a + b; break;
        case MUL: y = a * b; break;
        case SCALE: y = e.factor * a; break;
        case ACTIVATION: y = activate(e.activation, a); break;
        case SOFT_CAP: y = e.factor * tanhf(a / e.factor); break;
        case CLAMPED:
            // What is no number stays none.
            a = a > e.limit ? e.limit : a, b = b > e.limit ? e.limit : b < -e.limit ? -e.limit : b;
            y = (b + 1.0f) * a / (1.0f + expf(-e.factor * a));
            break;
        default: y = activate(e.activation, a) * b;
        }
        e.out[i] = y;
    }
}

struct WindowArgs {
    const u32 *x;
    u32 *out;
    u32 x_cols, first_row, first_col, rows, cols;
};
extern "C" __global__ void __launch_bounds__(256) window(const __grid_constant__ WindowArgs a) {
    let_next_start();
    after_previous();
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < (u64)a.rows * a.cols; i += (u64)gridDim.x * blockDim.x)
        a.out[i] = a.x[(a.first_row + i / a.cols) * a.x_cols + a.first_col + i % a.cols];
}

// [n, heads * d] to [heads * n, d].
struct PermuteArgs {
    const float *x;
    float *out;
    u32 tokens, heads, width;
};
extern "C" __global__ void __launch_bounds__(256) permute(const __grid_constant__ PermuteArgs a) {
    let_next_start();
    after_previous();
    u64 n = (u64)a.tokens * a.heads * a.width;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < n; i += (u64)gridDim.x * blockDim.x) {
        u64 col = i % a.width, row = i / a.width, head = row / a.tokens, token = row % a.tokens;
        a.out[i] = a.x[(token * a.heads + head) * a.width + col];
    }
}

// Products of pairs of activation matrices: a thread for each result.
struct BatchArgs {
    const float *a, *b;
    float *out;
    u32 m, n, k, rows; // rows of the result in all
};
extern "C" __global__ void __launch_bounds__(256) batch_matmul(const __grid_constant__ BatchArgs p) {
    let_next_start();
    after_previous();
    u64 total = (u64)p.rows * p.n;
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < total; i += (u64)gridDim.x * blockDim.x) {
        u64 row = i / p.n, col = i % p.n, batch = row / p.m;
        const float *a = p.a + row * p.k, *b = p.b + (batch * p.n + col) * p.k;
        float sum = 0;
        for (u32 j = 0; j < p.k; j++) sum = fmaf(a[j], b[j], sum);
        p.out[i] = sum;
    }
}
