// Mixtures of experts: each choice, a token's with one of its experts, is a row of activations times that expert's matrix.

// Sums of few choices: a SIMD-group computes EXPERT_ROWS rows of the result of one choice (matvec.h), with the matrix that its
// index says; with a gate, half of them are of a second weight, and what is stored is the gate times those. An index that is
// no expert's gives no numbers, and reads no weights. Buffers that are not used are bound to anything.
template <typename F>
kernel void expert_matvec(device const uchar* w [[buffer(0)]],
                          device const float* x [[buffer(1)]],
                          device float* y [[buffer(2)]],
                          constant ExpertArgs& args [[buffer(3)]],
                          device const int* indices [[buffer(4)]],
                          device const float* bias [[buffer(5)]],
                          device const uchar* w1 [[buffer(6)]],
                          device const float* bias1 [[buffer(7)]],
                          uint2 group [[threadgroup_position_in_grid]],
                          ushort simd [[simdgroup_index_in_threadgroup]],
                          ushort lane [[thread_index_in_simdgroup]]) {
    const bool has_gate = args.gate != 0;
    const int step = has_gate ? EXPERT_ROWS / 2 : EXPERT_ROWS;
    const int first = int(group.x * EXPERT_SIMDGROUPS + simd) * step, choice = int(group.y);
    if (first >= args.rows) return;
    device float* to = y + ulong(choice) * args.rows + first;
    const int expert = indices[choice];
    if (expert < 0 || expert >= args.experts) {
        if (lane < step && first + lane < args.rows) to[lane] = as_type<float>(0x7fc00000u);
        return;
    }
    // Rows past the end read the last one again; they are not stored.
    RowSums<EXPERT_ROWS, 1> p;
    const ulong base = ulong(expert) * args.rows;
    UNROLL for (short r = 0; r < EXPERT_ROWS; r++) {
        const bool up = has_gate && r >= EXPERT_ROWS / 2;
        const int index = min(first + (up ? r - EXPERT_ROWS / 2 : int(r)), args.rows - 1);
        p.row[r] = (up ? w1 : w) + (base + index) * args.row_bytes;
    }
    p.in[0] = x + ulong(choice / args.choices_per_row) * args.cols;
    add_products<F>(p, args.cols, lane);
    if (lane != 0) return;
    UNROLL for (short r = 0; r < EXPERT_ROWS; r++) {
        if (r >= step || first + r >= args.rows) continue;
        float value = p.acc[r][0], up = p.acc[(r + EXPERT_ROWS / 2) % EXPERT_ROWS][0];
        if (args.has_bias != 0) {
            value += bias[base + first + r];
            if (has_gate) up += bias1[base + first + r];
        }
        to[r] = has_gate ? gated(args.gate, value, up, args.alpha, args.limit) : value;
    }
}

#define INSTANTIATE(F) \
    template [[host_name("expert_matvec_" #F)]] kernel decltype(expert_matvec<F>) expert_matvec<F>;
FOR_EACH_FORMAT(INSTANTIATE)

// The bin of a choice: its expert, or the last one where its index is no expert's.
inline int bin_of(int index, int experts) { return index >= 0 && index < experts ? index : experts; }

// Groups choices by their experts, so that each matrix is multiplied with all of its rows at once: one threadgroup, whose
// SIMD-groups take turns at the bins. `order` gets the choices, bin after bin and in each in their order; `tiles` the tiles of
// GEMM_TOKENS choices that they make: bin (-1 where there is no more tile), first place in `order`, number of choices.
// Nothing here depends on when which thread runs.
kernel void expert_route(device const int* indices [[buffer(0)]],
                         device int* order [[buffer(1)]],
                         device int4* tiles [[buffer(2)]],
                         constant ExpertArgs& args [[buffer(3)]],
                         ushort simd [[simdgroup_index_in_threadgroup]],
                         ushort lane [[thread_index_in_simdgroup]],
                         ushort simds [[simdgroups_per_threadgroup]]) {
    threadgroup int counts[ROUTE_MOST_EXPERTS + 1];
    const int bins = args.experts + 1;
    for (int bin = simd; bin < bins; bin += simds) {
        int count = 0;
        for (int choice = lane; choice < args.choices; choice += SIMD_WIDTH) {
            count += bin_of(indices[choice], args.experts) == bin ? 1 : 0;
        }
        count = simd_sum(count);
        if (lane == 0) counts[bin] = count;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int bin = simd; bin < bins; bin += simds) {
        int first = 0, tile = 0;
        for (int before = lane; before < bin; before += SIMD_WIDTH) {
            first += counts[before];
            tile += (counts[before] + GEMM_TOKENS - 1) / GEMM_TOKENS;
        }
        first = simd_sum(first);
        tile = simd_sum(tile);
        int place = first;
        for (int base = 0; base < args.choices; base += SIMD_WIDTH) {
            const int choice = base + lane;
            int mine = 0;
            if (choice < args.choices) mine = bin_of(indices[choice], args.experts) == bin ? 1 : 0;
            const int before = simd_prefix_exclusive_sum(mine);
            if (mine != 0) order[place + before] = choice;
            place += simd_sum(mine);
        }
        const int count = counts[bin], own = (count + GEMM_TOKENS - 1) / GEMM_TOKENS;
        for (int t = lane; t < own; t += SIMD_WIDTH) {
            tiles[tile + t] = int4(bin, first + t * GEMM_TOKENS, min(count - t * GEMM_TOKENS, GEMM_TOKENS), 0);
        }
        // Of what is left, the one with the last bin takes care.
        if (bin != args.experts) continue;
        for (int t = tile + own + lane; t < args.tiles; t += SIMD_WIDTH) tiles[t] = int4(-1, 0, 0, 0);
    }
}

// z[t] = sum_j weights[t, j] * y[t * used + j], in the order of the choices. Four columns a thread; the grid is exact.
kernel void combine_experts(device const float* y [[buffer(0)]],
                            device const float* weights [[buffer(1)]],
                            device float* z [[buffer(2)]],
                            constant CombineArgs& args [[buffer(3)]],
                            uint2 at [[thread_position_in_grid]]) {
    const int first = int(at.x) * 4, token = int(at.y), count = args.cols - first;
    float4 sum = 0.0f;
    for (int j = 0; j < args.used; j++) {
        const ulong choice = ulong(token) * args.used + j;
        sum += weights[choice] * load4_partial(y + choice * args.cols + first, count);
    }
    store4_partial(z + ulong(token) * args.cols + first, sum, count);
}
