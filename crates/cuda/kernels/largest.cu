// The largest elements of rows: what choosing a token needs of its logits. One, or a list in the order of rank: an element
// that is no finite number comes before all others, and among equals the first.
#include "rank.cuh"

#define THREADS 256
// Keys of a row that a thread of the last block holds, at most, where a list is wanted.
#define MOST_KEYS 16
// Elements of a row among which a list is found.
#define MOST_FOUND 2048

// Whether this block is the last of its row: it sees what the others wrote.
__device__ __forceinline__ bool is_last(u32 *done) {
    __shared__ u32 arrived;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) arrived = atomicAdd(done, 1);
    __syncthreads();
    if (arrived + 1 < gridDim.x) return false;
    __threadfence();
    if (threadIdx.x == 0) *done = 0;
    return true;
}

struct LargestArgs {
    const float *x;
    u64 *partial; // [rows, gridDim.x]
    u32 *done;    // [rows], zero between launches
    uint2 *out;   // of each row the element's number and its bits
    u32 cols;
};

__device__ __forceinline__ u64 best_of_block(u64 best, u64 *scratch) {
    best = best_of_warp(best);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = best;
    __syncthreads();
    best = scratch[0];
    for (int i = 1; i < THREADS / 32; i++) best = max(best, scratch[i]);
    return best;
}

extern "C" __global__ void __launch_bounds__(THREADS) largest(const __grid_constant__ LargestArgs a) {
    __shared__ u64 scratch[2][THREADS / 32];
    const float *x = a.x + (u64)blockIdx.y * a.cols;
    u64 *partial = a.partial + (u64)blockIdx.y * gridDim.x;
    let_next_start();
    after_previous();
    u64 best = 0;
#pragma unroll 4
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < a.cols; i += gridDim.x * THREADS) best = max(best, rank_of(x[i], i));
    best = best_of_block(best, scratch[0]);
    if (threadIdx.x == 0) partial[blockIdx.x] = best;
    if (!is_last(a.done + blockIdx.y)) return;
    const volatile u64 *all = partial;
    best = best_of_block(all[min(threadIdx.x, gridDim.x - 1)], scratch[1]);
    if (threadIdx.x == 0) a.out[blockIdx.y] = make_uint2(index_of(best), __float_as_uint(x[index_of(best)]));
}

struct HighestArgs {
    const float *x;
    u32 *tops;       // [rows, gridDim.x * THREADS / together]: the largest key of so many threads
    u32 *threshold;  // [rows]: at least `count` elements have keys that are not below it
    u64 *list;       // [rows, MOST_FOUND]
    u32 *done;       // [rows], zero between launches
    u32 *length;     // [rows], zero before the first launch and after the second
    uint2 *out;      // [rows, count]: numbers of elements, and their bits
    u32 *found;      // [rows]: elements that were not below the threshold
    u32 cols, count; // count: at most THREADS
    u32 together;    // a power of two, at most 32
};

// First launch: of the largest elements of all groups of threads, the one with number `count`. There are that many elements which are
// not below it, and few more, since those that are largest lie scattered over the groups.
extern "C" __global__ void __launch_bounds__(THREADS) highest_threshold(const __grid_constant__ HighestArgs a) {
    __shared__ u32 counts[32];
    const float *x = a.x + (u64)blockIdx.y * a.cols;
    const u32 keys_of_row = gridDim.x * THREADS / a.together;
    u32 *tops = a.tops + (u64)blockIdx.y * keys_of_row;
    if (threadIdx.x < 32) counts[threadIdx.x] = 0;
    let_next_start();
    after_previous();
    const u32 first = blockIdx.x * THREADS + threadIdx.x;
    u32 top = 0;
#pragma unroll 4
    for (u32 i = first; i < a.cols; i += gridDim.x * THREADS) top = max(top, key_of(x[i]));
    for (u32 i = a.together / 2; i > 0; i >>= 1) top = max(top, __shfl_xor_sync(FULL, top, i));
    if (threadIdx.x % a.together == 0) tops[first / a.together] = top;
    if (!is_last(a.done + blockIdx.y)) return;
    u32 keys[MOST_KEYS];
#pragma unroll
    for (int i = 0; i < MOST_KEYS; i++) {
        const u32 at = i * THREADS + threadIdx.x;
        keys[i] = at < keys_of_row ? ((const volatile u32 *)tops)[at] : 0;
    }
    u32 threshold = 0;
#pragma unroll 1
    for (int bit = 31; bit >= 0; bit--) {
        const u32 higher = threshold | 1u << bit;
        u32 n = 0;
#pragma unroll
        for (int i = 0; i < MOST_KEYS; i++) n += keys[i] >= higher;
        n = __reduce_add_sync(FULL, n);
        if (threadIdx.x % 32 == 0) atomicAdd(counts + bit, n);
        __syncthreads();
        if (counts[bit] >= a.count) threshold = higher;
    }
    if (threadIdx.x == 0) a.threshold[blockIdx.y] = threshold;
}

// Second launch: the elements that are not below the threshold, sorted. `found` tells the host where they were too many.
extern "C" __global__ void __launch_bounds__(THREADS) highest_list(const __grid_constant__ HighestArgs a) {
    __shared__ u64 ranks[MOST_FOUND];
    const float *x = a.x + (u64)blockIdx.y * a.cols;
    u64 *list = a.list + (u64)blockIdx.y * MOST_FOUND;
    let_next_start();
    after_previous();
    const u32 threshold = a.threshold[blockIdx.y];
#pragma unroll 4
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < a.cols; i += gridDim.x * THREADS) {
        const float v = x[i];
        if (key_of(v) < threshold) continue;
        const u32 at = atomicAdd(a.length + blockIdx.y, 1);
        if (at < MOST_FOUND) list[at] = rank_of(v, i);
    }
    if (!is_last(a.done + blockIdx.y)) return;
    const u32 found = *(const volatile u32 *)(a.length + blockIdx.y);
    __syncthreads();
    if (threadIdx.x == 0) a.length[blockIdx.y] = 0, a.found[blockIdx.y] = found;
    if (found > MOST_FOUND) return;
    u32 size = 32;
    while (size < found) size *= 2;
    for (u32 i = threadIdx.x; i < size; i += THREADS) ranks[i] = i < found ? ((const volatile u64 *)list)[i] : 0;
    __syncthreads();
    // A bitonic sort, the highest first.
    for (u32 run = 2; run <= size; run *= 2)
        for (u32 step = run / 2; step > 0; step /= 2) {
            for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
                const u32 low = i / step * step * 2 + i % step, high = low + step;
                const u64 p = ranks[low], q = ranks[high];
                if ((p < q) == ((low & run) == 0)) ranks[low] = q, ranks[high] = p;
            }
            __syncthreads();
        }
    for (u32 i = threadIdx.x; i < min(a.count, found); i += THREADS) {
        const u32 index = index_of(ranks[i]);
        a.out[blockIdx.y * a.count + i] = make_uint2(index, __float_as_uint(x[index]));
    }
}
