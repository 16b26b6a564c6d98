// Products of many choices with the matrices of their experts, on the matrix units: the tile of gemm.h, whose tokens are
// choices of one expert, as expert_route has grouped them.

template <typename F>
kernel void expert_gemm(device const uchar* w [[buffer(0)]],
                        device const float* x [[buffer(1)]],
                        device float* y [[buffer(2)]],
                        constant ExpertArgs& args [[buffer(3)]],
                        device const int* order [[buffer(4)]],
                        device const int4* tiles [[buffer(5)]],
                        device const float* bias [[buffer(6)]],
                        threadgroup char* scratch [[threadgroup(0)]],
                        uint2 group [[threadgroup_position_in_grid]],
                        ushort thread_index [[thread_index_in_threadgroup]],
                        ushort simd [[simdgroup_index_in_threadgroup]]) {
    // The grid has as many tiles as there may be. What leaves here leaves with its whole threadgroup.
    const int4 tile = tiles[group.x];
    const int expert = tile.x, count = tile.z, first_row = int(group.y) * GEMM_ROWS;
    if (expert < 0) return;
    device const int* choices = order + tile.y;
    const int column = thread_index & (GEMM_ROWS - 1), out = first_row + column;
    float added = 0.0f;
    if (expert < args.experts) {
        const ulong row = ulong(expert) * args.rows + min(first_row + thread_index / 2, args.rows - 1);
        const int choice = choices[min(thread_index / 4, count - 1)];
        gemm_tile<F>(w + row * args.row_bytes, x + ulong(choice / args.choices_per_row) * args.cols, args.cols, scratch,
                     thread_index, simd);
    }
    if (out >= args.rows) return;
    threadgroup const float* results = (threadgroup const float*)scratch;
    if (expert < args.experts && args.has_bias != 0) added = bias[ulong(expert) * args.rows + out];
    for (short t = thread_index / GEMM_ROWS; t < count; t += GEMM_THREADS / GEMM_ROWS) {
        // Indices that are no expert's give no numbers: as bits, since fast arithmetic takes floats to be numbers.
        const uint bits = expert < args.experts ? as_type<uint>(results[t * GEMM_ROWS + column] + added) : 0x7fc00000u;
        ((device uint*)y)[ulong(choices[t]) * args.rows + out] = bits;
    }
}

#define INSTANTIATE(F) template [[host_name("expert_gemm_" #F)]] kernel decltype(expert_gemm<F>) expert_gemm<F>;
FOR_EACH_FORMAT(INSTANTIATE)
