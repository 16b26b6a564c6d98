// How weights lie on the device for products: the codes of a file's blocks, in the order in which a warp feeds them to
// the tensor cores.
//
// A tile is 16 rows. A tile is a row of records, one for each unit of `UNIT` columns: first the codes, cut into planes of
// 8, 4, 2 and 1 bits (or halves of floats), then the scales. A record is contiguous, so that a warp copies it in one go.
// Columns are padded to whole units and rows to whole tiles, with zeros.
//
// In a group of 32 columns lane `4 g + t` of a warp owns rows `g` and `g + 8`, and of each the 8 columns
// `16 j + 4 t + s` (j < 2, s < 4): slot `4 j + s`. In every plane of fewer than 8 bits, byte `s` of the lane's word has the
// bits of slots `s` and `4 + s`, so that one mask gives four codes in four bytes.
//
// Halves are in the order of the slots 0 2 1 3 4 6 5 7 (see `slot_at`): what bytes 0 and 2, and 1 and 3, become.
#pragma once
#include "decode.cuh"

// What the scales of a format look like in a record.
enum {
    NO_SCALES,
    HALF_SCALES,     // a half for 32 columns
    HALF_MIN_SCALES, // two halves for 32: scale and minimum
    K_SCALES,        // 16 bytes for 256: the first three fields of Q4_K
    BYTE_SCALES,     // a signed byte for 16, a half for 256
    K2_SCALES,       // a byte of two nibbles for 16, two halves for 256: Q2_K
    FLOAT_SCALES     // a float for 32
};

template <int F> struct Tile;
#define TILE(FORMAT, BITS_, SCALES_, UNIT_)                                                                           \
    template <> struct Tile<FORMAT> {                                                                                 \
        enum { BITS = BITS_, SCALES = SCALES_, UNIT = UNIT_ };                                                        \
    };
TILE(F32, 32, NO_SCALES, 64)
TILE(F16, 16, NO_SCALES, 128)
TILE(BF16, 16, NO_SCALES, 128)
TILE(Q4_0, 4, HALF_SCALES, 128)
TILE(Q4_1, 4, HALF_MIN_SCALES, 128)
TILE(Q5_0, 5, HALF_SCALES, 128)
TILE(Q5_1, 5, HALF_MIN_SCALES, 128)
TILE(Q8_0, 8, HALF_SCALES, 128)
TILE(Q2_K, 2, K2_SCALES, 256)
TILE(Q3_K, 3, BYTE_SCALES, 256)
TILE(Q4_K, 4, K_SCALES, 256)
TILE(Q5_K, 5, K_SCALES, 256)
TILE(Q6_K, 6, BYTE_SCALES, 256)
TILE(IQ4_NL, 4, HALF_SCALES, 128)
TILE(IQ4_XS, 4, BYTE_SCALES, 256)
TILE(MXFP4, 4, FLOAT_SCALES, 128)

template <int F> struct Record {
    enum {
        BITS = Tile<F>::BITS,
        UNIT = Tile<F>::UNIT,
        SCALES = Tile<F>::SCALES,
        GROUPS = UNIT / 32,
        IS_FLOAT = BITS >= 16,
        // Columns that share a scale.
        SPAN = SCALES == BYTE_SCALES || SCALES == K2_SCALES ? 16 : 32,
        HAS_MIN = SCALES == HALF_MIN_SCALES || SCALES == K_SCALES || SCALES == K2_SCALES,
        // Planes, in bytes.
        NIBBLES = BITS == 4 || BITS == 5 || BITS == 6 ? UNIT * 8 : 0,
        PAIRS = BITS == 2 || BITS == 3 || BITS == 6 ? UNIT * 4 : 0,
        SINGLES = BITS == 3 || BITS == 5 ? UNIT * 2 : 0,
        BYTES = BITS == 8 ? UNIT * 16 : 0,
        HALVES = BITS == 16 ? UNIT * 32 : BITS == 32 ? UNIT * 64 : 0,
        PAIRS_AT = NIBBLES,
        SINGLES_AT = PAIRS_AT + PAIRS,
        SCALES_AT = SINGLES_AT + SINGLES + BYTES + HALVES,
        SCALE_BYTES = SCALES == HALF_SCALES       ? UNIT
                      : SCALES == HALF_MIN_SCALES ? UNIT * 2
                      : SCALES == K_SCALES        ? UNIT
                      : SCALES == BYTE_SCALES     ? UNIT + UNIT / 8
                      : SCALES == K2_SCALES       ? UNIT + UNIT / 4
                      : SCALES == FLOAT_SCALES    ? UNIT * 2
                                                  : 0,
        SIZE = SCALES_AT + SCALE_BYTES
    };
};

