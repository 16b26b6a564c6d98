// One decoder per block format; every kernel that reads weights goes through it.
//
// A decoder hands out *units* of sixteen elements. The bytes of a unit are neighbours, and so are the lanes that read
// neighbouring units, so that a SIMD-group reads memory front to back. Where a byte holds two elements these are far
// apart in the row (GAP elements): a unit is therefore two runs of eight elements, at `offset(unit)` and GAP after it.
// This way no byte of a 4-bit or larger quant is read twice.
//
// A unit is not multiplied out. Quants are small integers, and each run has one scale and one shift:
//     value = scale * q + shift
// so that a dot product needs one multiplication by the scale per eight elements, and the shift only meets the sum of
// the activations, which all rows share. Offsets of the quants (the 8 of Q4_0) are part of the shift.

struct Unit {
    float4 q[4];   // run 0 in q[0] and q[1], run 1 in q[2] and q[3]
    float2 scale;  // of run 0 and run 1
    float2 shift;
};

// A unit multiplied out.
struct UnitValues {
    float4 v[4];
};

inline UnitValues values_of(thread const Unit& u) {
    UnitValues r;
    r.v[0] = u.scale.x * u.q[0] + u.shift.x;
    r.v[1] = u.scale.x * u.q[1] + u.shift.x;
    r.v[2] = u.scale.y * u.q[2] + u.shift.y;
    r.v[3] = u.scale.y * u.q[3] + u.shift.y;
    return r;
}

// Eight bytes as four little-endian halfwords. Blocks are only aligned to 2 bytes.
inline ushort4 load_bytes8(device const uchar* p) { return ushort4(*(device const packed_ushort4*)p); }

// Low and high bytes of halfwords, put back in order: element 2 i is the low byte of halfword i.
inline void unpack_bytes(ushort4 low, ushort4 high, thread float4& a, thread float4& b) {
    a = float4(low.x, high.x, low.y, high.y);
    b = float4(low.z, high.z, low.w, high.w);
}
// The low nibbles of eight bytes as run 0, the high nibbles as run 1.
inline void unpack_nibbles(ushort4 w, thread Unit& u) {
    unpack_bytes(w & 0xf, (w >> 8) & 0xf, u.q[0], u.q[1]);
    unpack_bytes((w >> 4) & 0xf, w >> 12, u.q[2], u.q[3]);
}
// Four neighbouring bits of a word as 0 or 1.
inline float4 bits_of(uint word, int first) {
    uint4 b = uint4(word >> first, word >> (first + 1), word >> (first + 2), word >> (first + 3));
    return float4(b & 1u);
}

// ---- blocks of 32 --------------------------------------------------------------------------------

// Unit 0 of a block holds the elements 0..8 and 16..24, unit 1 the elements 8..16 and 24..32.
template <typename Block>
struct Block32 {
    enum { LEN = 32, GAP = 16, SHIFTED = 1, PARTIAL = 0, WIDE_RANGE = 0 };
    static int offset(int unit) { return (unit >> 1) * 32 + (unit & 1) * 8; }
    static device const Block* block(device const uchar* row, int unit) { return (device const Block*)row + (unit >> 1); }
};

struct Q4_0 : Block32<BlockQ4_0> {
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ4_0* b = block(row, unit);
        unpack_nibbles(load_bytes8(b->qs + (unit & 1) * 8), u);
        float d = b->d;
        u.scale = d;
        u.shift = -8.0f * d;
    }
};

struct Q4_1 : Block32<BlockQ4_1> {
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ4_1* b = block(row, unit);
        unpack_nibbles(load_bytes8(b->qs + (unit & 1) * 8), u);
        u.scale = float(b->d);
        u.shift = float(b->m);
    }
};

// The fifth bits: bit i of the word belongs to element i.
inline void add_fifth_bits(device const uchar* qh, int first, thread Unit& u) {
    uint word = uint(*(device const ushort*)qh) | uint(*(device const ushort*)(qh + 2)) << 16;
    word >>= first;
    UNROLL for (short i = 0; i < 2; i++) {
        u.q[i] += 16.0f * bits_of(word, 4 * i);
        u.q[2 + i] += 16.0f * bits_of(word, 16 + 4 * i);
    }
}

struct Q5_0 : Block32<BlockQ5_0> {
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ5_0* b = block(row, unit);
        unpack_nibbles(load_bytes8(b->qs + (unit & 1) * 8), u);
        add_fifth_bits(b->qh, (unit & 1) * 8, u);
        float d = b->d;
        u.scale = d;
        u.shift = -16.0f * d;
    }
};

