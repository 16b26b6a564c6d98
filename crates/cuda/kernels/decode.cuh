// Blocks as they lie in a file, element by element: the integers that they hold, and the exact values.
#pragma once
#include "common.cuh"
#include "blocks.h"

__constant__ signed char IQ4_VALUES[16] = QUANT_IQ4_NL_VALUES;
__constant__ signed char E2M1_VALUES[16] = QUANT_E2M1_DOUBLED_VALUES;

// Element `i` of fields of 4 bits: byte `i` of each run holds elements `i` and `run + i`.
__device__ __forceinline__ int nibble(const u8 *bytes, int i, int run) {
    int r = i / (2 * run), k = i % (2 * run);
    return (bytes[r * run + k % run] >> (4 * (k / run))) & 15;
}
// The same of 2 bits, in runs of 32 bytes, and of 1 bit, in a run of 32.
__device__ __forceinline__ int two_bits(const u8 *bytes, int i) {
    int r = i / 128, k = i % 128;
    return (bytes[r * 32 + k % 32] >> (2 * (k / 32))) & 3;
}
__device__ __forceinline__ int one_bit(const u8 *bytes, int i) { return (bytes[i % 32] >> (i / 32)) & 1; }

// The 6-bit scale and minimum of sub-block `j`.
__device__ __forceinline__ void scale_min(const u8 *p, int j, int &scale, int &min) {
    if (j < 4) {
        scale = p[j] & 63;
        min = p[4 + j] & 63;
    } else {
        scale = (p[4 + j] & 15) | ((p[j - 4] >> 6) << 4);
        min = (p[4 + j] >> 4) | ((p[j] >> 6) << 4);
    }
}
__device__ __forceinline__ int scale_q3(const u8 *p, int j) {
    int low = (p[j % 8] >> (4 * (j / 8))) & 15, high = (p[8 + j % 4] >> (2 * (j / 4))) & 3;
    return (low | (high << 4)) - 32;
}
__device__ __forceinline__ float e8m0_half(u8 e) {
    return __uint_as_float(e == 0 ? 0x00200000u : e == 1 ? 0x00400000u : (u32)(e - 1) << 23);
}

// The formats' ids in a file.
enum {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, Q8_K = 15, IQ4_NL = 20, IQ4_XS = 23, BF16 = 30, MXFP4 = 39
};

// For every format: `Block`, its length, the unsigned code of element `i`, and `affine`: the value is
// `scale * (code - OFFSET) + min`, in that order of operations (`min` is negative where the format subtracts one), or
// `scale * table[code]`.
template <int F> struct Raw;