// Before the records: the largest magnitude of the matrix, and room.
enum { TILED_HEADER = 256 };
// What the halves of float formats were multiplied by, and weights are in half-precision products.
__device__ __forceinline__ float weight_scale(const u8 *weight) { return half_range_scale(*(const float *)weight); }
template <int F> __device__ __forceinline__ const u8 *record(const u8 *weight, u32 units, u32 tile, u32 unit) {
    return weight + TILED_HEADER + ((u64)tile * units + unit) * Record<F>::SIZE;
}

// The column, within its group of 32, of slot `s` of lane `t`.
__device__ __forceinline__ int slot_column(int t, int s) { return 16 * (s / 4) + 4 * t + s % 4; }

// The slot whose half stands at position `p`.
__device__ __forceinline__ int slot_at(int p) { return (p & 4) | (p & 1) << 1 | (p >> 1 & 1); }

#define MAGIC 0x64006400u // 1024 as two halves: a code in the low bits is 1024 + code
// `bits` of a word under the magic number, in one instruction.
__device__ __forceinline__ u32 magic_of(u32 word, u32 bits) {
    u32 h;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(h) : "r"(word), "r"(bits), "r"(MAGIC));
    return h;
}
__device__ __forceinline__ u32 halves_of(int n) { return MAGIC + (u32)n * 0x00010001u; }

// Indices of 4 bits in the low nibbles of a word's bytes, as the table's values plus 128.
template <int TABLE> __device__ __forceinline__ u32 table_bytes(u32 indices) {
    const u32 t0 = TABLE == 1 ? 0x3f2d1801u : 0x83828180u, t1 = TABLE == 1 ? 0x766a5d4fu : 0x8c888684u;
    const u32 t2 = TABLE == 1 ? 0xa6998d81u : 0x7d7e7f80u, t3 = TABLE == 1 ? 0xf1d9c5b5u : 0x74787a7cu;
    // A selector takes nibbles that stand side by side.
    u32 n = __byte_perm(indices | indices >> 4, 0, 0x4420);
    u32 low = __byte_perm(t0, t1, n & 0x7777), high = __byte_perm(t2, t3, n & 0x7777);
    return __byte_perm(low, high, 0x3210 | ((n & 0x8888) >> 1));
}

// What is taken away from codes: the format's offset, or that of a table's values.
template <int F> struct Offset {
    enum { VALUE = Raw<F>::TABLE != 0 ? 128 : (int)Raw<F>::OFFSET };
};

// The words of a lane's codes in group `i`: of both rows.
template <int F> struct Words {
    typedef Record<F> R;
    u32 n[2], two, one, bytes[4];

    __device__ __forceinline__ Words(const u8 *rec, int lane, int i) {
        if constexpr (R::NIBBLES != 0) {
            uint2 v = *(const uint2 *)(rec + i * 256 + lane * 8);
            n[0] = v.x, n[1] = v.y;
        }
        if constexpr (R::PAIRS != 0) two = *(const u32 *)(rec + R::PAIRS_AT + i * 128 + lane * 4);
        if constexpr (R::SINGLES != 0) one = *(const u32 *)(rec + R::SINGLES_AT + (i / 2) * 128 + lane * 4);
        if constexpr (R::BYTES != 0) {
            uint4 v = *(const uint4 *)(rec + i * 512 + lane * 16);
            bytes[0] = v.x, bytes[1] = v.y, bytes[2] = v.z, bytes[3] = v.w;
        }
    }
    // The unsigned codes of slots `4 j ..` in row `r`, a byte each.
    __device__ __forceinline__ u32 codes(int i, int r, int j) const {
        if constexpr (R::BYTES != 0) {
            return bytes[2 * r + j];
        } else {
            u32 code = 0;
            if constexpr (R::NIBBLES != 0) code = (n[r] >> (4 * j)) & 0x0f0f0f0fu;
            if constexpr (R::PAIRS != 0) {
                const int at = 2 * (2 * r + j), to = R::BITS == 6 ? 4 : 0;
                code |= (at >= to ? two >> (at - to) : two << (to - at)) & (0x03030303u << to);
            }
            if constexpr (R::SINGLES != 0) {
                const int at = 4 * (i % 2) + 2 * r + j, to = R::BITS - 1;
                code |= (at >= to ? one >> (at - to) : one << (to - at)) & (0x01010101u << to);
            }
            if constexpr (Raw<F>::TABLE != 0) code = table_bytes<Raw<F>::TABLE>(code);
            return code;
        }
    }
};

