// Softmax of rows.

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
    float largest = LOWEST;
    for (int i = thread_index; i < args.cols; i += threads) largest = max(largest, args.scale * x[base + i]);
    largest = simd_max(largest);
    if (lane == 0) partial[simd] = largest;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    largest = simd_max(lane < simds ? partial[lane] : LOWEST);
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
