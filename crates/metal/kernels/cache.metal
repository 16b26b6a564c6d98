// Writing keys and values to the cache, and everything between a fused projection and the cache: heads get
// their bias, are normalised and turned; keys and values are stored.

// A thread per four elements of a row; the grid is (padded columns / 4) by rows by 2 (keys and values). Runs of eight lanes
// are whole: columns are padded to 32.
template <typename C>
kernel void kv_store(device const float* keys [[buffer(0)]],
                     device const float* values [[buffer(1)]],
                     device uchar* key_cache [[buffer(2)]],
                     device uchar* value_cache [[buffer(3)]],
                     device const int* rows [[buffer(4)]],
                     constant KvStoreArgs& args [[buffer(5)]],
                     uint3 at [[thread_position_in_grid]]) {
    const bool value = at.z != 0;
    const int cols = value ? args.value_cols : args.key_cols, first = int(at.x) * 4;
    const ulong row_bytes = value ? args.value_row_bytes : args.key_row_bytes;
    // A row outside the cache is not written; the host checks rows before.
    const int row = rows[at.y];
    const int count = row >= 0 && row < args.cache_rows ? cols - first : 0;
    device const float* in = (value ? values : keys) + ulong(at.y) * cols + first;
    device uchar* out = (value ? value_cache : key_cache) + ulong(row) * row_bytes;
    CacheWriter<C>::store(out, first, count, load4_partial(in, count));
}

template [[host_name("kv_store_f32")]] kernel decltype(kv_store<CacheF32>) kv_store<CacheF32>;
template [[host_name("kv_store_f16")]] kernel decltype(kv_store<CacheF16>) kv_store<CacheF16>;
template [[host_name("kv_store_bf16")]] kernel decltype(kv_store<CacheBF16>) kv_store<CacheBF16>;
template [[host_name("kv_store_q8_0")]] kernel decltype(kv_store<CacheQ8_0>) kv_store<CacheQ8_0>;

// From the product of query, key and value side by side to turned queries and a filled cache, in one dispatch. A
// SIMD-group per head and token; heads are counted over queries, keys and values. The head is kept in threadgroup memory
// between the norm, the rotation (which pairs elements of different lanes) and the store.
template <typename C>
kernel void qkv_finish(device const float* qkv [[buffer(0)]],
                       device float* queries [[buffer(1)]],
                       device uchar* key_cache [[buffer(2)]],
                       device uchar* value_cache [[buffer(3)]],
                       device const int* rows [[buffer(4)]],
                       device const int* positions [[buffer(5)]],
                       constant QkvArgs& args [[buffer(6)]],
                       device const ulong* turns [[buffer(7)]],
                       device const float* query_norm [[buffer(8)]],
                       device const float* key_norm [[buffer(9)]],
                       device const float* query_bias [[buffer(10)]],
                       device const float* key_bias [[buffer(11)]],
                       device const float* value_bias [[buffer(12)]],
                       threadgroup float* scratch [[threadgroup(0)]],
                       uint2 group [[threadgroup_position_in_grid]],
                       ushort simd [[simdgroup_index_in_threadgroup]],
                       ushort lane [[thread_index_in_simdgroup]],
                       ushort simds [[simdgroups_per_threadgroup]]) {
    const int token = int(group.y);
    int head = int(group.x) * simds + simd;
    if (head >= args.query_heads + 2 * args.kv_heads) return;
    const bool query = head < args.query_heads, value = head >= args.query_heads + args.kv_heads;
    const int dim = value ? args.value_dim : args.head_dim;
    const int query_cols = args.query_heads * args.head_dim, key_cols = args.kv_heads * args.head_dim;
    int column;  // in the row of the product, where the part begins
    if (query) {
        column = 0;
    } else if (!value) {
        head -= args.query_heads;
        column = query_cols;
    } else {
        head -= args.query_heads + args.kv_heads;
        column = query_cols + key_cols;
    }
    const ulong cols = ulong(query_cols) + key_cols + args.kv_heads * args.value_dim;
    device const float* in = qkv + token * cols + column + head * dim;
    device const float* bias = (query ? query_bias : value ? value_bias : key_bias) + head * dim;
    threadgroup float* v = scratch + simd * args.scratch_floats;

    float squares = 0.0f;
    for (int i = lane; i < dim; i += SIMD_WIDTH) {
        float x = in[i];
        if (args.has_bias != 0) x += bias[i];
        v[i] = x;
        squares += x * x;
    }
    if (!value && args.has_norm != 0) {
        const float scale = precise::rsqrt(simd_sum(squares) / float(dim) + args.epsilon);
        device const float* weight = query ? query_norm : key_norm;
        for (int i = lane; i < dim; i += SIMD_WIDTH) v[i] = v[i] * scale * weight[i];
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (!value) {
        const int position = positions[token];
        for (int pair = lane; pair < args.pairs; pair += SIMD_WIDTH) {
            const int2 e = pair_elements(pair, args.pairs, args.interleaved != 0);
            const float2 turned = rotate(float2(v[e.x], v[e.y]), args.magnitude * rotation(turns[pair], position));
            v[e.x] = turned.x;
            v[e.y] = turned.y;
        }
        simdgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (query) {
        device float* out = queries + ulong(token) * query_cols + head * dim;
        for (int i = lane; i < dim; i += SIMD_WIDTH) out[i] = v[i];
        return;
    }
    const int row = rows[token];
    if (row < 0 || row >= args.cache_rows) return;
    device uchar* out = value ? value_cache + ulong(row) * args.value_row_bytes : key_cache + ulong(row) * args.key_row_bytes;
    // The head's width is a multiple of 4, and of the block of the cache's type (the host sees to it), so that runs of eight
    // lanes are whole here, too.
    for (int i = 0; i < dim; i += 4 * SIMD_WIDTH) {
        const int e = i + 4 * lane;
        float4 x = 0.0f;
        if (e < dim) x = float4(v[e], v[e + 1], v[e + 2], v[e + 3]);
        CacheWriter<C>::store(out, head * dim + e, dim - e, x);
    }
}

template [[host_name("qkv_finish_f32")]] kernel decltype(qkv_finish<CacheF32>) qkv_finish<CacheF32>;
template [[host_name("qkv_finish_f16")]] kernel decltype(qkv_finish<CacheF16>) qkv_finish<CacheF16>;
template [[host_name("qkv_finish_bf16")]] kernel decltype(qkv_finish<CacheBF16>) qkv_finish<CacheBF16>;
template [[host_name("qkv_finish_q8_0")]] kernel decltype(qkv_finish<CacheQ8_0>) qkv_finish<CacheQ8_0>;
