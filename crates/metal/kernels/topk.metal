// The largest elements of rows, and elements by their columns.

// A float as an integer that has its place in the order: -0 is 0, and what is no number comes before all others. Floats
// themselves would not do: fast arithmetic may take it that there is no NaN.
inline uint place_of(float x) {
    const uint bits = as_type<uint>(x), magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0u;
    if (magnitude == 0u) return 0x80000000u;
    return magnitude == bits ? bits | 0x80000000u : ~bits;
}

// A column and its element's place.
struct Candidate {
    uint place;
    uint column;
};
#define NO_COLUMN 0xffffffffu

inline bool before(Candidate a, Candidate b) {
    return a.place > b.place || (a.place == b.place && a.column < b.column);
}

// The best candidate of a SIMD-group, in every lane.
inline Candidate simd_best(Candidate c) {
    Candidate best;
    best.place = simd_max(c.place);
    best.column = simd_min(c.place == best.place ? c.column : NO_COLUMN);
    return best;
}

// A row that a SIMD-group has in its registers.
struct NarrowRow {
    Candidate mine[TOPK_NARROW / SIMD_WIDTH];
};

inline void load_row(thread NarrowRow& row, device const float* from, int cols, ushort lane) {
    UNROLL for (short i = 0; i < TOPK_NARROW / SIMD_WIDTH; i++) {
        const int column = lane + i * SIMD_WIDTH;
        const bool exists = column < cols;
        row.mine[i].place = exists ? place_of(from[column]) : 0u;
        row.mine[i].column = exists ? uint(column) : NO_COLUMN;
    }
}

// The column of the best element, which is out of the race then.
inline int take_best(thread NarrowRow& row) {
    Candidate best = row.mine[0];
    UNROLL for (short i = 1; i < TOPK_NARROW / SIMD_WIDTH; i++) {
        if (before(row.mine[i], best)) best = row.mine[i];
    }
    best = simd_best(best);
    UNROLL for (short i = 0; i < TOPK_NARROW / SIMD_WIDTH; i++) {
        if (row.mine[i].column == best.column) {
            row.mine[i].place = 0u;
            row.mine[i].column = NO_COLUMN;
        }
    }
    return int(best.column);
}

// Narrow rows: a SIMD-group each.
kernel void top_k_1sg(device const float* x [[buffer(0)]],
                      device int* columns [[buffer(1)]],
                      constant TopKArgs& args [[buffer(2)]],
                      uint group [[threadgroup_position_in_grid]],
                      ushort simd [[simdgroup_index_in_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]]) {
    const int row = int(group) * TOPK_ROWS + simd;
    if (row >= args.rows) return;
    NarrowRow elements;
    load_row(elements, x + ulong(row) * args.cols, args.cols, lane);
    for (int k = 0; k < args.k; k++) {
        const int column = take_best(elements);
        if (lane == 0) columns[ulong(row) * args.k + k] = column;
    }
}

// A router's choice and its weights: the columns of the largest elements, and a softmax of these elements, or of all of
// the row, at those columns. A SIMD-group a row, a lane a choice.
kernel void router_1sg(device const float* x [[buffer(0)]],
                       device int* columns [[buffer(1)]],
                       device float* weights [[buffer(2)]],
                       constant RouterArgs& args [[buffer(3)]],
                       uint group [[threadgroup_position_in_grid]],
                       ushort simd [[simdgroup_index_in_threadgroup]],
                       ushort lane [[thread_index_in_simdgroup]]) {
    const int row = int(group) * TOPK_ROWS + simd;
    if (row >= args.rows) return;
    device const float* from = x + ulong(row) * args.cols;
    NarrowRow elements;
    load_row(elements, from, args.cols, lane);
    int column = 0;
    for (int k = 0; k < args.k; k++) {
        const int best = take_best(elements);
        if (lane == k) column = best;
    }
    const bool chosen = lane < args.k;
    const float score = chosen ? args.scale * from[column] : LOWEST;
    // The largest of the chosen is the largest of all.
    const float largest = simd_max(score);
    const float mine = chosen ? precise::exp(score - largest) : 0.0f;
    float sum = mine;
    if (args.of_all != 0) {
        sum = 0.0f;
        for (int i = lane; i < args.cols; i += SIMD_WIDTH) sum += precise::exp(args.scale * from[i] - largest);
    }
    sum = simd_sum(sum);
    if (chosen) {
        columns[ulong(row) * args.k + lane] = column;
        weights[ulong(row) * args.k + lane] = mine / sum;
    }
}

