// Rows by index, decoded to f32: the embedding of tokens from any format, rows of an activation, rows of a cache.

// A thread per unit of sixteen elements; the grid is units by rows. An index outside the table gives a row of zeros
// instead of somebody else's memory; the host checks indices before.
template <typename F>
kernel void get_rows(device const uchar* table [[buffer(0)]],
                     device const int* indices [[buffer(1)]],
                     device float* y [[buffer(2)]],
                     constant GetRowsArgs& args [[buffer(3)]],
                     uint2 at [[thread_position_in_grid]]) {
    const int unit = int(at.x), index = indices[at.y];
    UnitValues values;
    UNROLL for (short i = 0; i < 4; i++) values.v[i] = 0.0f;
    if (index >= 0 && index < args.table_rows) {
        Unit u;
        F::load(table + ulong(index) * args.row_bytes, unit, args.cols, u);
        values = values_of(u);
    }
    const int offset = F::offset(unit);
    device float* out = y + ulong(at.y) * args.cols + offset;
    UNROLL for (short i = 0; i < 4; i++) {
        const int e = (i >> 1) * F::GAP + 4 * (i & 1);
        store4_partial(out + e, values.v[i], F::PARTIAL ? args.cols - offset - e : 4);
    }
}

#define INSTANTIATE(F) template [[host_name("get_rows_" #F)]] kernel decltype(get_rows<F>) get_rows<F>;
FOR_EACH_FORMAT(INSTANTIATE)
