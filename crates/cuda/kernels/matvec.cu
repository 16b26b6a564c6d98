// One row of activations times one, two or three matrices: the products of a decode step, which are as fast as the
// weights come from memory.
//
// Quantised weights go through the tensor cores as the integers that they are, 16 rows at a time. The activations are 16
// bits for each group of 32 with a scale, as two signed bytes `h` and `l`: `d (h + l / 254)`. The 8 columns of a product
// take the activations of different groups (zeros elsewhere), so that the sums of up to 8 groups come out side by side, a
// few in each lane, which scales them in single precision. Float weights are multiplied as halves, with the activations
// as a half and what it leaves.
//
// There is one block for each multiprocessor, since every block reads and prepares all activations. Its TEAMS teams of
// WARPS warps each take tile after tile: the warps of a team share the units of a tile's columns, copy them ahead into
// memory of their own, and add up at the end of the tile.
#include "tiled.cuh"

struct Part {
    const u8 *weight; // tiled
    const float *bias;
    float *out;
    u32 tiles, rows;
};
struct MatvecArgs {
    const float *x;
    const float *norm; // weight of a norm of `x` that comes first, or null
    const float *residual; // added to the result of the first part, or null
    Part parts[3];
    u32 cols, padded; // columns, and up to the end of the last unit
    u32 tiles;        // of all parts; of the first where the parts are a gated pair
    u32 normed;       // whether `x` is normed (also without weight)
    float epsilon;
    int activation;
};

#ifndef DEPTH
#define WARPS 7
#define DEPTH 2
#define TEAMS 4
#endif
#define THREADS (TEAMS * WARPS * 32)

template <int F> struct Traits {
    typedef Record<F> R;
    enum {
        SIZE = R::SIZE,
        UNIT = R::UNIT,
        IS_FLOAT = R::IS_FLOAT,
        // The sums of activations that the format needs: of 32 or 16, as integers for offsets, as floats for minimums.
        INT32 = !IS_FLOAT && R::SPAN == 32,
        FLOAT32 = R::HAS_MIN && R::SPAN == 32,
        INT16 = !IS_FLOAT && R::SPAN == 16,
        FLOAT16 = R::HAS_MIN && R::SPAN == 16
    };
};
template <> struct Traits<-1> {
    enum { SIZE = 0, UNIT = 256, IS_FLOAT = 0, INT32 = 0, FLOAT32 = 0, INT16 = 0, FLOAT16 = 0 };
};
template <int F> __device__ __forceinline__ u32 units_of(u32 cols) {
    return F < 0 ? 0 : (cols + Traits<F>::UNIT - 1) / Traits<F>::UNIT;
}

// How the activations of a set of 128 columns lie in shared memory.
template <int F0, int F1, int F2> struct Set {
    enum {
        IS_FLOAT = Traits<F0>::IS_FLOAT,
        // Bytes: h of the four groups and then l, 8 slots of each lane; or a half and its rest in turn.
        X = IS_FLOAT ? 512 : 256,
        SCALES_AT = X,
        INT32_AT = SCALES_AT + (IS_FLOAT ? 0 : 32),
        FLOAT32_AT = INT32_AT + (Traits<F0>::INT32 || Traits<F1>::INT32 || Traits<F2>::INT32 ? 32 : 0),
        INT16_AT = FLOAT32_AT + (Traits<F0>::FLOAT32 || Traits<F1>::FLOAT32 || Traits<F2>::FLOAT32 ? 32 : 0),
        FLOAT16_AT = INT16_AT + (Traits<F0>::INT16 || Traits<F1>::INT16 || Traits<F2>::INT16 ? 32 : 0),
        SIZE = FLOAT16_AT + (Traits<F0>::FLOAT16 || Traits<F1>::FLOAT16 || Traits<F2>::FLOAT16 ? 32 : 0)
    };
};

