// Mixtures of experts: the choice of a router, the order in which rows are multiplied, and the sum of what experts give.
#include "decode.cuh"

// The columns of the largest elements of rows, in descending order, of equal ones the lower first, and what is no number
// last. A warp for each row: each time it takes the best of what ranks behind the one before.
struct TopKArgs {
    const float *x;
    int *out; // [rows, k]
    u32 rows, cols, k;
};
__device__ __forceinline__ u64 rank_of(float v, u32 column) {
    const u32 bits = __float_as_uint(v == 0 ? 0.0f : v);
    const u32 key = v != v ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
    return (u64)key << 32 | (u32)~column;
}
extern "C" __global__ void __launch_bounds__(128) top_k(const __grid_constant__ TopKArgs a) {
    const u32 row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
    let_next_start();
    after_previous();
    if (row >= a.rows) return;
    const float *x = a.x + (u64)row * a.cols;
    u64 last = ~0ull;
    for (u32 j = 0; j < a.k; j++) {
        u64 best = 0;
        for (u32 c = lane; c < a.cols; c += 32) {
            const u64 rank = rank_of(x[c], c);
            if (rank < last) best = max(best, rank);
        }
#pragma unroll
        for (int i = 16; i > 0; i >>= 1) best = max(best, __shfl_xor_sync(FULL, best, i));
        if (lane == 0) a.out[(u64)row * a.k + j] = (int)~(u32)best;
        last = best;
    }
}

struct GatherArgs {
    const float *x;
    const int *columns; // [rows, k]
    float *out;
    u32 elements, cols, k;
};
extern "C" __global__ void __launch_bounds__(256) gather_cols(const __grid_constant__ GatherArgs a) {
    let_next_start();
    after_previous();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.elements; i += gridDim.x * blockDim.x) {
        const u32 column = (u32)a.columns[i];
        a.out[i] = column < a.cols ? a.x[(u64)(i / a.k) * a.cols + column] : __int_as_float(0x7fc00000);
    }
}

// Sums of what the experts of a token give, in the order of the choice.
struct CombineArgs {
    const float *y;       // [tokens * used, cols]
    const float *weights; // [tokens, used]
    float *out;
    u32 elements, cols, used;
};
extern "C" __global__ void __launch_bounds__(256) combine_experts(const __grid_constant__ CombineArgs a) {
    let_next_start();
    after_previous();
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.elements; i += gridDim.x * blockDim.x) {
        const u32 token = i / a.cols, col = i % a.cols;
        float sum = 0;
        for (u32 j = 0; j < a.used; j++) {
            const u64 choice = (u64)token * a.used + j;
            sum = fmaf(a.weights[choice], a.y[choice * a.cols + col], sum);
        }
        a.out[i] = sum;
    }
}

// Choices in the order of their experts, and the blocks of products: those of one expert, at most `tokens` of them. What is
// no expert's comes last, as that of one more. One block of threads.
struct RouteArgs {
    const int *experts; // of each choice
    int *order;         // numbers of choices
    uint4 *work;        // expert, first place in the order, and how many; none at the end
    u32 choices, count, tokens, most; // experts; choices and number of blocks, at most
};
extern "C" __global__ void __launch_bounds__(1024) route(const __grid_constant__ RouteArgs a) {
    extern __shared__ u32 counts[]; // [count + 1], and as many places
    u32 *places = counts + a.count + 1;
    let_next_start();
    after_previous();
    for (u32 e = threadIdx.x; e <= a.count; e += blockDim.x) counts[e] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < a.choices; i += blockDim.x) atomicAdd(counts + min((u32)a.experts[i], a.count), 1);
    __syncthreads();
    for (u32 e = threadIdx.x; e <= a.count; e += blockDim.x) {
        u32 first = 0, block = 0;
        for (u32 before = 0; before < e; before++) {
            first += counts[before];
            block += (counts[before] + a.tokens - 1) / a.tokens;
        }
        places[e] = first;
        for (u32 done = 0; done < counts[e]; done += a.tokens)
            a.work[block++] = make_uint4(e, first + done, min(a.tokens, counts[e] - done), 0);
        if (e == a.count)
            for (; block < a.most; block++) a.work[block] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < a.choices; i += blockDim.x)
        a.order[atomicAdd(places + min((u32)a.experts[i], a.count), 1)] = (int)i;
}

// Products of any shape, from the blocks of the file: a warp for each result.
struct ExpertRowsArgs {
    const u8 *weight; // [count * rows, cols]
    const float *bias, *x;
    const int *experts;
    float *out;
    u32 rows, cols, count, choices_per_row;
};
template <int F> __device__ __forceinline__ void expert_rows(const ExpertRowsArgs &a) {
    const u32 row = blockIdx.y * 4 + threadIdx.x / 32, lane = threadIdx.x % 32, choice = blockIdx.x;
    let_next_start();
    after_previous();
    if (row >= a.rows) return;
    const u32 expert = (u32)a.experts[choice];
    float sum = __int_as_float(0x7fc00000);
    if (expert < a.count) {
        const u64 at = (u64)expert * a.rows + row;
        const float *x = a.x + (u64)(choice / a.choices_per_row) * a.cols;
        const u8 *weight = a.weight + at * row_bytes<F>(a.cols);
        sum = 0;
        for (u32 c = lane; c < a.cols; c += 32) sum = fmaf(element<F>(weight, c), x[c], sum);
        sum = warp_sum(sum);
        if (a.bias) sum += a.bias[at];
    }
    if (lane == 0) a.out[(u64)choice * a.rows + row] = sum;
}
#ifdef FORMAT
extern "C" __global__ void __launch_bounds__(128) expert_rows_kernel(const __grid_constant__ ExpertRowsArgs a) {
    expert_rows<FORMAT>(a);
}
#endif
