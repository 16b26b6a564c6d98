// Products of weight matrices with one to eight activation rows per pass:
//     y[t, o] = sum_i weight[o, i] * x[t, i]
//
// Each SIMD-group computes ROWS rows of the result for TOKENS activation rows (matvec.h). The same kernel serves the fused
// projections: up to three matrices side by side in the result (query, key and value), or a gate and an up projection that
// become activation(gate) * up. All of that is decided once per SIMD-group, before and after the loop, from the
// arguments, which costs nothing: no pipeline is needed per combination. Buffers that a combination does not use are
// bound to anything.

inline int round_up(int n, int step) { return (n + step - 1) / step * step; }

// MATVEC_SIMDGROUPS per threadgroup is two: they share nothing, and small matrices still make many threadgroups.
template <typename F, short ROWS, short TOKENS>
kernel void matvec(device const uchar* w0 [[buffer(0)]],
                   device const float* x [[buffer(1)]],
                   device float* y [[buffer(2)]],
                   constant MatvecArgs& args [[buffer(3)]],
                   device const uchar* w1 [[buffer(4)]],
                   device const uchar* w2 [[buffer(5)]],
                   device const float* b0 [[buffer(6)]],
                   device const float* b1 [[buffer(7)]],
                   device const float* b2 [[buffer(8)]],
                   uint2 group [[threadgroup_position_in_grid]],
                   ushort simd [[simdgroup_index_in_threadgroup]],
                   ushort lane [[thread_index_in_simdgroup]]) {
    // Rows of the result per SIMD-group: with a gate, half of the weight rows are its.
    const bool gated = args.gate != 0;
    const int step = gated ? ROWS / 2 : ROWS;
    int first = int(group.x * MATVEC_SIMDGROUPS + simd) * step;
    // Matrices begin at a SIMD-group's first row. Without a second and third one, rows1 and rows2 are 0: what is past the
    // first then ends below.
    device const uchar* w = w0;
    device const float* bias = b0;
    int rows = args.rows0, column = 0;
    if (first >= round_up(args.rows0, step)) {
        first -= round_up(args.rows0, step);
        column = args.rows0;
        rows = args.rows1;
        w = w1;
        bias = b1;
        if (first >= round_up(args.rows1, step)) {
            first -= round_up(args.rows1, step);
            column += args.rows1;
            rows = args.rows2;
            w = w2;
            bias = b2;
        }
    }
    if (first >= rows) return;

    // Rows and tokens past the end read the last one again; they are not stored.
    RowSums<ROWS, TOKENS> p;
    UNROLL for (short r = 0; r < ROWS; r++) {
        const bool up = gated && r >= ROWS / 2;
        const int index = min(first + (up ? r - ROWS / 2 : int(r)), rows - 1);
        p.row[r] = (up ? w1 : w) + ulong(index) * args.row_bytes;
    }
    const int first_token = int(group.y) * TOKENS;
    UNROLL for (short t = 0; t < TOKENS; t++) p.in[t] = x + ulong(min(first_token + t, args.tokens - 1)) * args.cols;
    add_products<F>(p, args.cols, lane);

    UNROLL for (short t = 0; t < TOKENS; t++) {
        const int token = first_token + t;
        if (lane != 0 || token >= args.tokens) continue;
        if (gated) {
            UNROLL for (short r = 0; r < ROWS / 2; r++) p.acc[r][t] = activate(args.gate, p.acc[r][t]) * p.acc[r + ROWS / 2][t];
        }
        // Accumulators are registers: indexed by constants only.
        UNROLL for (short r = 0; r < ROWS; r++) {
            if (r >= step || first + r >= rows) continue;
            const ulong at = ulong(token) * args.y_stride + column + first + r;
            float value = p.acc[r][t];
            if (args.has_bias != 0) value += bias[first + r];
            y[at] = value;
        }
    }
}

#define INSTANTIATE_SHAPE(F, ROWS, TOKENS) \
    template [[host_name("matvec_" #F "_n" #TOKENS)]] kernel decltype(matvec<F, ROWS, TOKENS>) matvec<F, ROWS, TOKENS>;
// One token: four rows, whose decoded units fit the registers. More tokens: two rows, for there are accumulators per token.
#define INSTANTIATE(F) \
    INSTANTIATE_SHAPE(F, MATVEC_ROWS_1, 1) INSTANTIATE_SHAPE(F, MATVEC_ROWS_N, 2) \
    INSTANTIATE_SHAPE(F, MATVEC_ROWS_N, 4) INSTANTIATE_SHAPE(F, MATVEC_ROWS_N, 8)
FOR_EACH_FORMAT(INSTANTIATE)