// The sums of rows `g` and `g + 8` over a unit: each lane has a part of them.
template <int F, typename S>
__device__ __forceinline__ void multiply(const u8 *rec, const u8 *x, int lane, float (&acc)[2]) {
    typedef Record<F> R;
    const int g = lane / 4, t = lane % 4;
    if constexpr (R::IS_FLOAT) {
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < R::GROUPS; i++) {
            uint4 b = make_uint4(0, 0, 0, 0);
            if (g < 2) b = *(const uint4 *)(x + (i * 4 + t) * 32 + g * 16);
            u32 a0[4], a1[4];
            halves_of_row<F>(rec, lane, i, 0, a0);
            halves_of_row<F>(rec, lane, i, 1, a1);
            mma(c, a0[0], a1[0], a0[1], a1[1], b.x, b.y);
            mma(c, a0[2], a1[2], a0[3], a1[3], b.z, b.w);
            if constexpr (R::BITS == 32) {
                low_halves(rec, lane, i, 0, a0);
                low_halves(rec, lane, i, 1, a1);
                mma(c, a0[0], a1[0], a0[1], a1[1], b.x, b.y);
                mma(c, a0[2], a1[2], a0[3], a1[3], b.z, b.w);
            }
        }
        acc[0] += c[0] + c[1];
        acc[1] += c[2] + c[3];
    } else {
        Scales<F> scales;
        scales.read(rec, g);
#pragma unroll
        for (int s = 0; s < R::UNIT / 128; s++) {
            const u8 *set = x + s * S::SIZE;
            if constexpr (R::SPAN == 32) {
                // Columns 0 to 3: h of the four groups; 4 to 7: l.
                const uint2 own = *(const uint2 *)(set + lane * 8);
                // Two sums, so that a product need not wait for the one before.
                int c[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    Words<F> w(rec, lane, 4 * s + i);
                    const bool mine = g % 4 == i;
                    mma_bytes(i % 2 ? odd : c, w.codes(i, 0, 0), w.codes(i, 1, 0), w.codes(i, 0, 1), w.codes(i, 1, 1),
                              mine ? own.x : 0, mine ? own.y : 0);
                }
                const float2 d = *(const float2 *)(set + S::SCALES_AT + t * 8);
#pragma unroll
                for (int r = 0; r < 2; r++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        float scale, min;
                        scales.own(rec, g, t, s, k, r, scale, min);
                        int v = c[2 * r + k] + odd[2 * r + k];
                        if constexpr (Offset<F>::VALUE != 0)
                            v -= Offset<F>::VALUE * *(const int *)(set + S::INT32_AT + t * 8 + k * 4);
                        acc[r] = fmaf(scale * (k ? d.y : d.x), (float)v, acc[r]);
                        if constexpr (R::HAS_MIN)
                            acc[r] = fmaf(min, *(const float *)(set + S::FLOAT32_AT + t * 8 + k * 4), acc[r]);
                    }
            } else {
                // A column for each 16: h in one product, l in another.
                const u8 *at = set + (g / 2 * 4 + t) * 8 + g % 2 * 4;
                const u32 own_h = *(const u32 *)at, own_l = *(const u32 *)(at + 128);
                int h[4] = {0, 0, 0, 0}, l[4] = {0, 0, 0, 0};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    Words<F> w(rec, lane, 4 * s + i);
                    const u32 a0 = w.codes(i, 0, 0), a1 = w.codes(i, 1, 0), a2 = w.codes(i, 0, 1), a3 = w.codes(i, 1, 1);
                    const bool first = g == 2 * i, second = g == 2 * i + 1;
                    mma_bytes(h, a0, a1, a2, a3, first ? own_h : 0, second ? own_h : 0);
                    mma_bytes(l, a0, a1, a2, a3, first ? own_l : 0, second ? own_l : 0);
                }
                const float d = *(const float *)(set + S::SCALES_AT + 16 + t * 4);
#pragma unroll
                for (int r = 0; r < 2; r++)
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        float scale, min;
                        scales.own(rec, g, t, s, k, r, scale, min);
                        int v = h[2 * r + k] * 254 + l[2 * r + k];
                        if constexpr (Offset<F>::VALUE != 0)
                            v -= Offset<F>::VALUE * *(const int *)(set + S::INT16_AT + t * 8 + k * 4);
                        acc[r] = fmaf(scale * d, (float)v, acc[r]);
                        if constexpr (R::HAS_MIN)
                            acc[r] = fmaf(min, *(const float *)(set + S::FLOAT16_AT + t * 8 + k * 4), acc[r]);
                    }
            }
        }
    }
}