struct Q5_1 : Block32<BlockQ5_1> {
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ5_1* b = block(row, unit);
        unpack_nibbles(load_bytes8(b->qs + (unit & 1) * 8), u);
        add_fifth_bits(b->qh, (unit & 1) * 8, u);
        u.scale = float(b->d);
        u.shift = float(b->m);
    }
};

// Sixteen bytes as signed integers.
inline void unpack_int8(device const signed char* p, thread Unit& u) {
    UNROLL for (short i = 0; i < 4; i++) u.q[i] = float4(char4(*(device const packed_char4*)(p + 4 * i)));
}

struct Q8_0 {
    enum { LEN = 32, GAP = 8, SHIFTED = 0, PARTIAL = 0, WIDE_RANGE = 0 };
    static int offset(int unit) { return unit * 16; }
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ8_0* b = (device const BlockQ8_0*)row + (unit >> 1);
        unpack_int8(b->qs + (unit & 1) * 16, u);
        u.scale = float(b->d);
        u.shift = 0.0f;
    }
};

// The value tables. A lookup with an index of its own for every lane is a gather; sixteen floats stay in the
// constant cache.
constant float IQ4_NL_TABLE[16] = QUANT_IQ4_NL_VALUES;
constant float E2M1_TABLE[16] = QUANT_E2M1_DOUBLED_VALUES;

inline void look_up(constant const float* table, thread Unit& u) {
    UNROLL for (short i = 0; i < 4; i++) {
        uint4 index = uint4(u.q[i]);
        u.q[i] = float4(table[index.x], table[index.y], table[index.z], table[index.w]);
    }
}

struct IQ4_NL : Block32<BlockIQ4_NL> {
    enum { SHIFTED = 0 };
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockIQ4_NL* b = block(row, unit);
        unpack_nibbles(load_bytes8(b->qs + (unit & 1) * 8), u);
        look_up(IQ4_NL_TABLE, u);
        u.scale = float(b->d);
        u.shift = 0.0f;
    }
};

struct MXFP4 : Block32<BlockMXFP4> {
    // Scales go from 2^-128 to 2^127.
    enum { SHIFTED = 0, WIDE_RANGE = 1 };
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockMXFP4* b = block(row, unit);
        // Seventeen bytes: at any address, so byte by byte.
        device const uchar* p = b->qs + (unit & 1) * 8;
        ushort4 w;
        UNROLL for (short i = 0; i < 4; i++) w[i] = ushort(p[2 * i] | p[2 * i + 1] << 8);
        unpack_nibbles(w, u);
        look_up(E2M1_TABLE, u);
        // 2^(e - 128); the two smallest are subnormal.
        uint e = b->e;
        u.scale = as_type<float>(e < 2 ? 0x200000u << e : (e - 1) << 23);
        u.shift = 0.0f;
    }
};

// ---- blocks of 256 -------------------------------------------------------------------------------

// Eight 6-bit scales and minimums in twelve bytes; see `unpack_scales_mins_k` in the quant crate.
inline float2 scale_min_k(device const uchar* packed, int j) {
    if (j < 4) return float2(packed[j] & 63, packed[4 + j] & 63);
    uchar low = packed[4 + j];
    return float2((low & 15) | (packed[j - 4] >> 6) << 4, (low >> 4) | (packed[j] >> 6) << 4);
}

// Scales and shifts of the two sub-blocks of 32 of a unit of Q4_K or Q5_K.
template <typename Block>
inline void scale_k(device const Block* b, int run, thread Unit& u) {
    float2 low = scale_min_k(b->scales, 2 * run), high = scale_min_k(b->scales, 2 * run + 1);
    u.scale = float(b->d) * float2(low.x, high.x);
    u.shift = -float(b->dmin) * float2(low.y, high.y);
}

// Four runs of 32 bytes, each with elements i (low nibbles) and 32 + i (high).
template <typename Block>
struct Block256 {
    enum { LEN = 256, GAP = 32, SHIFTED = 1, PARTIAL = 0, WIDE_RANGE = 0 };
    static int offset(int unit) { return (unit >> 2) * 64 + (unit & 3) * 8; }
    static device const Block* block(device const uchar* row, int unit) { return (device const Block*)row + (unit >> 4); }
};

