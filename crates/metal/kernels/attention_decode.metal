// Attention for few queries: the cache is read once per query, so that what counts is to have many loads in flight.

// The tier that is always valid: any head dims up to CLASSIC_MOST_DIM, element by element. A SIMD-group per head and token,
// a key at a time, the head's elements spread over the lanes.
template <typename C>
kernel void attention_classic(device const float* q [[buffer(0)]],
                              device float* y [[buffer(1)]],
                              constant AttentionArgs& args [[buffer(2)]],
                              device const uchar* keys [[buffer(3)]],
                              device const uchar* values [[buffer(4)]],
                              device const int* positions [[buffer(5)]],
                              device const int* ranges [[buffer(6)]],
                              device const int* page_table [[buffer(7)]],
                              device const float* sinks [[buffer(8)]],
                              uint2 group [[threadgroup_position_in_grid]],
                              ushort lane [[thread_index_in_simdgroup]]) {
    constexpr short PARTS = CLASSIC_MOST_DIM / SIMD_WIDTH;
    const int head = int(group.x), token = args.first + int(group.y);
    const int kv_head = head / (args.heads / args.kv_heads);
    device const int* pages = page_table + ulong(sequence_of(token, ranges, args.sequences)) * args.max_pages;
    const int position = positions[token];

    float query[PARTS], out[PARTS];
    UNROLL for (short i = 0; i < PARTS; i++) {
        const int e = lane + i * SIMD_WIDTH;
        query[i] = e < args.head_dim ? args.scale * q[(ulong(token) * args.heads + head) * args.head_dim + e] : 0.0f;
        out[i] = 0.0f;
    }
    float largest = NO_SCORE, sum = 0.0f;
    for (int key = first_key(position, args); key <= position; key++) {
        const int row = cache_row(key, pages, args);
        if (row < 0) continue;
        device const uchar* k = keys + ulong(row) * args.key_row_bytes;
        device const uchar* v = values + ulong(row) * args.value_row_bytes;
        float score = 0.0f;
        UNROLL for (short i = 0; i < PARTS; i++) {
            const int e = lane + i * SIMD_WIDTH;
            if (e < args.head_dim) score += query[i] * C::load1(k, kv_head * args.head_dim + e);
        }
        score = capped(simd_sum(score), args);
        const float top = max(largest, score);
        const float rescale = precise::exp(largest - top), weight = precise::exp(score - top);
        largest = top;
        sum = sum * rescale + weight;
        UNROLL for (short i = 0; i < PARTS; i++) {
            const int e = lane + i * SIMD_WIDTH;
            if (e < args.value_dim) out[i] = out[i] * rescale + weight * C::load1(v, kv_head * args.value_dim + e);
        }
    }
    const float factor = normaliser(largest, sum, head, sinks, args);
    UNROLL for (short i = 0; i < PARTS; i++) {
        const int e = lane + i * SIMD_WIDTH;
        if (e < args.value_dim) y[(ulong(token) * args.heads + head) * args.value_dim + e] = out[i] * factor;
    }
}