// The sequence of units that a warp works through: tile after tile of the block, part after part of a gated pair.
struct Cursor {
    const u8 *next;
    u32 tile, part, left; // units left in this part of the tile
};

template <int F0, int F1, int F2, bool GATED> struct Matvec {
    enum {
        S0 = Traits<F0>::SIZE,
        S1 = Traits<F1>::SIZE > (int)S0 ? Traits<F1>::SIZE : (int)S0,
        SLOT = Traits<F2>::SIZE > (int)S1 ? Traits<F2>::SIZE : (int)S1
    };
    typedef Set<F0, F1, F2> S;
    const MatvecArgs &a;
    u8 *ring;
    int warp, lane;

    __device__ __forceinline__ Matvec(const MatvecArgs &args, u8 *shared)
        : a(args), ring(shared + (threadIdx.x / 32) * DEPTH * SLOT), warp(threadIdx.x / 32 % WARPS),
          lane(threadIdx.x % 32) {}

    // The first tile of the thread's team.
    __device__ __forceinline__ u32 first_tile() const { return blockIdx.x + gridDim.x * (threadIdx.x / (WARPS * 32)); }

    // The part that a tile belongs to, and its number there.
    __device__ __forceinline__ u32 locate(u32 tile, u32 &local) const {
        local = tile;
        if (GATED || F1 < 0 || local < a.parts[0].tiles) return 0;
        local -= a.parts[0].tiles;
        if (F2 < 0 || local < a.parts[1].tiles) return 1;
        local -= a.parts[1].tiles;
        return 2;
    }
    template <int F> __device__ __forceinline__ void begin(Cursor &c, u32 local) const {
        if constexpr (F >= 0) {
            const u32 units = units_of<F>(a.cols);
            c.left = units > (u32)warp ? (units - warp + WARPS - 1) / WARPS : 0;
            c.next = record<F>(a.parts[c.part].weight, units, local, warp) + lane * 16;
        }
    }
    // The first unit of a tile's part.
    __device__ __forceinline__ void enter(Cursor &c) const {
        u32 local = c.tile;
        if constexpr (!GATED) c.part = locate(c.tile, local);
        if (F1 < 0 || c.part == 0) begin<F0>(c, local);
        else if (F2 < 0 || c.part == 1) begin<F1>(c, local);
        else begin<F2>(c, local);
    }
    // Goes on to the next part that has units for this warp.
    __device__ __forceinline__ void settle(Cursor &c) const {
        while (c.left == 0 && c.tile < a.tiles) {
            if (GATED && c.part == 0) {
                c.part = 1;
            } else {
                c.part = 0;
                c.tile += gridDim.x * TEAMS;
            }
            if (c.tile < a.tiles) enter(c);
        }
    }
    __device__ __forceinline__ void start(Cursor &c) const {
        c.tile = first_tile(), c.part = 0, c.left = 0;
        if (c.tile < a.tiles) enter(c);
        settle(c);
    }
    template <int F> __device__ __forceinline__ void copy(u8 *to, Cursor &c) const {
        if constexpr (F >= 0) {
            const int lines = Traits<F>::SIZE / 16;
#pragma unroll
            for (int i = 0; i < lines; i += 32)
                if (i + 32 <= lines || lane < lines - i) copy16(to + (i + lane) * 16, c.next + i * 16);
            c.next += WARPS * Traits<F>::SIZE;
        }
    }
    __device__ __forceinline__ void fetch(Cursor &c, u32 slot) const {
        if (c.tile < a.tiles) {
            u8 *to = ring + slot * SLOT;
            if (F1 < 0 || c.part == 0) copy<F0>(to, c);
            else if (F2 < 0 || c.part == 1) copy<F1>(to, c);
            else copy<F2>(to, c);
            if (--c.left == 0) settle(c);
        }
        copies_commit();
    }
    template <int F>
    __device__ __forceinline__ void part(Cursor &ahead, u32 &slot, const u8 *x, float (&acc)[2]) {
        if constexpr (F >= 0) {
            const u32 n = units_of<F>(a.cols);
            for (u32 unit = warp; unit < n; unit += WARPS) {
                copies_wait<DEPTH - 1>();
                __syncwarp();
                multiply<F, S>(ring + slot * SLOT, x + unit * (Traits<F>::UNIT * S::SIZE / 128), lane, acc);
                __syncwarp();
                fetch(ahead, slot);
                slot = slot + 1 == DEPTH ? 0 : slot + 1;
            }
        }
    }
};

