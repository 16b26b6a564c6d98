// Attention for many queries on the matrix units.
//
// A threadgroup of four SIMD-groups has QUERIES neighbouring tokens of one sequence and one head, and goes through the keys
// that any of them sees, KEYS at a time. Keys and then values of a step lie in threadgroup memory, decoded once for all
// queries; scores, weights and sums are floats. Roles of the SIMD-groups: blocks of 8x8 scores are dealt out among them, and
// columns of the output.
//
// The queries' scaling, the mask (causal, window, missing pages) and the cap are applied to the scores where they are
// read for the softmax, so no mask is ever in memory.
#include <metal_simdgroup_matrix>

template <typename C, short D, short QUERIES, short KEYS>
kernel void attention_prefill(device const float* q [[buffer(0)]],
                              device float* y [[buffer(1)]],
                              constant AttentionArgs& args [[buffer(2)]],
                              device const uchar* keys [[buffer(3)]],
                              device const uchar* values [[buffer(4)]],
                              device const int* positions [[buffer(5)]],
                              device const int* ranges [[buffer(6)]],
                              device const int* page_table [[buffer(7)]],
                              device const float* sinks [[buffer(8)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              ushort thread_index [[thread_index_in_threadgroup]],
                              ushort simd [[simdgroup_index_in_threadgroup]],
                              ushort lane [[thread_index_in_simdgroup]]) {
    typedef typename C::Tile T;
    constexpr short SIMDS = PREFILL_SIMDGROUPS, THREADS = SIMDS * SIMD_WIDTH;
    constexpr short QB = QUERIES / 8, KB = KEYS / 8, DB = D / 8;  // blocks of eight
    constexpr short COLUMNS = (DB + SIMDS - 1) / SIMDS;           // of the output, for each SIMD-group
    constexpr short PER_ROW = THREADS / QUERIES;                  // threads of a query's softmax
    // All in contiguous blocks of 8x8, so that loading one touches every bank once.
    alignas(16) threadgroup float queries[QUERIES * D];
    alignas(16) threadgroup T tile[KEYS * D];
    alignas(16) threadgroup float scores[QUERIES * KEYS];
    // How far the output of each query shrinks, on the diagonal of a matrix that multiplies it.
    threadgroup float shrink[QB * 64];
    threadgroup float normalisers[QUERIES];
    threadgroup int rows[KEYS];

    // Which sequence's tile this is. The grids of a node have one for every started run of QUERIES tokens, at most; the rest goes.
    int sequence = 0, tile_index = args.first + int(group.y);
    while (sequence < args.sequences) {
        const int tiles = (ranges[sequence + 1] - ranges[sequence] + QUERIES - 1) / QUERIES;
        if (tile_index < tiles) break;
        tile_index -= tiles;
        sequence++;
    }
    if (sequence == args.sequences) return;
    const int first_token = ranges[sequence] + tile_index * QUERIES;
    const int tokens = min(int(QUERIES), ranges[sequence + 1] - first_token);
    const int head = int(group.x), kv_head = head / (args.heads / args.kv_heads);
    device const int* pages = page_table + ulong(sequence) * args.max_pages;

    for (int i = thread_index; i < QUERIES * D / 4; i += THREADS) {
        const int row = i / (D / 4), e = i % (D / 4) * 4;
        float4 v = 0.0f;
        if (row < tokens) v = args.scale * load4(q + (ulong(first_token + row) * args.heads + head) * D + e);
        *(threadgroup float4*)(queries + ((row / 8) * DB + e / 8) * 64 + (row & 7) * 8 + (e & 7)) = v;
    }
    for (int i = thread_index; i < QB * 64; i += THREADS) shrink[i] = 0.0f;

    // This thread's part of the softmax.
    const short my_row = thread_index / PER_ROW, my_key = thread_index % PER_ROW;
    const int my_position = my_row < tokens ? positions[first_token + my_row] : -1;
    const int my_first = first_key(my_position, args);
    float largest = NO_SCORE, sum = 0.0f;

    simdgroup_float8x8 out[QB][COLUMNS];
    UNROLL for (short b = 0; b < QB; b++) {
        UNROLL for (short c = 0; c < COLUMNS; c++) out[b][c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }

    // Positions of a sequence rise by one: the first token sees the earliest key, the last token the latest.
    const int begin = first_key(positions[first_token], args), end = positions[first_token + tokens - 1] + 1;
    for (int base = begin; base < end; base += KEYS) {
        if (thread_index < KEYS) {
            const int key = base + thread_index;
            rows[thread_index] = key < end ? cache_row(key, pages, args) : -1;
        }
        // The rows are there, and the products with the values of the step before are done (`tile` and `scores` are free).
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (int i = thread_index; i < KEYS * D / 4; i += THREADS) {
            const int key = i / (D / 4), e = i % (D / 4) * 4, row = rows[key];
            float4 v = 0.0f;
            if (row >= 0) v = C::load(keys + ulong(row) * args.key_row_bytes, kv_head * D + e);
            *(threadgroup vec<T, 4>*)(tile + ((key / 8) * DB + e / 8) * 64 + (key & 7) * 8 + (e & 7)) = vec<T, 4>(v);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (short b = simd; b < QB * KB; b += SIMDS) {
            const short qb = b / KB, kb = b % KB;
            simdgroup_float8x8 s = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            for (short d = 0; d < DB; d++) {
                simdgroup_float8x8 qs;
                simdgroup_matrix<T, 8, 8> ks;
                simdgroup_load(qs, queries + (qb * DB + d) * 64, 8);
                simdgroup_load(ks, tile + (kb * DB + d) * 64, 8, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(s, qs, ks, s);
            }
            simdgroup_store(s, scores + b * 64, 8);
        }
        // Scores are complete, and the keys no longer needed.
        threadgroup_barrier(mem_flags::mem_threadgroup);

        float mine[KEYS / PER_ROW], top = largest;
        UNROLL for (short i = 0; i < KEYS / PER_ROW; i++) {
            const short k = my_key + i * PER_ROW;
            const int key = base + k;
            const bool seen = key >= my_first && key <= my_position && rows[k] >= 0;
            const float s = scores[((my_row / 8) * KB + k / 8) * 64 + (my_row & 7) * 8 + (k & 7)];
            mine[i] = seen ? capped(s, args) : NO_SCORE;
            top = max(top, mine[i]);
        }
        for (ushort step = 1; step < PER_ROW; step *= 2) top = max(top, simd_shuffle_xor(top, step));
        float added = 0.0f;
        UNROLL for (short i = 0; i < KEYS / PER_ROW; i++) {
            const short k = my_key + i * PER_ROW;
            const float weight = mine[i] > NO_SCORE ? precise::exp(mine[i] - top) : 0.0f;
            scores[((my_row / 8) * KB + k / 8) * 64 + (my_row & 7) * 8 + (k & 7)] = weight;
            added += weight;
        }
        for (ushort step = 1; step < PER_ROW; step *= 2) added += simd_shuffle_xor(added, step);
        const float rescale = precise::exp(largest - top);
        sum = sum * rescale + added;
        largest = top;
        if (my_key == 0) shrink[(my_row / 8) * 64 + (my_row & 7) * 9] = rescale;
        for (int i = thread_index; i < KEYS * D / 4; i += THREADS) {
            const int key = i / (D / 4), e = i % (D / 4) * 4, row = rows[key];
            float4 v = 0.0f;
            if (row >= 0) v = C::load(values + ulong(row) * args.value_row_bytes, kv_head * D + e);
            *(threadgroup vec<T, 4>*)(tile + ((key / 8) * DB + e / 8) * 64 + (key & 7) * 8 + (e & 7)) = vec<T, 4>(v);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);

        UNROLL for (short b = 0; b < QB; b++) {
            // Maxima soon stop rising: most steps need no rescaling.
            if (simd_any(lane < 8 && shrink[b * 64 + lane * 9] != 1.0f)) {
                simdgroup_float8x8 factor;
                simdgroup_load(factor, shrink + b * 64, 8);
                UNROLL for (short c = 0; c < COLUMNS; c++) {
                    simdgroup_float8x8 scaled;
                    simdgroup_multiply(scaled, factor, out[b][c]);
                    out[b][c] = scaled;
                }
            }
        }
        UNROLL for (short k = 0; k < KB; k++) {
            simdgroup_float8x8 weights[QB];
            UNROLL for (short b = 0; b < QB; b++) simdgroup_load(weights[b], scores + (b * KB + k) * 64, 8);
            UNROLL for (short c = 0; c < COLUMNS; c++) {
                if (DB % SIMDS != 0 && simd + c * SIMDS >= DB) break;
                simdgroup_matrix<T, 8, 8> vs;
                simdgroup_load(vs, tile + (k * DB + simd + c * SIMDS) * 64, 8);
                UNROLL for (short b = 0; b < QB; b++) simdgroup_multiply_accumulate(out[b][c], weights[b], vs, out[b][c]);
            }
        }
    }

    // The output goes where the queries were: nobody has read them since the barriers of the last step.
    if (my_key == 0) normalisers[my_row] = normaliser(largest, sum, head, sinks, args);
    UNROLL for (short b = 0; b < QB; b++) {
        UNROLL for (short c = 0; c < COLUMNS; c++) {
            if (DB % SIMDS != 0 && simd + c * SIMDS >= DB) break;
            simdgroup_store(out[b][c], queries + b * 8 * D + (simd + c * SIMDS) * 8, D);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int i = thread_index; i < tokens * D / 4; i += THREADS) {
        const int row = i / (D / 4), e = i % (D / 4) * 4;
        const float4 v = *(threadgroup float4*)(queries + row * D + e);
        store4(y + (ulong(first_token + row) * args.heads + head) * D + e, v * normalisers[row]);
    }
}

// Sixteen queries where they fit threadgroup memory, else eight; as many keys as fit 16 KB.
#define INSTANTIATE(NAME, C, D, QUERIES, KEYS) \
    template [[host_name("attention_prefill_" NAME "_d" #D)]] kernel decltype(attention_prefill<C, D, QUERIES, KEYS>) \
        attention_prefill<C, D, QUERIES, KEYS>;
#define INSTANTIATE_HALF(NAME, C) \
    INSTANTIATE(NAME, C, 64, 16, 32) INSTANTIATE(NAME, C, 80, 16, 32) INSTANTIATE(NAME, C, 96, 16, 32) \
    INSTANTIATE(NAME, C, 128, 16, 32) INSTANTIATE(NAME, C, 192, 8, 32) INSTANTIATE(NAME, C, 256, 8, 32)
#define INSTANTIATE_FLOAT(NAME, C) \
    INSTANTIATE(NAME, C, 64, 16, 32) INSTANTIATE(NAME, C, 80, 16, 32) INSTANTIATE(NAME, C, 96, 16, 32) \
    INSTANTIATE(NAME, C, 128, 16, 16) INSTANTIATE(NAME, C, 192, 8, 16) INSTANTIATE(NAME, C, 256, 8, 16)
INSTANTIATE_FLOAT("f32", CacheF32)
INSTANTIATE_HALF("f16", CacheF16)
INSTANTIATE_HALF("q8_0", CacheQ8_0)