// The values of a lane's 8 slots in row `g + 8 r` of group `i`, as pairs of halves: codes less their offset, or the
// elements of a float matrix.
template <int F> __device__ __forceinline__ void halves_of_row(const u8 *rec, int lane, int i, int r, u32 (&pairs)[4]) {
    typedef Record<F> R;
    if constexpr (R::IS_FLOAT) {
        uint4 v = *(const uint4 *)(rec + (i * 2 + r) * 512 + lane * 16);
        pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
    } else if constexpr (R::BITS == 4 && Raw<F>::TABLE == 0) {
        // The high nibbles are read where they stand, 16 times too large, and brought down by a product.
        const uint2 both = *(const uint2 *)(rec + i * 256 + lane * 8);
        const u32 n = r == 0 ? both.x : both.y, o = n >> 8;
        const u32 offset = halves_of(Raw<F>::OFFSET), down = 0x2c002c00u; // 1 / 16
        const u32 less = Raw<F>::OFFSET == 0 ? 0xd400d400u : 0xd480d480u;  // -64, -72
        pairs[0] = half2_sub(magic_of(n, 0x000f000fu), offset);
        pairs[1] = half2_sub(magic_of(o, 0x000f000fu), offset);
        pairs[2] = half2_fma(magic_of(n, 0x00f000f0u), down, less);
        pairs[3] = half2_fma(magic_of(o, 0x00f000f0u), down, less);
    } else {
        Words<F> words(rec, lane, i);
        const u32 offset = halves_of(Offset<F>::VALUE);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            u32 c = words.codes(i, r, j);
            pairs[2 * j] = half2_sub(magic_of(c, 0x00ff00ffu), offset);
            pairs[2 * j + 1] = half2_sub(magic_of(c >> 8, 0x00ff00ffu), offset);
        }
    }
}
// The low parts of a float matrix.
__device__ __forceinline__ void low_halves(const u8 *rec, int lane, int i, int r, u32 (&pairs)[4]) {
    uint4 v = *(const uint4 *)(rec + Record<F32>::UNIT * 32 + (i * 2 + r) * 512 + lane * 16);
    pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
}

