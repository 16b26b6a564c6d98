// Products of weight matrices with one to eight activation rows per pass:
//     y[t, o] = sum_i weight[o, i] * x[t, i]
//
// Each SIMD-group computes ROWS rows of the result for TOKENS activation rows. Its lanes take neighbouring units of a row, so that
// the weights, which are nearly all of the traffic, are read once, front to back; ROWS rows share the activations and
// keep ROWS loads in flight. No threadgroup memory and no barrier: the one exchange is the sum over the lanes at the end.
//
// The same kernel serves the fused projections: up to three matrices side by side in the result (query, key and value), or
// a gate and an up projection that become activation(gate) * up. All of that is decided once per SIMD-group, before and
// after the loop, from the arguments, which costs nothing: no pipeline is needed per combination. Buffers that a
// combination does not use are bound to anything.

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
    // Matrices begin at a SIMD-group's first row. Without a second and third one, rows1 and rows2 are 0.
    device const uchar* w = w0;
    device const float* bias = b0;
    int rows = args.rows0, column = 0;
    if (args.rows1 > 0 && first >= round_up(args.rows0, step)) {
        first -= round_up(args.rows0, step);
        column = args.rows0;
        rows = args.rows1;
        w = w1;
        bias = b1;
        if (args.rows2 > 0 && first >= round_up(args.rows1, step)) {
            first -= round_up(args.rows1, step);
            column += args.rows1;
            rows = args.rows2;
            w = w2;
            bias = b2;
        }
    }
    if (first >= rows) return;

    // Rows and tokens past the end read the last one again; they are not stored.
    device const uchar* row[ROWS];
    for (short r = 0; r < ROWS; r++) {
        const bool up = gated && r >= ROWS / 2;
        const int index = min(first + (up ? r - ROWS / 2 : int(r)), rows - 1);
        row[r] = (up ? w1 : w) + ulong(index) * args.row_bytes;
    }
    const int first_token = int(group.y) * TOKENS;
    device const float* in[TOKENS];
    for (short t = 0; t < TOKENS; t++) in[t] = x + ulong(min(first_token + t, args.tokens - 1)) * args.cols;

    float acc[ROWS][TOKENS];
    for (short r = 0; r < ROWS; r++) {
        for (short t = 0; t < TOKENS; t++) acc[r][t] = 0.0f;
    }
    const int units = (args.cols + 15) / 16;
    for (int unit = lane; unit < units; unit += SIMD_WIDTH) {
        Unit u[ROWS];
        for (short r = 0; r < ROWS; r++) F::load(row[r], unit, args.cols, u[r]);
        const int offset = F::offset(unit);
        for (short t = 0; t < TOKENS; t++) {
            float4 v[4];
            if (F::PARTIAL) {
                const int rest = args.cols - offset;
                for (short i = 0; i < 4; i++) v[i] = load4_partial(in[t] + offset + 4 * i, rest - 4 * i);
            } else {
                for (short i = 0; i < 4; i++) v[i] = load4(in[t] + offset + (i >> 1) * F::GAP + 4 * (i & 1));
            }
            float2 sums = 0.0f;
            if (F::SHIFTED) sums = float2(sum4(v[0] + v[1]), sum4(v[2] + v[3]));
            for (short r = 0; r < ROWS; r++) {
                float2 dots = float2(dot(u[r].q[0], v[0]) + dot(u[r].q[1], v[1]), dot(u[r].q[2], v[2]) + dot(u[r].q[3], v[3]));
                acc[r][t] += dot(u[r].scale, dots);
                if (F::SHIFTED) acc[r][t] += dot(u[r].shift, sums);
            }
        }
    }

    for (short t = 0; t < TOKENS; t++) {
        for (short r = 0; r < ROWS; r++) acc[r][t] = simd_sum(acc[r][t]);
        const int token = first_token + t;
        if (lane != 0 || token >= args.tokens) continue;
        if (gated) {
            for (short r = 0; r < ROWS / 2; r++) acc[r][t] = activate(args.gate, acc[r][t]) * acc[r + ROWS / 2][t];
        }
        // Accumulators are registers: indexed by constants only.
        for (short r = 0; r < ROWS; r++) {
            if (r >= step || first + r >= rows) continue;
            const ulong at = ulong(token) * args.y_stride + column + first + r;
            float value = acc[r][t];
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
