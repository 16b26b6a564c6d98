// Element types of the KV cache: rows of `row_bytes` bytes, read four elements at a time (at a multiple of
// four) or one.

struct CacheF32 {
    typedef float Tile;
    static float4 load(device const uchar* row, int e) { return load4((device const float*)row + e); }
    static float load1(device const uchar* row, int e) { return ((device const float*)row)[e]; }
};

struct CacheF16 {
    typedef half Tile;
    static float4 load(device const uchar* row, int e) {
        return float4(half4(*(device const packed_half4*)((device const half*)row + e)));
    }
    static float load1(device const uchar* row, int e) { return float(((device const half*)row)[e]); }
};

// The upper halves of floats, handled as bits: no device needs the bfloat type.
struct CacheBF16 {
    typedef float Tile;
    static float4 load(device const uchar* row, int e) {
        return as_type<float4>(uint4(ushort4(*(device const packed_ushort4*)((device const ushort*)row + e))) << 16);
    }
    static float load1(device const uchar* row, int e) { return as_type<float>(uint(((device const ushort*)row)[e]) << 16); }
};

struct CacheQ8_0 {
    typedef half Tile;
    static float4 load(device const uchar* row, int e) {
        device const BlockQ8_0* b = (device const BlockQ8_0*)row + (e >> 5);
        return float(b->d) * float4(char4(*(device const packed_char4*)(b->qs + (e & 31))));
    }
    static float load1(device const uchar* row, int e) {
        device const BlockQ8_0* b = (device const BlockQ8_0*)row + (e >> 5);
        return float(b->d) * float(b->qs[e & 31]);
    }
};

// Writing happens by runs of eight lanes, each with four elements: 32 elements, a block of the packed type. `first` is the
// first element of the lane, `count` how many of its four exist. All eight lanes take part.
template <typename C> struct CacheWriter;

template <> struct CacheWriter<CacheF32> {
    static void store(device uchar* row, int first, int count, float4 v) {
        store4_partial((device float*)row + first, v, count);
    }
};

template <> struct CacheWriter<CacheF16> {
    static void store(device uchar* row, int first, int count, float4 v) {
        device half* p = (device half*)row + first;
        const half4 h = half4(v);
        if (count >= 4) *(device packed_half4*)p = packed_half4(h);
        else store_tail(p, h, count);
    }
};

template <> struct CacheWriter<CacheBF16> {
    static void store(device uchar* row, int first, int count, float4 v) {
        device ushort* p = (device ushort*)row + first;
        ushort4 upper;
        // To nearest, ties to even; NaN stays NaN.
        UNROLL for (short i = 0; i < 4; i++) {
            const uint bits = as_type<uint>(v[i]);
            const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
            upper[i] = ushort(nan ? bits >> 16 | 64u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        }
        if (count >= 4) *(device packed_ushort4*)p = packed_ushort4(upper);
        else store_tail(p, upper, count);
    }
};

// The scale is the largest magnitude over 127. Quants are computed with the scale as a float; it is stored as a half.
template <> struct CacheWriter<CacheQ8_0> {
    static void store(device uchar* row, int first, int count, float4 v) {
        float4 a = abs(v);
        float largest = max(max(a.x, a.y), max(a.z, a.w));
        for (ushort step = 1; step < 8; step *= 2) largest = max(largest, simd_shuffle_xor(largest, step));
        if (count <= 0) return;
        const float d = largest / 127.0f, inverse = d > 0.0f ? 1.0f / d : 0.0f;
        device BlockQ8_0* b = (device BlockQ8_0*)row + (first >> 5);
        // Scales past the range of a half saturate: an infinite one would turn the whole row into NaN.
        if ((first & 31) == 0) b->d = half(min(d, 65504.0f));
        UNROLL for (short i = 0; i < 4; i++) b->qs[(first & 31) + i] = (signed char)int(round(v[i] * inverse));
    }
};