// The scales of a lane's two rows in a unit. `at` gives those of 16 columns number `sub` in row `g + 8 r`.
template <int F> struct Scales {
    typedef Record<F> R;
    uint4 header[2];

    __device__ __forceinline__ void read(const u8 *rec, int g) {
        const u8 *p = rec + R::SCALES_AT;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if constexpr (R::SCALES == K_SCALES) {
                uint4 v = *(const uint4 *)(p + (g + 8 * r) * 16);
                // Scales and minimums 0..3 and 4..7, a byte each.
                header[r].x = v.x;
                u32 s = v.y, m = v.z, low = v.w;
                header[r].y = s & 0x3f3f3f3fu;
                header[r].z = m & 0x3f3f3f3fu;
                header[r].w = 0;
                high_scales[r] = (low & 0x0f0f0f0fu) | ((s >> 2) & 0x30303030u);
                high_mins[r] = ((low >> 4) & 0x0f0f0f0fu) | ((m >> 2) & 0x30303030u);
            }
            if constexpr (R::SCALES == BYTE_SCALES) {
                header[r] = *(const uint4 *)(p + (g + 8 * r) * 16);
                d[r] = from_half(*(const u16 *)(p + R::UNIT + (g + 8 * r) * 2));
            }
            if constexpr (R::SCALES == K2_SCALES) {
                header[r] = *(const uint4 *)(p + (g + 8 * r) * 16);
                u32 v = *(const u32 *)(p + R::UNIT + (g + 8 * r) * 4);
                d[r] = low_half(v);
                dmin[r] = high_half(v);
            }
        }
        if constexpr (R::SCALES == K_SCALES) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                d[r] = low_half(header[r].x);
                dmin[r] = high_half(header[r].x);
            }
        }
    }
    float d[2], dmin[2];
    u32 high_scales[2], high_mins[2];

    // The byte of a word that the selector `0x7440 + k` picks, times `d`: it goes into the digits of 2^23, which the sum
    // takes away again.
    __device__ __forceinline__ static float times_byte(u32 word, u32 pick, float d) {
        float v = __uint_as_float(__byte_perm(word, 0x4b000000u, pick));
        return fmaf(v, d, -8388608.0f * d);
    }
    // The same of a signed byte.
    __device__ __forceinline__ static float times_signed(u32 word, u32 pick, float d) {
        return (__uint_as_float(__byte_perm(word ^ 0x80808080u, 0x4b000000u, pick)) - 8388736.0f) * d;
    }

    __device__ __forceinline__ void at(const u8 *rec, int g, int sub, int r, float &scale, float &min) const {
        const u8 *p = rec + R::SCALES_AT;
        min = 0;
        if constexpr (R::SCALES == HALF_SCALES) {
            scale = from_half(*(const u16 *)(p + ((sub / 2) * 8 + g) * 4 + r * 2));
        } else if constexpr (R::SCALES == HALF_MIN_SCALES) {
            u32 v = *(const u32 *)(p + ((sub / 2) * 8 + g) * 8 + r * 4);
            scale = low_half(v);
            min = high_half(v);
        } else if constexpr (R::SCALES == FLOAT_SCALES) {
            scale = *(const float *)(p + ((sub / 2) * 8 + g) * 8 + r * 4);
        } else if constexpr (R::SCALES == K_SCALES) {
            int j = sub / 2;
            scale = times_byte(j < 4 ? header[r].y : high_scales[r], 0x7440 | (j % 4), d[r]);
            min = times_byte(j < 4 ? header[r].z : high_mins[r], 0x7440 | (j % 4), -dmin[r]);
        } else if constexpr (R::SCALES == BYTE_SCALES) {
            u32 word = sub < 4 ? header[r].x : sub < 8 ? header[r].y : sub < 12 ? header[r].z : header[r].w;
            scale = times_signed(word, 0x7440 | (sub % 4), d[r]);
        } else if constexpr (R::SCALES == K2_SCALES) {
            u32 word = sub < 4 ? header[r].x : sub < 8 ? header[r].y : sub < 12 ? header[r].z : header[r].w;
            scale = times_byte(word & 0x0f0f0f0fu, 0x7440 | (sub % 4), d[r]);
            min = times_byte((word >> 4) & 0x0f0f0f0fu, 0x7440 | (sub % 4), -dmin[r]);
        } else {
            scale = 1;
        }
    }

    // The same for columns `32 (4 s + t) ..`, or, where 16 share a scale, `16 (8 s + 4 q + t) ..`: those whose sums lane
    // `t` has in the set of 128 columns number `s`. `pick` is `0x7440 + t`.
    __device__ __forceinline__ void
    own(const u8 *rec, int g, int t, u32 pick, int s, int q, int r, float &scale, float &min) const {
        const u8 *p = rec + R::SCALES_AT;
        const int group = 4 * s + t;
        min = 0;
        if constexpr (R::SCALES == HALF_SCALES) {
            scale = from_half(*(const u16 *)(p + (group * 8 + g) * 4 + r * 2));
        } else if constexpr (R::SCALES == HALF_MIN_SCALES) {
            u32 v = *(const u32 *)(p + (group * 8 + g) * 8 + r * 4);
            scale = low_half(v);
            min = high_half(v);
        } else if constexpr (R::SCALES == FLOAT_SCALES) {
            scale = *(const float *)(p + (group * 8 + g) * 8 + r * 4);
        } else if constexpr (R::SCALES == K_SCALES) {
            scale = times_byte(s == 0 ? header[r].y : high_scales[r], pick, d[r]);
            min = times_byte(s == 0 ? header[r].z : high_mins[r], pick, -dmin[r]);
        } else {
            const u32 word = s == 0 ? (q == 0 ? header[r].x : header[r].y) : (q == 0 ? header[r].z : header[r].w);
            if constexpr (R::SCALES == BYTE_SCALES) {
                scale = times_signed(word, pick, d[r]);
            } else {
                scale = times_byte(word & 0x0f0f0f0fu, pick, d[r]);
                min = times_byte((word >> 4) & 0x0f0f0f0fu, pick, -dmin[r]);
            }
        }
    }
};