// Four columns of the activations, and of the norm's weight.
__device__ __forceinline__ void read4(const MatvecArgs &a, u32 col, float (&v)[4], float (&w)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = 0, w[k] = 1;
    if (a.cols % 4 == 0) {
        if (col < a.cols) {
            *(float4 *)v = *(const float4 *)(a.x + col);
            if (a.norm) *(float4 *)w = *(const float4 *)(a.norm + col);
        }
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (col + k >= a.cols) continue;
            v[k] = a.x[col + k];
            if (a.norm) w[k] = a.norm[col + k];
        }
    }
}

// What a thread's 8 slots of a group become: bytes, or halves. `v` is normed and, for halves, scaled.
template <typename S> __device__ __forceinline__ void place(u8 *x, u32 c, const float (&v)[2][4]) {
    const u32 group = c / 4, t = c % 4, i = group % 4;
    u8 *set = x + group / 4 * S::SIZE;
    if constexpr (S::IS_FLOAT) {
        u32 high[4], low[4];
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float p = v[j][k], q = v[j][k + 2];
                high[2 * j + k] = to_half2(p, q);
                low[2 * j + k] = to_half2(p - low_half(high[2 * j + k]), q - high_half(high[2 * j + k]));
            }
        uint4 *to = (uint4 *)(set + (i * 4 + t) * 32);
        to[0] = *(uint4 *)high;
        to[1] = *(uint4 *)low;
        return;
    }
    // The four neighbours that make a group are all here or all not.
    const u32 mask = 0xfu << (threadIdx.x % 32 & ~3);
    u32 bits = 0; // in the order of magnitudes, with infinity and what is no number above all
#pragma unroll
    for (int k = 0; k < 4; k++)
        bits = max(bits, max(__float_as_uint(v[0][k]) & 0x7fffffff, __float_as_uint(v[1][k]) & 0x7fffffff));
    bits = max(bits, __shfl_xor_sync(mask, bits, 1));
    bits = max(bits, __shfl_xor_sync(mask, bits, 2));
    const float top = __uint_as_float(bits);
    // What is too small for an inverse is 0. The product is never above 127.5.
    const bool none = top < 1e-35f;
    const float inverse = none ? 0.0f : __fdividef(126.99f, top);
    float d = none ? 0.0f : top * (1.0f / 126.99f);
    // Sums with this number are whole, in its low bits.
    const float whole = 12582912.0f;
    u32 h[2], l[2];
