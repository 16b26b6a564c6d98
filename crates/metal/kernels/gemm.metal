// Products of weight matrices with many activation rows, on the matrix units:
//     y[t, o] = sum_i weight[o, i] * x[t, i]

template <typename F>
kernel void gemm(device const uchar* w [[buffer(0)]],
                 device const float* x [[buffer(1)]],
                 device float* y [[buffer(2)]],
                 constant GemmArgs& args [[buffer(3)]],
                 device const float* bias [[buffer(4)]],
                 threadgroup char* scratch [[threadgroup(0)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 ushort thread_index [[thread_index_in_threadgroup]],
                 ushort simd [[simdgroup_index_in_threadgroup]]) {
    // Neighbouring threadgroups share the weights and differ in the tokens, so that the weights come from the cache.
    const int first_token = int(group.x) * GEMM_TOKENS, first_row = int(group.y) * GEMM_ROWS;
    const int row = min(first_row + thread_index / 2, args.rows - 1);
    const int token = min(first_token + thread_index / 4, args.tokens - 1);
    gemm_tile<F>(w + ulong(row) * args.row_bytes, x + ulong(token) * args.cols, args.cols, scratch, thread_index, simd);

    threadgroup const float* results = (threadgroup const float*)scratch;
    const int out = first_row + (thread_index & (GEMM_ROWS - 1));
    if (out >= args.rows) return;
    const float added = args.has_bias != 0 ? bias[out] : 0.0f;
    for (short t = thread_index / GEMM_ROWS; t < GEMM_TOKENS && first_token + t < args.tokens; t += GEMM_THREADS / GEMM_ROWS) {
        ulong at = ulong(first_token + t) * args.y_stride + out;
        y[at] = results[t * GEMM_ROWS + (thread_index & (GEMM_ROWS - 1))] + added;
    }
}

#define INSTANTIATE(F) template [[host_name("gemm_" #F)]] kernel decltype(gemm<F>) gemm<F>;
FOR_EACH_FORMAT(INSTANTIATE)