// One pass over the keys of a query head, by SIMD-groups that take eight keys each at a time: four lanes per key, each with
// every fourth piece of four elements, so that the lanes of a key read whole lines. Each group of four lanes keeps a softmax
// of its own; until the end nothing is exchanged but the four parts of a score, and there is no barrier in the loop.
//
// The heads that share a KV head are neighbours in the grid and read the same keys at about the same time: from memory
// once, then from the cache. With several splits, each threadgroup takes a part of the keys and leaves its unfinished
// softmax (output, maximum, sum) in `partial`; attention_combine finishes.
template <typename C, short D>
kernel void attention_flash(device const float* q [[buffer(0)]],
                            device float* y [[buffer(1)]],
                            constant AttentionArgs& args [[buffer(2)]],
                            device const uchar* keys [[buffer(3)]],
                            device const uchar* values [[buffer(4)]],
                            device const int* positions [[buffer(5)]],
                            device const int* ranges [[buffer(6)]],
                            device const int* page_table [[buffer(7)]],
                            device const float* sinks [[buffer(8)]],
                            uint3 group [[threadgroup_position_in_grid]],
                            ushort simd [[simdgroup_index_in_threadgroup]],
                            ushort lane [[thread_index_in_simdgroup]]) {
    constexpr short PIECES = D / 16;
    alignas(16) threadgroup float outputs[FLASH_SIMDGROUPS * D];
    threadgroup float2 states[FLASH_SIMDGROUPS];
    const int head = int(group.x), token = args.first + int(group.y), split = int(group.z);
    const int kv_head = head / (args.heads / args.kv_heads);
    device const int* pages = page_table + ulong(sequence_of(token, ranges, args.sequences)) * args.max_pages;
    const int position = positions[token], first = first_key(position, args);
    const int part = (position + 1 - first + args.splits - 1) / args.splits;
    const int begin = first + split * part, end = min(begin + part, position + 1);

    const short sub = lane & 3, slot = lane >> 2;
    float4 query[PIECES], out[PIECES];
    device const float* from = q + (ulong(token) * args.heads + head) * D;
    UNROLL for (short i = 0; i < PIECES; i++) {
        query[i] = args.scale * load4(from + 4 * (sub + 4 * i));
        out[i] = 0.0f;
    }
    float largest = NO_SCORE, sum = 0.0f;
    for (int base = begin + simd * 8; base < end; base += FLASH_SIMDGROUPS * 8) {
        const int key = base + slot;
        const int row = key < end ? cache_row(key, pages, args) : -1;
        float score = 0.0f;
        if (row >= 0) {
            device const uchar* k = keys + ulong(row) * args.key_row_bytes;
            UNROLL for (short i = 0; i < PIECES; i++) score += dot(query[i], C::load(k, kv_head * D + 4 * (sub + 4 * i)));
        }
        score += simd_shuffle_xor(score, 1);
        score += simd_shuffle_xor(score, 2);
        if (row >= 0) {
            device const uchar* v = values + ulong(row) * args.value_row_bytes;
            score = capped(score, args);
            const float top = max(largest, score);
            const float rescale = precise::exp(largest - top), weight = precise::exp(score - top);
            largest = top;
            sum = sum * rescale + weight;
            UNROLL for (short i = 0; i < PIECES; i++) {
                out[i] = out[i] * rescale + weight * C::load(v, kv_head * D + 4 * (sub + 4 * i));
            }
        }
    }

    // The eight softmaxes of the SIMD-group become one ...
    float top = largest;
    for (ushort step = 4; step < 32; step *= 2) top = max(top, simd_shuffle_xor(top, step));
    const float rescale = precise::exp(largest - top);
    sum *= rescale;
    for (ushort step = 4; step < 32; step *= 2) sum += simd_shuffle_xor(sum, step);
    UNROLL for (short i = 0; i < PIECES; i++) {
        float4 o = out[i] * rescale;
        for (ushort step = 4; step < 32; step *= 2) {
            o += float4(simd_shuffle_xor(o.x, step), simd_shuffle_xor(o.y, step), simd_shuffle_xor(o.z, step),
                        simd_shuffle_xor(o.w, step));
        }
        if ((i & 7) == slot) *(threadgroup float4*)(outputs + simd * D + 4 * (sub + 4 * i)) = o;
    }
    if (lane == 0) states[simd] = float2(top, sum);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // ... and then those of the SIMD-groups.
    top = states[0].x;
    for (short s = 1; s < FLASH_SIMDGROUPS; s++) top = max(top, states[s].x);
    sum = 0.0f;
    for (short s = 0; s < FLASH_SIMDGROUPS; s++) sum += states[s].y * precise::exp(states[s].x - top);
    const float factor = args.splits == 1 ? normaliser(top, sum, head, sinks, args) : 1.0f;
    const ulong at = ulong(token) * args.heads + head;
    device float* to = args.splits == 1 ? y + at * D : y + (at * args.splits + split) * (D + 2);
    const int thread_index = simd * SIMD_WIDTH + lane;
    for (int e = thread_index; e < D; e += FLASH_SIMDGROUPS * SIMD_WIDTH) {
        float o = 0.0f;
        for (short s = 0; s < FLASH_SIMDGROUPS; s++) o += outputs[s * D + e] * precise::exp(states[s].x - top);
        to[e] = o * factor;
    }
    if (args.splits > 1 && thread_index == 0) {
        to[D] = top;
        to[D + 1] = sum;
    }
}

// Joins the splits of attention_flash. A thread per element of the head.
kernel void attention_combine(device const float* partial [[buffer(0)]],
                              device float* y [[buffer(1)]],
                              constant AttentionArgs& args [[buffer(2)]],
                              device const float* sinks [[buffer(3)]],
                              uint3 at [[thread_position_in_grid]]) {
    const int e = int(at.x), head = int(at.y), dim = args.value_dim;
    const ulong row = ulong(at.z) * args.heads + head;
    device const float* parts = partial + row * args.splits * (dim + 2);
    float top = NO_SCORE;
    for (int s = 0; s < args.splits; s++) top = max(top, parts[s * (dim + 2) + dim]);
    float sum = 0.0f, out = 0.0f;
    for (int s = 0; s < args.splits; s++) {
        device const float* p = parts + s * (dim + 2);
        const float rescale = precise::exp(p[dim] - top);
        sum += p[dim + 1] * rescale;
        out += p[e] * rescale;
    }
    y[row * dim + e] = out * normaliser(top, sum, head, sinks, args);
}

#define INSTANTIATE_CLASSIC(NAME, C) \
    template [[host_name("attention_classic_" NAME)]] kernel decltype(attention_classic<C>) attention_classic<C>;
INSTANTIATE_CLASSIC("f32", CacheF32)
INSTANTIATE_CLASSIC("f16", CacheF16)
INSTANTIATE_CLASSIC("bf16", CacheBF16)
INSTANTIATE_CLASSIC("q8_0", CacheQ8_0)

#define INSTANTIATE_FLASH(NAME, C, D) \
    template [[host_name("attention_flash_" NAME "_d" #D)]] kernel decltype(attention_flash<C, D>) attention_flash<C, D>;
#define INSTANTIATE_DIMS(NAME, C) \
    INSTANTIATE_FLASH(NAME, C, 64) INSTANTIATE_FLASH(NAME, C, 80) INSTANTIATE_FLASH(NAME, C, 96) \
    INSTANTIATE_FLASH(NAME, C, 128) INSTANTIATE_FLASH(NAME, C, 192) INSTANTIATE_FLASH(NAME, C, 256)
INSTANTIATE_DIMS("f32", CacheF32)
INSTANTIATE_DIMS("f16", CacheF16)
INSTANTIATE_DIMS("q8_0", CacheQ8_0)