#pragma unroll
    for (int j = 0; j < 2; j++) {
        u32 high[4], low[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float scaled = v[j][k] * inverse, m = scaled + whole;
            high[k] = __float_as_uint(m);
            low[k] = __float_as_uint(fmaf(scaled - (m - whole), 254.0f, whole));
        }
        h[j] = __byte_perm(__byte_perm(high[0], high[1], 0x0040), __byte_perm(high[2], high[3], 0x0040), 0x5410);
        l[j] = __byte_perm(__byte_perm(low[0], low[1], 0x0040), __byte_perm(low[2], low[3], 0x0040), 0x5410);
    }
    *(uint2 *)(set + (i * 4 + t) * 8) = make_uint2(h[0], h[1]);
    *(uint2 *)(set + 128 + (i * 4 + t) * 8) = make_uint2(l[0], l[1]);
    if (t == 0) {
        // What is no number stays none.
        if (bits >= 0x7f800000u) d = __int_as_float(0x7fc00000);
        ((float *)(set + S::SCALES_AT))[i] = d;
        ((float *)(set + S::SCALES_AT))[4 + i] = d * (1.0f / 254.0f);
    }
    if constexpr (S::FLOAT32_AT > S::INT32_AT) {
        int high = __dp4a((int)h[0], 0x01010101, __dp4a((int)h[1], 0x01010101, 0));
        int low = __dp4a((int)l[0], 0x01010101, __dp4a((int)l[1], 0x01010101, 0));
        high += __shfl_xor_sync(mask, high, 1), high += __shfl_xor_sync(mask, high, 2);
        low += __shfl_xor_sync(mask, low, 1), low += __shfl_xor_sync(mask, low, 2);
        if (t == 1) ((int *)(set + S::INT32_AT))[i] = high, ((int *)(set + S::INT32_AT))[4 + i] = low;
    }
    if constexpr (S::INT16_AT > S::FLOAT32_AT) {
        float sum = v[0][0] + v[0][1] + v[0][2] + v[0][3] + (v[1][0] + v[1][1] + v[1][2] + v[1][3]);
        sum += __shfl_xor_sync(mask, sum, 1), sum += __shfl_xor_sync(mask, sum, 2);
        if (t == 2) ((float *)(set + S::FLOAT32_AT))[i] = sum, ((float *)(set + S::FLOAT32_AT))[4 + i] = 0;
    }
    if constexpr (S::FLOAT16_AT > S::INT16_AT) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int sum = 254 * __dp4a((int)h[j], 0x01010101, 0) + __dp4a((int)l[j], 0x01010101, 0);
            sum += __shfl_xor_sync(mask, sum, 1), sum += __shfl_xor_sync(mask, sum, 2);
            if (t == 3) ((int *)(set + S::INT16_AT))[2 * i + j] = sum;
        }
    }
    if constexpr (S::SIZE > S::FLOAT16_AT) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float sum = v[j][0] + v[j][1] + v[j][2] + v[j][3];
            sum += __shfl_xor_sync(mask, sum, 1), sum += __shfl_xor_sync(mask, sum, 2);
            if (t == 3) ((float *)(set + S::FLOAT16_AT))[2 * i + j] = sum;
        }
    }
}

// A value over the block: the sum, or the largest.
template <bool SUM> __device__ __forceinline__ float over_block(float v, float *scratch) {
    v = SUM ? warp_sum(v) : warp_max(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    const int lane = threadIdx.x % 32;
    v = lane < TEAMS * WARPS ? scratch[lane] : 0;
    return SUM ? warp_sum(v) : warp_max(v);
}

// A barrier of the warps of a team.
__device__ __forceinline__ void team_barrier() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.x / (WARPS * 32)), "n"(WARPS * 32) : "memory");
}

// Chunks of 8 columns that a thread keeps in registers between the norm and what follows.
#define KEPT 2

// Reads the activations, norms them, and leaves them in `x`, set after set. Returns what their products must be
// multiplied by. `scratch` has 64 floats.
template <typename S> __device__ float prepare(const MatvecArgs &a, u8 *x, float *scratch) {
    const u32 chunks = a.padded / 8;
    float factor = 1, unscale = 1;
    if (!S::IS_FLOAT && chunks <= KEPT * THREADS) {
        float v[KEPT][2][4];
        float squares = 0;
#pragma unroll
        for (int n = 0; n < KEPT; n++) {
            const u32 c = threadIdx.x + n * THREADS;
            if (c >= chunks) continue;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const u32 col = c / 4 * 32 + 16 * j + c % 4 * 4;
                float w[4];
                read4(a, col, v[n][j], w);
#pragma unroll
                for (int k = 0; k < 4; k++) squares = fmaf(v[n][j][k], v[n][j][k], squares), v[n][j][k] *= w[k];
            }
        }
        if (a.normed) factor = rsqrtf(over_block<true>(squares, scratch) / a.cols + a.epsilon);
#pragma unroll
        for (int n = 0; n < KEPT; n++) {
            const u32 c = threadIdx.x + n * THREADS;
            if (c >= chunks) continue;
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) v[n][j][k] *= factor;
            place<S>(x, c, v[n]);
        }
    } else {
        if (a.normed) {
            float squares = 0;
            for (u32 i = threadIdx.x; i < a.cols; i += THREADS) squares = fmaf(a.x[i], a.x[i], squares);
            factor = rsqrtf(over_block<true>(squares, scratch) / a.cols + a.epsilon);
        }
        float v[2][4], w[4];
        if constexpr (S::IS_FLOAT) {
            float top = 0;
            for (u32 col = threadIdx.x * 4; col < a.padded; col += THREADS * 4) {
                read4(a, col, v[0], w);
#pragma unroll
                for (int k = 0; k < 4; k++) top = fmaxf(top, fabsf(v[0][k] * w[k] * factor));
            }
            float scale = half_range_scale(over_block<false>(top, scratch + 32));
            factor *= scale;
            unscale = 1.0f / scale;
        }
#pragma unroll 2
        for (u32 c = threadIdx.x; c < chunks; c += THREADS) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                read4(a, c / 4 * 32 + 16 * j + c % 4 * 4, v[j], w);
#pragma unroll
                for (int k = 0; k < 4; k++) v[j][k] *= w[k] * factor;
            }
            place<S>(x, c, v);
        }
    }
    __syncthreads();
    return unscale;
}

