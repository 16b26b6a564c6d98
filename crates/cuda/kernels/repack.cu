// From the blocks of a file to tiles.
#include "tiled.cuh"

struct RepackArgs {
    const u8 *raw; // rows of blocks
    u8 *tiled;
    u32 rows, cols, units;
};

// The largest magnitude of all elements. The header was cleared. A thread for every few elements of a row.
template <int F> __device__ void largest(const RepackArgs &a) {
    __shared__ float scratch[32];
    float top = 0;
    for (u32 row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const u8 *bytes = a.raw + row * row_bytes<F>(a.cols);
        for (u32 i = threadIdx.x; i < a.cols; i += blockDim.x) top = fmaxf(top, fabsf(element<F>(bytes, i)));
    }
    top = block_max(top, scratch);
    // Floats that are not negative are in the order of their bits.
    if (threadIdx.x == 0) atomicMax((u32 *)a.tiled, __float_as_uint(top));
}

template <int F> __device__ __forceinline__ int code_at(const RepackArgs &a, u32 row, u32 col) {
    if (row >= a.rows || col >= a.cols) return Raw<F>::TABLE ? 0 : Raw<F>::OFFSET;
    typedef Raw<F> R;
    const typename R::Block *b = (const typename R::Block *)(a.raw + row * row_bytes<F>(a.cols));
    return R::code(b[col / R::LEN], col % R::LEN);
}

template <int F> __device__ __forceinline__ u32 code_word(const RepackArgs &a, u32 row0, u32 col0, u32 w) {
    typedef Record<F> R;
    u32 byte = w * 4, value = 0;
    if (byte < R::NIBBLES) {
        u32 i = byte / 256, lane = byte % 256 / 8, r = byte % 8 / 4;
        for (int s = 0; s < 8; s++) {
            int code = code_at<F>(a, row0 + lane / 4 + 8 * r, col0 + 32 * i + slot_column(lane % 4, s));
            value |= (u32)(code & 15) << (8 * (s % 4) + 4 * (s / 4));
        }
    } else if (byte < R::SINGLES_AT) {
        u32 at = byte - R::PAIRS_AT, i = at / 128, lane = at % 128 / 4;
        for (int r = 0; r < 2; r++)
            for (int s = 0; s < 8; s++) {
                int code = code_at<F>(a, row0 + lane / 4 + 8 * r, col0 + 32 * i + slot_column(lane % 4, s));
                u32 two = (code >> (R::BITS == 6 ? 4 : 0)) & 3;
                value |= two << (8 * (s % 4) + 2 * (2 * r + s / 4));
            }
    } else if (byte < R::SINGLES_AT + R::SINGLES) {
        u32 at = byte - R::SINGLES_AT, lane = at % 128 / 4;
        for (int half = 0; half < 2; half++)
            for (int r = 0; r < 2; r++)
                for (int s = 0; s < 8; s++) {
                    u32 i = at / 128 * 2 + half;
                    int code = code_at<F>(a, row0 + lane / 4 + 8 * r, col0 + 32 * i + slot_column(lane % 4, s));
                    value |= (u32)((code >> (R::BITS - 1)) & 1) << (8 * (s % 4) + 4 * half + 2 * r + s / 4);
                }
    } else {
        u32 i = byte / 512, lane = byte % 512 / 16, r = byte % 16 / 8;
        for (int k = 0; k < 4; k++) {
            u32 s = byte % 8 + k;
            value |= (u32)code_at<F>(a, row0 + lane / 4 + 8 * r, col0 + 32 * i + slot_column(lane % 4, s)) << (8 * k);
        }
    }
    return value;
}