struct Q4_K : Block256<BlockQ4_K> {
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ4_K* b = block(row, unit);
        unpack_nibbles(load_bytes8(b->qs + (unit & 15) * 8), u);
        scale_k(b, (unit >> 2) & 3, u);
    }
};

struct Q5_K : Block256<BlockQ5_K> {
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ5_K* b = block(row, unit);
        unpack_nibbles(load_bytes8(b->qs + (unit & 15) * 8), u);
        int run = (unit >> 2) & 3;
        ushort4 h = load_bytes8(b->qh + (unit & 3) * 8) >> ushort(2 * run);
        float4 bits[4];
        unpack_bytes(h & 1, (h >> 8) & 1, bits[0], bits[1]);
        unpack_bytes((h >> 1) & 1, (h >> 9) & 1, bits[2], bits[3]);
        UNROLL for (short i = 0; i < 4; i++) u.q[i] += 16.0f * bits[i];
        scale_k(b, run, u);
    }
};

struct Q6_K {
    enum { LEN = 256, GAP = 64, SHIFTED = 1, PARTIAL = 0, WIDE_RANGE = 0 };
    static int offset(int unit) { return (unit >> 3) * 128 + (unit & 7) * 8; }
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ6_K* b = (device const BlockQ6_K*)row + (unit >> 4);
        int half_block = (unit >> 3) & 1, part = unit & 7;
        unpack_nibbles(load_bytes8(b->ql + (unit & 15) * 8), u);
        // The high bits of the elements i, 32 + i, 64 + i and 96 + i are in one byte.
        ushort4 h = load_bytes8(b->qh + half_block * 32 + (part & 3) * 8) >> ushort(2 * (part >> 2));
        float4 bits[4];
        unpack_bytes(h & 3, (h >> 8) & 3, bits[0], bits[1]);
        unpack_bytes((h >> 4) & 3, (h >> 12) & 3, bits[2], bits[3]);
        UNROLL for (short i = 0; i < 4; i++) u.q[i] += 16.0f * bits[i];
        int s = half_block * 8 + (part >> 1);
        u.scale = float(b->d) * float2(b->scales[s], b->scales[s + 4]);
        u.shift = -32.0f * u.scale;
    }
};

// Fields of two bits: byte i of 32 holds the elements i, 32 + i, 64 + i and 96 + i. A unit takes two neighbouring
// fields of eight bytes (which the unit with the other two reads again, from the cache).
struct Block2Bit {
    enum { LEN = 256, GAP = 32, SHIFTED = 1, PARTIAL = 0, WIDE_RANGE = 0 };
    static int offset(int unit) { return (unit >> 3) * 128 + ((unit >> 2) & 1) * 64 + (unit & 3) * 8; }
    static void unpack(device const uchar* qs, int unit, thread Unit& u) {
        ushort4 w = load_bytes8(qs + ((unit >> 3) & 1) * 32 + (unit & 3) * 8) >> ushort(((unit >> 2) & 1) * 4);
        unpack_bytes(w & 3, (w >> 8) & 3, u.q[0], u.q[1]);
        unpack_bytes((w >> 2) & 3, (w >> 10) & 3, u.q[2], u.q[3]);
    }
    // The sub-block of 16 that run 0 lies in; run 1 lies two after it.
    static int sub_block(int unit) { return offset(unit & 15) >> 4; }
};

struct Q2_K : Block2Bit {
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ2_K* b = (device const BlockQ2_K*)row + (unit >> 4);
        unpack(b->qs, unit, u);
        int s = sub_block(unit);
        uchar low = b->scales[s], high = b->scales[s + 2];
        u.scale = float(b->d) * float2(low & 15, high & 15);
        u.shift = -float(b->dmin) * float2(low >> 4, high >> 4);
    }
};

