// Products of weight rows with activation rows, by the lanes of one SIMD-group.
//
// The lanes take neighbouring units of a row, so that the weights, which are nearly all of the traffic, are read once, front to
// back; ROWS rows share the activations and keep ROWS loads in flight. No threadgroup memory and no barrier: the one exchange
// is the sum over the lanes at the end.

template <short ROWS, short TOKENS>
struct RowSums {
    device const uchar* row[ROWS];
    device const float* in[TOKENS];
    float acc[ROWS][TOKENS];
};

// Sums over all `cols` elements, in every lane.
template <typename F, short ROWS, short TOKENS>
inline void add_products(thread RowSums<ROWS, TOKENS>& p, int cols, ushort lane) {
    UNROLL for (short r = 0; r < ROWS; r++) {
        UNROLL for (short t = 0; t < TOKENS; t++) p.acc[r][t] = 0.0f;
    }
    const int units = (cols + 15) / 16;
    for (int unit = lane; unit < units; unit += SIMD_WIDTH) {
        Unit u[ROWS];
        UNROLL for (short r = 0; r < ROWS; r++) F::load(p.row[r], unit, cols, u[r]);
        const int offset = F::offset(unit);
        UNROLL for (short t = 0; t < TOKENS; t++) {
            float4 v[4];
            if (F::PARTIAL) {
                const int rest = cols - offset;
                UNROLL for (short i = 0; i < 4; i++) v[i] = load4_partial(p.in[t] + offset + 4 * i, rest - 4 * i);
            } else {
                UNROLL for (short i = 0; i < 4; i++) v[i] = load4(p.in[t] + offset + (i >> 1) * F::GAP + 4 * (i & 1));
            }
            float2 sums = 0.0f;
            if (F::SHIFTED) sums = float2(sum4(v[0] + v[1]), sum4(v[2] + v[3]));
            UNROLL for (short r = 0; r < ROWS; r++) {
                float2 dots = float2(dot(u[r].q[0], v[0]) + dot(u[r].q[1], v[1]), dot(u[r].q[2], v[2]) + dot(u[r].q[3], v[3]));
                p.acc[r][t] += dot(u[r].scale, dots);
                if (F::SHIFTED) p.acc[r][t] += dot(u[r].shift, sums);
            }
        }
    }
    UNROLL for (short t = 0; t < TOKENS; t++) {
        UNROLL for (short r = 0; r < ROWS; r++) p.acc[r][t] = simd_sum(p.acc[r][t]);
    }
}
