// Operations over whole rows of f32: softmax, the largest element, the k largest elements.

// The largest element and its index; of equal elements the first. NaN counts as smaller than everything.
struct Candidate {
    float value;
    int index;
};

inline bool before(Candidate a, Candidate b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// The best candidate of a SIMD-group, in every lane.
inline Candidate simd_best(Candidate c) {
    for (ushort step = SIMD_WIDTH / 2; step > 0; step /= 2) {
        Candidate other;
        other.value = simd_shuffle_xor(c.value, step);
        other.index = simd_shuffle_xor(c.index, step);
        if (before(other, c)) c = other;
    }
    return c;
}

// The best candidate of a threadgroup, in every thread; two barriers, as in a sum over a row.
inline Candidate threadgroup_best(Candidate c, threadgroup Candidate* partial, ushort simd, ushort lane, ushort simds) {
    c = simd_best(c);
    if (lane == 0) partial[simd] = c;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Candidate none = {-INFINITY, INT_MAX};
    c = none;
    if (lane < simds) c = partial[lane];
    c = simd_best(c);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return c;
}

// y = exp(scale * x - max) / sum. A threadgroup per row.
kernel void softmax(device const float* x [[buffer(0)]],
                    device float* y [[buffer(1)]],
                    constant RowArgs& args [[buffer(2)]],
                    uint row [[threadgroup_position_in_grid]],
                    ushort thread_index [[thread_index_in_threadgroup]],
                    ushort threads [[threads_per_threadgroup]],
                    ushort simd [[simdgroup_index_in_threadgroup]],
                    ushort lane [[thread_index_in_simdgroup]],
                    ushort simds [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[SIMD_WIDTH];
    const ulong base = ulong(row) * args.cols;
    float largest = -INFINITY;
    for (int i = thread_index; i < args.cols; i += threads) largest = max(largest, args.scale * x[base + i]);
    largest = simd_max(largest);
    if (lane == 0) partial[simd] = largest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    largest = simd_max(lane < simds ? partial[lane] : -INFINITY);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (int i = thread_index; i < args.cols; i += threads) {
        float e = precise::exp(args.scale * x[base + i] - largest);
        y[base + i] = e;
        sum += e;
    }
    sum = simd_sum(sum);
    if (lane == 0) partial[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = simd_sum(lane < simds ? partial[lane] : 0.0f);
    for (int i = thread_index; i < args.cols; i += threads) y[base + i] /= sum;
}

// The indices of the k largest elements of a row, best first, and their values: args.k rounds, each of which takes the best
// element that comes after the one found before. Rows are read k times, from the cache; k is small (1 is argmax).
// Where fewer than k elements are numbers, the rest is index -1.
kernel void top_k(device const float* x [[buffer(0)]],
                  device int* indices [[buffer(1)]],
                  device float* values [[buffer(2)]],
                  constant RowArgs& args [[buffer(3)]],
                  uint row [[threadgroup_position_in_grid]],
                  ushort thread_index [[thread_index_in_threadgroup]],
                  ushort threads [[threads_per_threadgroup]],
                  ushort simd [[simdgroup_index_in_threadgroup]],
                  ushort lane [[thread_index_in_simdgroup]],
                  ushort simds [[simdgroups_per_threadgroup]]) {
    threadgroup Candidate partial[SIMD_WIDTH];
    const ulong base = ulong(row) * args.cols;
    Candidate last = {INFINITY, -1};
    for (int k = 0; k < args.k; k++) {
        Candidate best = {-INFINITY, INT_MAX};
        for (int i = thread_index; i < args.cols; i += threads) {
            Candidate c = {x[base + i], i};
            if (before(last, c) && before(c, best)) best = c;
        }
        best = threadgroup_best(best, partial, simd, lane, simds);
        if (thread_index == 0) {
            const bool found = best.index != INT_MAX;
            indices[ulong(row) * args.k + k] = found ? best.index : -1;
            values[ulong(row) * args.k + k] = found ? best.value : -INFINITY;
        }
        last = best;
    }
}