template <int F0, int F1, int F2, bool GATED> __device__ __forceinline__ void matvec(const MatvecArgs &a) {
    extern __shared__ __align__(16) u8 shared[];
    typedef Matvec<F0, F1, F2, GATED> M;
    typedef typename M::S S;
    M m(a, shared);
    u8 *x = shared + TEAMS * WARPS * DEPTH * M::SLOT;
    float *scratch = (float *)(x + a.padded / 128 * S::SIZE);
    const u32 thread = threadIdx.x % (WARPS * 32); // in its team
    // [2][1 or 2 parts][warps][16] of each team
    float *added = scratch + 64 + threadIdx.x / (WARPS * 32) * (2 * WARPS * 32);

    Cursor ahead;
    m.start(ahead);
#pragma unroll
    for (int i = 0; i < DEPTH; i++) m.fetch(ahead, i);
    after_previous();
    const float unscale = prepare<S>(a, x, scratch);
    let_next_start();

    u32 slot = 0, flip = 0;
    for (u32 tile = m.first_tile(); tile < a.tiles; tile += gridDim.x * TEAMS, flip ^= 1) {
        float acc[2] = {0, 0}, up[2] = {0, 0};
        u32 local = tile, part = 0;
        if constexpr (!GATED) part = m.locate(tile, local);
        const Part &p = a.parts[part];
        const u32 row = local * 16 + thread;
        const bool writes = thread < 16 && row < p.rows;
        // Read now, so that the end need not wait.
        float more = 0;
        if (!GATED && writes) {
            if (p.bias) more = p.bias[row];
            if (a.residual && part == 0) more += a.residual[row];
        }
        if constexpr (GATED) {
            m.template part<F0>(ahead, slot, x, acc);
            m.template part<F1>(ahead, slot, x, up);
        } else {
            if (part == 0) m.template part<F0>(ahead, slot, x, acc);
            else if (part == 1) m.template part<F1>(ahead, slot, x, acc);
            else m.template part<F2>(ahead, slot, x, acc);
        }
        float *to = added + flip * (WARPS * 32);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            acc[r] += __shfl_xor_sync(FULL, acc[r], 1);
            acc[r] += __shfl_xor_sync(FULL, acc[r], 2);
            if constexpr (GATED) {
                up[r] += __shfl_xor_sync(FULL, up[r], 1);
                up[r] += __shfl_xor_sync(FULL, up[r], 2);
            }
            if (m.lane % 4 == 0) {
                to[m.warp * 16 + m.lane / 4 + 8 * r] = acc[r];
                if constexpr (GATED) to[(WARPS + m.warp) * 16 + m.lane / 4 + 8 * r] = up[r];
            }
        }
        team_barrier();
        if (writes) {
            float v = 0, u = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                v += to[i * 16 + thread];
                if constexpr (GATED) u += to[(WARPS + i) * 16 + thread];
            }
            if constexpr (S::IS_FLOAT) {
                v *= unscale / weight_scale(p.weight);
                if constexpr (GATED) u *= unscale / weight_scale(a.parts[1].weight);
            }
            if constexpr (GATED) {
                v = activate(a.activation, v) * u;
            } else {
                v += more;
            }
            p.out[row] = v;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ MatvecArgs a) {
    matvec<FORMATS, GATED_PAIR>(a);
}
