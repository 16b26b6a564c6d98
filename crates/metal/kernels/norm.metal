// Root-mean-square normalisation of rows, and what stands around it between two matrix products.
//
// One pass does, in this order and each part on request (function constants):
//     t = x
//     t = t / rms(t) * weight1          the norm after a block (Gemma)
//     t = t + residual;  sum = t        the residual stream, written back (always, after a first norm)
//     y = t / rms(t) * weight2          the norm before the next block (always)
// The plain norm is the last line alone; the two norms have an epsilon each.
//
// A thread comes back to the elements that it wrote itself, so results may lie over inputs.

constant bool HAS_FIRST [[function_constant(0)]];
constant bool HAS_WEIGHT1 [[function_constant(1)]];
constant bool HAS_RESIDUAL [[function_constant(2)]];
constant bool HAS_WEIGHT2 [[function_constant(3)]];

// The sum over the threads of a row. Between SIMD-groups it goes through threadgroup memory: two barriers, one before
// the partial sums are read and one before the memory is used again.
template <bool ONE_SIMDGROUP>
inline float row_sum(float v, threadgroup float* partial, ushort simd, ushort lane, ushort simds) {
    v = simd_sum(v);
    if (ONE_SIMDGROUP) return v;
    if (lane == 0) partial[simd] = v;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Every SIMD-group adds the partial sums itself: one barrier less than handing out one's result.
    v = simd_sum(lane < simds ? partial[lane] : 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return v;
}

// ONE_SIMDGROUP: a threadgroup of several SIMD-groups, each with a row of its own: short rows, such as heads.
// Otherwise: a threadgroup per row.
template <bool ONE_SIMDGROUP>
kernel void rms_norm(device const float* x [[buffer(0)]],
                     device float* y [[buffer(1)]],
                     constant NormArgs& args [[buffer(2)]],
                     device const float* weight2 [[buffer(3), function_constant(HAS_WEIGHT2)]],
                     device const float* residual [[buffer(4), function_constant(HAS_RESIDUAL)]],
                     device float* sum [[buffer(5), function_constant(HAS_RESIDUAL)]],
                     device const float* weight1 [[buffer(6), function_constant(HAS_WEIGHT1)]],
                     uint group [[threadgroup_position_in_grid]],
                     ushort thread_index [[thread_index_in_threadgroup]],
                     ushort simd [[simdgroup_index_in_threadgroup]],
                     ushort lane [[thread_index_in_simdgroup]],
                     ushort simds [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[SIMD_WIDTH];
    const int row = ONE_SIMDGROUP ? int(group) * simds + simd : int(group);
    // Without barriers a SIMD-group without a row may go.
    if (ONE_SIMDGROUP && row >= args.rows) return;
    const int start = 4 * (ONE_SIMDGROUP ? lane : thread_index);
    const int stride = 4 * (ONE_SIMDGROUP ? SIMD_WIDTH : simds * SIMD_WIDTH);
    const int cols = args.cols;
    const ulong base = ulong(row) * cols;

    float scale1 = 1.0f;
    if (HAS_FIRST) {
        float squares = 0.0f;
        for (int i = start; i < cols; i += stride) {
            float4 v = load4_partial(x + base + i, cols - i);
            squares += dot(v, v);
        }
        squares = row_sum<ONE_SIMDGROUP>(squares, partial, simd, lane, simds);
        scale1 = precise::rsqrt(squares / float(cols) + args.epsilon1);
    }
    float squares = 0.0f;
    for (int i = start; i < cols; i += stride) {
        float4 v = load4_partial(x + base + i, cols - i);
        if (HAS_FIRST) v *= scale1;
        if (HAS_WEIGHT1) v *= load4_partial(weight1 + i, cols - i);
        if (HAS_RESIDUAL) {
            v += load4_partial(residual + base + i, cols - i);
            store4_partial(sum + base + i, v, cols - i);
        }
        squares += dot(v, v);
    }
    squares = row_sum<ONE_SIMDGROUP>(squares, partial, simd, lane, simds);
    const float scale2 = precise::rsqrt(squares / float(cols) + args.epsilon2);
    for (int i = start; i < cols; i += stride) {
        float4 v = HAS_RESIDUAL ? load4_partial((device const float*)sum + base + i, cols - i)
                                : load4_partial(x + base + i, cols - i);
        v *= scale2;
        if (HAS_WEIGHT2) v *= load4_partial(weight2 + i, cols - i);
        store4_partial(y + base + i, v, cols - i);
    }
}

template [[host_name("rms_norm_1sg")]] kernel decltype(rms_norm<true>) rms_norm<true>;
template [[host_name("rms_norm_row")]] kernel decltype(rms_norm<false>) rms_norm<false>;