template <int F> __device__ __forceinline__ u32 float_word(const RepackArgs &a, u32 row0, u32 col0, u32 w, float scale) {
    typedef Record<F> R;
    u32 byte = w * 4, value = 0;
    bool low = byte >= R::UNIT * 32;
    u32 at = byte % (R::UNIT * 32), i = at / 1024, r = at % 1024 / 512, lane = at % 512 / 16, s = at % 16 / 2;
    for (int k = 0; k < 2; k++) {
        u32 row = row0 + lane / 4 + 8 * r, col = col0 + 32 * i + slot_column(lane % 4, slot_at(s + k));
        if (row >= a.rows || col >= a.cols) continue;
        float v = element<F>(a.raw + row * row_bytes<F>(a.cols), col) * scale;
        u16 h = to_half(v);
        if (low) h = to_half(v - from_half(h));
        value |= (u32)h << (16 * k);
    }
    return value;
}

// The scales, byte by byte: they are few.
template <int F> __device__ __forceinline__ u8 scale_byte(const RepackArgs &a, u32 row0, u32 col0, u32 at) {
    typedef Record<F> R;
    typedef Raw<F> W;
    const int S = R::SCALES;
    u32 row, col, byte;
    if (S == HALF_SCALES) {
        row = row0 + at % 32 / 4 + 8 * (at % 4 / 2), col = col0 + at / 32 * 32, byte = at % 2;
    } else if (S == HALF_MIN_SCALES || S == FLOAT_SCALES) {
        row = row0 + at % 64 / 8 + 8 * (at % 8 / 4), col = col0 + at / 64 * 32, byte = at % 4;
    } else if (at < 256) {
        row = row0 + at / 16, col = col0, byte = at % 16;
    } else if (S == BYTE_SCALES) {
        row = row0 + (at - 256) / 2, col = col0, byte = at % 2;
    } else {
        row = row0 + (at - 256) / 4, col = col0, byte = at % 4;
    }
    if (row >= a.rows || col >= a.cols) return 0;
    const typename W::Block &b = ((const typename W::Block *)(a.raw + row * row_bytes<F>(a.cols)))[col / W::LEN];
    if constexpr (S == HALF_SCALES || S == HALF_MIN_SCALES) {
        return ((const u8 *)&b.d)[byte];
    } else if constexpr (S == FLOAT_SCALES) {
        float s, m;
        W::affine(b, 0, s, m);
        return (u8)(__float_as_uint(s) >> (8 * byte));
    } else if constexpr (S == K_SCALES) {
        return ((const u8 *)&b)[byte];
    } else if constexpr (F == Q2_K) {
        return at < 256 ? b.scales[byte] : ((const u8 *)&b.d)[byte];
    } else {
        if (at >= 256) return ((const u8 *)&b.d)[byte];
        if constexpr (F == Q3_K) return (u8)scale_q3(b.scales, byte);
        else if constexpr (F == IQ4_XS) return (u8)W::scale(b, byte / 2);
        else return (u8)b.scales[byte];
    }
}

// A block for each record.
template <int F> __device__ void repack(const RepackArgs &a) {
    typedef Record<F> R;
    u32 row0 = blockIdx.y * 16, col0 = blockIdx.x * R::UNIT;
    u8 *out = a.tiled + TILED_HEADER + ((u64)blockIdx.y * a.units + blockIdx.x) * R::SIZE;
    float scale = R::IS_FLOAT ? weight_scale(a.tiled) : 1;
    for (u32 w = threadIdx.x; w < R::SCALES_AT / 4; w += blockDim.x) {
        if constexpr (R::IS_FLOAT) ((u32 *)out)[w] = float_word<F>(a, row0, col0, w, scale);
        else ((u32 *)out)[w] = code_word<F>(a, row0, col0, w);
    }
    if constexpr (!R::IS_FLOAT)
        for (u32 at = threadIdx.x; at < R::SCALE_BYTES; at += blockDim.x)
            out[R::SCALES_AT + at] = scale_byte<F>(a, row0, col0, at);
}

#define NAMED(F)                                                                                                      \
    extern "C" __global__ void largest_##F(const __grid_constant__ RepackArgs a) { largest<F>(a); }                   \
    extern "C" __global__ void repack_##F(const __grid_constant__ RepackArgs a) { repack<F>(a); }
// The definition is put in before the names are made.
#define KERNELS(F) NAMED(F)
KERNELS(FORMAT)