#define RAW(FORMAT, LEN_, BLOCK)                                                                                      \
    template <> struct Raw<FORMAT> {                                                                                  \
        typedef BLOCK Block;                                                                                          \
        enum { LEN = LEN_ };

RAW(Q4_0, 32, BlockQ4_0)
    enum { OFFSET = 8, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 16); }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = from_half(b.d); m = 0; }
};
RAW(Q4_1, 32, BlockQ4_1)
    enum { OFFSET = 0, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 16); }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = from_half(b.d); m = from_half(b.m); }
};
RAW(Q5_0, 32, BlockQ5_0)
    enum { OFFSET = 16, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 16) | ((b.qh[i / 8] >> (i % 8)) & 1) << 4; }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = from_half(b.d); m = 0; }
};
RAW(Q5_1, 32, BlockQ5_1)
    enum { OFFSET = 0, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 16) | ((b.qh[i / 8] >> (i % 8)) & 1) << 4; }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = from_half(b.d); m = from_half(b.m); }
};
RAW(Q8_0, 32, BlockQ8_0)
    enum { OFFSET = 128, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return b.qs[i] + 128; }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = from_half(b.d); m = 0; }
};
RAW(Q2_K, 256, BlockQ2_K)
    enum { OFFSET = 0, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return two_bits(b.qs, i); }
    static __device__ void affine(const Block &b, int i, float &s, float &m) {
        s = __fmul_rn(from_half(b.d), (float)(b.scales[i / 16] & 15));
        m = -__fmul_rn(from_half(b.dmin), (float)(b.scales[i / 16] >> 4));
    }
};
RAW(Q3_K, 256, BlockQ3_K)
    enum { OFFSET = 4, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return two_bits(b.qs, i) | one_bit(b.hmask, i) << 2; }
    static __device__ void affine(const Block &b, int i, float &s, float &m) {
        s = __fmul_rn(from_half(b.d), (float)scale_q3(b.scales, i / 16));
        m = 0;
    }
};
RAW(Q4_K, 256, BlockQ4_K)
    enum { OFFSET = 0, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 32); }
    static __device__ void affine(const Block &b, int i, float &s, float &m) {
        int scale, min;
        scale_min(b.scales, i / 32, scale, min);
        s = __fmul_rn(from_half(b.d), (float)scale);
        m = -__fmul_rn(from_half(b.dmin), (float)min);
    }
};
RAW(Q5_K, 256, BlockQ5_K)
    enum { OFFSET = 0, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 32) | one_bit(b.qh, i) << 4; }
    static __device__ void affine(const Block &b, int i, float &s, float &m) {
        int scale, min;
        scale_min(b.scales, i / 32, scale, min);
        s = __fmul_rn(from_half(b.d), (float)scale);
        m = -__fmul_rn(from_half(b.dmin), (float)min);
    }
};
RAW(Q6_K, 256, BlockQ6_K)
    enum { OFFSET = 32, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return nibble(b.ql, i, 64) | two_bits(b.qh, i) << 4; }
    static __device__ void affine(const Block &b, int i, float &s, float &m) {
        s = __fmul_rn(from_half(b.d), (float)b.scales[i / 16]);
        m = 0;
    }
};
RAW(Q8_K, 256, BlockQ8_K)
    enum { OFFSET = 128, TABLE = 0 };
    static __device__ int code(const Block &b, int i) { return b.qs[i] + 128; }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = b.d; m = 0; }
};
RAW(IQ4_NL, 32, BlockIQ4_NL)
    enum { OFFSET = 0, TABLE = 1 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 16); }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = from_half(b.d); m = 0; }
};
RAW(IQ4_XS, 256, BlockIQ4_XS)
    enum { OFFSET = 0, TABLE = 1 };
    static __device__ int scale(const Block &b, int j) {
        return (((b.scales_l[j / 2] >> (4 * (j % 2))) & 15) | ((b.scales_h >> (2 * j)) & 3) << 4) - 32;
    }
    static __device__ int code(const Block &b, int i) { return nibble(b.qs + 16 * (i / 32), i % 32, 16); }
    static __device__ void affine(const Block &b, int i, float &s, float &m) {
        s = __fmul_rn(from_half(b.d), (float)scale(b, i / 32));
        m = 0;
    }
};
RAW(MXFP4, 32, BlockMXFP4)
    enum { OFFSET = 0, TABLE = 2 };
    static __device__ int code(const Block &b, int i) { return nibble(b.qs, i, 16); }
    static __device__ void affine(const Block &b, int i, float &s, float &m) { s = e8m0_half(b.e); m = 0; }
};

// Element `i` of a row, exactly as the reference decodes it.
template <int F> __device__ float element(const u8 *row, u64 i) {
    if constexpr (F == F32) {
        return ((const float *)row)[i];
    } else if constexpr (F == F16) {
        return from_half(((const u16 *)row)[i]);
    } else if constexpr (F == BF16) {
        return from_bf16(((const u16 *)row)[i]);
    } else {
        typedef Raw<F> R;
        const typename R::Block &b = ((const typename R::Block *)row)[i / R::LEN];
        int k = (int)(i % R::LEN);
        float s, m;
        R::affine(b, k, s, m);
        int code = R::code(b, k);
        int q = R::TABLE == 1 ? IQ4_VALUES[code] : R::TABLE == 2 ? E2M1_VALUES[code] : code - R::OFFSET;
        float product = __fmul_rn(s, (float)q);
        return m == 0 ? product : __fadd_rn(product, m);
    }
}
template <int F> __device__ __forceinline__ u64 row_bytes(u64 cols) {
    if constexpr (F == F32) return cols * 4;
    else if constexpr (F == F16 || F == BF16) return cols * 2;
    else return cols / Raw<F>::LEN * sizeof(typename Raw<F>::Block);
}