struct Q3_K : Block2Bit {
    // See `unpack_scales_q3_k` in the quant crate.
    static float scale(device const uchar* packed, int j) {
        int low = (packed[j & 7] >> (4 * (j >> 3))) & 15;
        int high = (packed[8 + (j & 3)] >> (2 * (j >> 2))) & 3;
        return float((low | high << 4) - 32);
    }
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ3_K* b = (device const BlockQ3_K*)row + (unit >> 4);
        unpack(b->qs, unit, u);
        // Byte i holds the third bits of the elements i, 32 + i, ..., 224 + i.
        int field = 4 * ((unit >> 3) & 1) + 2 * ((unit >> 2) & 1);
        ushort4 h = load_bytes8(b->hmask + (unit & 3) * 8) >> ushort(field);
        float4 bits[4];
        unpack_bytes(h & 1, (h >> 8) & 1, bits[0], bits[1]);
        unpack_bytes((h >> 1) & 1, (h >> 9) & 1, bits[2], bits[3]);
        UNROLL for (short i = 0; i < 4; i++) u.q[i] += 4.0f * bits[i];
        int s = sub_block(unit);
        u.scale = float(b->d) * float2(scale(b->scales, s), scale(b->scales, s + 2));
        u.shift = -4.0f * u.scale;
    }
};

struct Q8_K {
    enum { LEN = 256, GAP = 8, SHIFTED = 0, PARTIAL = 0, WIDE_RANGE = 1 };
    static int offset(int unit) { return unit * 16; }
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockQ8_K* b = (device const BlockQ8_K*)row + (unit >> 4);
        unpack_int8(b->qs + (unit & 15) * 16, u);
        u.scale = b->d;
        u.shift = 0.0f;
    }
};

struct IQ4_XS {
    enum { LEN = 256, GAP = 16, SHIFTED = 0, PARTIAL = 0, WIDE_RANGE = 0 };
    static int offset(int unit) { return (unit >> 1) * 32 + (unit & 1) * 8; }
    static void load(device const uchar* row, int unit, int, thread Unit& u) {
        device const BlockIQ4_XS* b = (device const BlockIQ4_XS*)row + (unit >> 4);
        unpack_nibbles(load_bytes8(b->qs + (unit & 15) * 8), u);
        look_up(IQ4_NL_TABLE, u);
        int j = (unit >> 1) & 7;
        int low = (b->scales_l[j >> 1] >> (4 * (j & 1))) & 15;
        int high = (b->scales_h >> (2 * j)) & 3;
        u.scale = float(b->d) * float((low | high << 4) - 32);
        u.shift = 0.0f;
    }
};

// ---- floats --------------------------------------------------------------------------------------

// Rows of any width: the last unit may be partial, and elements past the row count as zero.
struct FloatUnits {
    enum { LEN = 1, GAP = 8, SHIFTED = 0, PARTIAL = 1, WIDE_RANGE = 0 };
    static int offset(int unit) { return unit * 16; }
};

struct F32 : FloatUnits {
    enum { WIDE_RANGE = 1 };
    static void load(device const uchar* row, int unit, int cols, thread Unit& u) {
        device const float* p = (device const float*)row + unit * 16;
        int rest = cols - unit * 16;
        UNROLL for (short i = 0; i < 4; i++) u.q[i] = load4_partial(p + 4 * i, rest - 4 * i);
        u.scale = 1.0f;
        u.shift = 0.0f;
    }
};

struct F16 : FloatUnits {
    static void load(device const uchar* row, int unit, int cols, thread Unit& u) {
        device const half* p = (device const half*)row + unit * 16;
        int rest = cols - unit * 16;
        UNROLL for (short i = 0; i < 4; i++) {
            half4 h;
            if (rest >= 4 * i + 4) h = half4(*(device const packed_half4*)(p + 4 * i));
            else h = load_tail(p + 4 * i, rest - 4 * i);
            u.q[i] = float4(h);
        }
        u.scale = 1.0f;
        u.shift = 0.0f;
    }
};

// The upper halves of floats: shifted into place, so that no device needs the bfloat type.
struct BF16 : FloatUnits {
    enum { WIDE_RANGE = 1 };
    static void load(device const uchar* row, int unit, int cols, thread Unit& u) {
        device const ushort* p = (device const ushort*)row + unit * 16;
        int rest = cols - unit * 16;
        UNROLL for (short i = 0; i < 4; i++) {
            ushort4 upper;
            if (rest >= 4 * i + 4) upper = ushort4(*(device const packed_ushort4*)(p + 4 * i));
            else upper = load_tail(p + 4 * i, rest - 4 * i);
            u.q[i] = as_type<float4>(uint4(upper) << 16);
        }
        u.scale = 1.0f;
        u.shift = 0.0f;
    }
};

// Every format, for the instantiations at the end of a kernel file.
#define FOR_EACH_FORMAT(X) \
    X(F32) X(F16) X(BF16) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(Q8_K) \
    X(IQ4_NL) X(IQ4_XS) X(MXFP4)