// Any row: a threadgroup goes through it k times, each time for the best element behind the one found before. Rows come from
// the cache then, and k is small (1 is argmax).
kernel void top_k_row(device const float* x [[buffer(0)]],
                      device int* columns [[buffer(1)]],
                      constant TopKArgs& args [[buffer(2)]],
                      uint row [[threadgroup_position_in_grid]],
                      ushort thread_index [[thread_index_in_threadgroup]],
                      ushort threads [[threads_per_threadgroup]],
                      ushort simd [[simdgroup_index_in_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]],
                      ushort simds [[simdgroups_per_threadgroup]]) {
    threadgroup Candidate partial[SIMD_WIDTH];
    device const float* from = x + ulong(row) * args.cols;
    Candidate last = {0xffffffffu, NO_COLUMN};
    for (int k = 0; k < args.k; k++) {
        Candidate best = {0u, NO_COLUMN};
        for (int i = thread_index; i < args.cols; i += threads) {
            const Candidate c = {place_of(from[i]), uint(i)};
            if (before(last, c) && before(c, best)) best = c;
        }
        best = simd_best(best);
        if (lane == 0) partial[simd] = best;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        Candidate other = {0u, NO_COLUMN};
        if (lane < simds) other = partial[lane];
        last = simd_best(other);
        // Everybody has read before the next round writes.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (thread_index == 0) columns[ulong(row) * args.k + k] = int(last.column);
    }
}

// The best element of each chunk of a row of logits, a SIMD-group a chunk; the host chooses among the chunks. What is no finite
// number comes before all others here.
kernel void largest_of_chunks(device const float* x [[buffer(0)]],
                              device Candidate* best [[buffer(1)]],
                              constant LargestArgs& args [[buffer(2)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              ushort simd [[simdgroup_index_in_threadgroup]],
                              ushort lane [[thread_index_in_simdgroup]]) {
    const int chunk = int(group.x) * TOPK_ROWS + simd;
    if (chunk >= args.chunks) return;
    const int first = chunk * LARGEST_CHUNK;
    device const float* from = x + ulong(group.y) * args.cols;
    Candidate mine = {0u, NO_COLUMN};
    for (int i = first + lane; i - first < LARGEST_CHUNK && i < args.cols; i += SIMD_WIDTH) {
        const uint bits = as_type<uint>(from[i]);
        const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
        const Candidate c = {finite ? place_of(from[i]) : 0xffffffffu, uint(i)};
        if (before(c, mine)) mine = c;
    }
    mine = simd_best(mine);
    if (lane == 0) best[ulong(group.y) * args.chunks + chunk] = mine;
}

// y[i, j] = x[i, columns[i, j]]. A column outside of the row gives no number instead of somebody else's memory.
kernel void gather_cols(device const float* x [[buffer(0)]],
                        device const int* columns [[buffer(1)]],
                        device float* y [[buffer(2)]],
                        constant TopKArgs& args [[buffer(3)]],
                        uint2 at [[thread_position_in_grid]]) {
    const ulong to = ulong(at.y) * args.k + at.x;
    const int column = columns[to];
    // As bits: fast arithmetic takes floats to be numbers.
    uint bits = 0x7fc00000u;
    if (column >= 0 && column < args.cols) bits = as_type<uint>(x[ulong(at.y) * args.cols + column]);
    ((device uint*)y)[to] = bits;
}
