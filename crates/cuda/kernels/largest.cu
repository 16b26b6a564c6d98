// The largest element of rows: what a greedy step needs of its logits.
#include "common.cuh"

#define THREADS 256

struct LargestArgs {
    const float *x;
    uint2 *partial; // [rows, gridDim.x]
    u32 *done;      // [rows], zero between launches
    uint2 *out;     // of each row the element's number and its bits
    u32 cols;
};

// An element that is no finite number comes before all others, and among equals the first.
struct Best {
    float value;
    u32 index;
    __device__ __forceinline__ bool before(const Best &other) const {
        const bool broken = !(fabsf(value) < INFINITE), also = !(fabsf(other.value) < INFINITE);
        if (broken || also) return broken && (!also || index < other.index);
        return value > other.value || (value == other.value && index < other.index);
    }
};

__device__ __forceinline__ Best best_of_block(Best best, Best *scratch) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) {
        Best other = {__shfl_xor_sync(FULL, best.value, i), __shfl_xor_sync(FULL, best.index, i)};
        if (other.before(best)) best = other;
    }
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
    __syncthreads();
    best = scratch[0];
    for (int i = 1; i < THREADS / 32; i++)
        if (scratch[i].before(best)) best = scratch[i];
    return best;
}

extern "C" __global__ void __launch_bounds__(THREADS) largest(const __grid_constant__ LargestArgs a) {
    __shared__ Best scratch[2][THREADS / 32];
    __shared__ u32 arrived;
    const float *x = a.x + (u64)blockIdx.y * a.cols;
    uint2 *partial = a.partial + (u64)blockIdx.y * gridDim.x;
    let_next_start();
    after_previous();
    // Of two elements that a thread meets the first wins, so every thread begins with one of its own.
    const u32 first = min(blockIdx.x * THREADS + threadIdx.x, a.cols - 1);
    Best best = {x[first], first};
#pragma unroll 4
    for (u32 i = first + gridDim.x * THREADS; i < a.cols; i += gridDim.x * THREADS) {
        Best other = {x[i], i};
        if (other.before(best)) best = other;
    }
    best = best_of_block(best, scratch[0]);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = make_uint2(best.index, __float_as_uint(best.value));
        __threadfence();
        arrived = atomicAdd(a.done + blockIdx.y, 1);
    }
    __syncthreads();
    if (arrived + 1 < gridDim.x) return;
    __threadfence();
    const volatile uint2 *all = partial;
    const u32 own = min(threadIdx.x, gridDim.x - 1);
    best.index = all[own].x, best.value = __uint_as_float(all[own].y);
    best = best_of_block(best, scratch[1]);
    if (threadIdx.x == 0) {
        a.out[blockIdx.y] = make_uint2(best.index, __float_as_uint(best.value));
        a.done[blockIdx.y] = 0;
    }
}
