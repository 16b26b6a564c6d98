// One row of activations times one, two or three matrices: the products of a decode step, which are as fast as the
// weights come from memory.
//
// Quantised weights go through the tensor cores as the integers that they are, 16 rows at a time. The activations are 16
// bits for each group of 32 with a scale, as two signed bytes `h` and `l`: `e (254 h + l)`. Two of the 8 columns of a product
// take `h` and `l` of a group, and the other columns zeros, so that the sums of four groups come out side by side, those of
// one group in each lane, which scales them in single precision. Where 16 columns share a scale, halves of groups take the
// place of groups. Float weights are multiplied as halves, with the activations as a half and what it leaves.
//
// What a launch costs beside its weights is, more than all else, instructions that are not in the caches of the
// multiprocessor yet: so all that is known when the kernel is compiled is a constant, and leaves no code behind.
//
// There is one block for each multiprocessor, since every block reads and prepares all activations. Its TEAMS teams of
// WARPS warps each take tile after tile. A tile's records lie side by side, so one bulk copy brings a unit for every warp of
// a team, and one thread of it starts the copies, DEPTH of them ahead: what a warp does besides multiplying counts, since
// all warps of a multiprocessor share what it can issue. At the end of a tile the warps add up.
#include "rank.cuh"
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
    u32 tiles; // of all parts; of the first where the parts are a gated pair
    float epsilon;
    // Where each of several products, `blockIdx.y`, is with one of several matrices of each part, which lie below each other.
    u32 matrices, products_per_row; // products_per_row: of a row of `x`
    const int *chosen;              // the matrix of each product
    // Where the largest element of the first part's row is wanted: where each block's number and bits of it go, memory of the host.
    uint2 *largest;
};

#ifndef COLS
#define COLS 3584
#define NORM WEIGHTED // of `x`
#define ACTIVATION SILU // of a gate
#define WARPS 7
#define DEPTH 3
#define TEAMS 2
#define CHOSEN 0 // whether there are several matrices
#define LARGEST 0 // whether the largest result is wanted, of one part
#endif
// Without a norm, with one that has no weight, and with one that has.
#define NONE 0
#define PLAIN 1
#define WEIGHTED 2
#define THREADS (TEAMS * WARPS * 32)
// Columns up to the end of the last unit.
#define PADDED ((COLS + 255) / 256 * 256)
// Chunks of 8 columns, and how many of them a thread reads at a time.
#define CHUNKS (PADDED / 8)
#define BATCH (COLS % 4 == 0 && CHUNKS > THREADS ? 2 : 1)
// Whether a thread has one chunk at most, whose weights of the norm it reads before the launch before is done.
#define ONE_CHUNK (COLS % 4 == 0 && CHUNKS <= THREADS)
// Floats with the sums of squares: of few threads each its own, else one of each warp.
#define FEW_CHUNKS (ONE_CHUNK && CHUNKS <= 128)
#define SQUARES (FEW_CHUNKS ? 128 : 32)

template <int F> struct Traits {
    typedef Record<F> R;
    enum {
        SIZE = R::SIZE,
        UNIT = R::UNIT,
        IS_FLOAT = R::IS_FLOAT,
        // The sums of activations that the format needs: of 32 or 16, as integers for offsets, as floats for minimums.
        INT32 = !IS_FLOAT && R::SPAN == 32 && !R::HAS_MIN,
        FLOAT32 = R::HAS_MIN && R::SPAN == 32,
        INT16 = !IS_FLOAT && R::SPAN == 16 && !R::HAS_MIN,
        FLOAT16 = R::HAS_MIN && R::SPAN == 16
    };
};
template <> struct Traits<-1> {
    enum { SIZE = 0, UNIT = 256, IS_FLOAT = 0, INT32 = 0, FLOAT32 = 0, INT16 = 0, FLOAT16 = 0 };
};
template <int F> __device__ __forceinline__ constexpr u32 units_of() {
    return F < 0 ? 0 : (COLS + Traits<F>::UNIT - 1) / Traits<F>::UNIT;
}

// How the activations of a set of 128 columns lie in shared memory.
template <int F0, int F1, int F2> struct Set {
    enum {
        IS_FLOAT = Traits<F0>::IS_FLOAT,
        // Bytes: h of the four groups and then l, 8 slots of each lane; or a half and its rest in turn.
        X = IS_FLOAT ? 512 : 256,
        SCALES_AT = X,
        INT32_AT = SCALES_AT + (IS_FLOAT ? 0 : 16),
        FLOAT32_AT = INT32_AT + (Traits<F0>::INT32 || Traits<F1>::INT32 || Traits<F2>::INT32 ? 16 : 0),
        INT16_AT = FLOAT32_AT + (Traits<F0>::FLOAT32 || Traits<F1>::FLOAT32 || Traits<F2>::FLOAT32 ? 16 : 0),
        FLOAT16_AT = INT16_AT + (Traits<F0>::INT16 || Traits<F1>::INT16 || Traits<F2>::INT16 ? 32 : 0),
        SIZE = FLOAT16_AT + (Traits<F0>::FLOAT16 || Traits<F1>::FLOAT16 || Traits<F2>::FLOAT16 ? 32 : 0)
    };
};

// c += a b, 16 x 8 x 16 bytes, those of `a` unsigned, those of `b` signed.
__device__ __forceinline__ void mma_few_bytes(int (&c)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

// What a lane knows of its place, and what it gives to the columns of products: words `2 k` and `2 k + 1` where it stands
// for the group (or half of a group) number `k` of four, and zeros elsewhere.
struct Lane {
    int lane, g, t;
    u32 pick, at; // of `Scales::own`; the place of its bytes in a set, but for which half of a group
    u32 b[8];

    __device__ __forceinline__ Lane() : lane(threadIdx.x % 32), g(lane / 4), t(lane % 4), pick(0x7440 | t) {
        at = g % 2 * 128 + t * 8;
#pragma unroll
        for (int i = 0; i < 8; i++) b[i] = 0;
    }
    // Loads under a condition that leave the zeros of the other lanes where they are.
    template <typename R> __device__ __forceinline__ void load(const u8 *set) {
        const u32 from = shared_address(set) + at + (R::SPAN == 32 ? g / 2 * 32 : g / 4 * 32 + g / 2 % 2 * 4);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (R::SPAN == 32)
                asm volatile("{.reg .pred p; setp.eq.s32 p, %2, %3; @p ld.shared.v2.u32 {%0,%1}, [%4];}"
                             : "+r"(b[2 * k]), "+r"(b[2 * k + 1])
                             : "r"(g / 2), "r"(k), "r"(from));
            else
                asm volatile("{.reg .pred p; setp.eq.s32 p, %2, %3; @p ld.shared.u32 %0, [%4]; @p ld.shared.u32 %1, [%4 + 64];}"
                             : "+r"(b[2 * k]), "+r"(b[2 * k + 1])
                             : "r"(g / 2), "r"(k), "r"(from));
    }
};

// The sums of rows `g` and `g + 8` over a unit: each lane has a part of them.
template <int F, typename S>
__device__ __forceinline__ void multiply(const u8 *rec, const u8 *x, Lane &l, float (&acc)[2]) {
    typedef Record<F> R;
    const int g = l.g, t = l.t;
    if constexpr (R::IS_FLOAT) {
        float c[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < R::GROUPS; i++) {
            uint4 b = make_uint4(0, 0, 0, 0);
            if (g < 2) b = *(const uint4 *)(x + (i * 4 + t) * 32 + g * 16);
            u32 a0[4], a1[4];
            halves_of_row<F>(rec, l.lane, i, 0, a0);
            halves_of_row<F>(rec, l.lane, i, 1, a1);
            mma(c, a0[0], a1[0], a0[1], a1[1], b.x, b.y);
            mma(c, a0[2], a1[2], a0[3], a1[3], b.z, b.w);
            if constexpr (R::BITS == 32) {
                low_halves(rec, l.lane, i, 0, a0);
                low_halves(rec, l.lane, i, 1, a1);
                mma(c, a0[0], a1[0], a0[1], a1[1], b.x, b.y);
                mma(c, a0[2], a1[2], a0[3], a1[3], b.z, b.w);
            }
        }
        acc[0] += c[0] + c[1];
        acc[1] += c[2] + c[3];
    } else {
        const int quads = R::SPAN == 32 ? 1 : 2;
        Scales<F> scales;
        scales.read(rec, g);
#pragma unroll
        for (int s = 0; s < R::UNIT / 128; s++) {
            const u8 *set = x + s * S::SIZE;
            l.load<R>(set);
            int c[quads][4];
#pragma unroll
            for (int q = 0; q < quads; q++)
#pragma unroll
                for (int k = 0; k < 4; k++) c[q][k] = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                Words<F> w(rec, l.lane, 4 * s + i);
                const u32 a0 = w.codes(i, 0, 0), a1 = w.codes(i, 1, 0), a2 = w.codes(i, 0, 1), a3 = w.codes(i, 1, 1);
                if constexpr (R::SPAN == 32) {
                    mma_bytes(c[0], a0, a1, a2, a3, l.b[2 * i], l.b[2 * i + 1]);
                } else {
                    mma_few_bytes(c[i / 2], a0, a1, l.b[i % 2 * 4 + i / 2]);
                    mma_few_bytes(c[i / 2], a2, a3, l.b[i % 2 * 4 + 2 + i / 2]);
                }
            }
#pragma unroll
            for (int q = 0; q < quads; q++) {
                const int at = R::SPAN == 32 ? t : 4 * q + t;
                const float e = *(const float *)(set + S::SCALES_AT + (R::SPAN == 32 ? t : 2 * q + t / 2) * 4);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float scale, min;
                    scales.own(rec, g, t, l.pick, s, q, r, scale, min);
                    int v = 254 * c[q][2 * r] + c[q][2 * r + 1];
                    if constexpr (Offset<F>::VALUE != 0)
                        v -= Offset<F>::VALUE * *(const int *)(set + (R::SPAN == 32 ? S::INT32_AT : S::INT16_AT) + at * 4);
                    acc[r] = fmaf(scale * e, (float)v, acc[r]);
                    if constexpr (R::HAS_MIN)
                        acc[r] = fmaf(min, *(const float *)(set + (R::SPAN == 32 ? S::FLOAT32_AT : S::FLOAT16_AT) + at * 4),
                                      acc[r]);
                }
            }
        }
    }
}

// Where a team is: a tile, a part of it, and there the units that its warps take next, one each.
struct Place {
    u32 tile, part, unit;
};

// The memory that copies go to, and the barriers that tell of their end: a phase for each time a slot is filled.
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void barrier_init(u32 barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barriers_ready() {
    asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void bulk_copy(u32 to, const u8 *from, u32 bytes, u32 barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}
__device__ __forceinline__ void bulk_wait(u32 barrier, u32 phase) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(phase)
                 : "memory");
}
#endif

template <int F0, int F1, int F2, bool GATED> struct Matvec {
    enum {
        S0 = Traits<F0>::SIZE,
        S1 = Traits<F1>::SIZE > (int)S0 ? Traits<F1>::SIZE : (int)S0,
        SLOT = WARPS * (Traits<F2>::SIZE > (int)S1 ? Traits<F2>::SIZE : (int)S1),
        ONE_FORMAT = (F1 < 0 || F1 == F0) && (F2 < 0 || F2 == F0)
    };
    typedef Set<F0, F1, F2> S;
    const MatvecArgs &a;
    u8 *ring;     // the team's
    u32 barriers; // of the ring's slots
    int warp, team;

    __device__ __forceinline__ Matvec(const MatvecArgs &args, u8 *shared, u32 first_barrier)
        : a(args), warp(threadIdx.x / 32 % WARPS), team(threadIdx.x / (WARPS * 32)) {
        ring = shared + team * DEPTH * SLOT;
        barriers = first_barrier + team * DEPTH * 8;
    }

    // Whether the thread starts the team's copies.
    __device__ __forceinline__ bool leads() const { return threadIdx.x % (WARPS * 32) == 0; }
    __device__ __forceinline__ u32 first_tile() const { return blockIdx.x + gridDim.x * team; }

    // The part that a tile belongs to, and its number there.
    __device__ __forceinline__ u32 locate(u32 tile, u32 &local) const {
        local = tile;
        if (GATED || F1 < 0 || local < a.parts[0].tiles) return 0;
        local -= a.parts[0].tiles;
        if (F2 < 0 || local < a.parts[1].tiles) return 1;
        local -= a.parts[1].tiles;
        return 2;
    }
    // The format of a part, as its place among the different ones.
    __device__ __forceinline__ u32 kind(u32 part) const {
        if (F1 == F0 || F1 < 0) return F2 < 0 || F2 == F0 || part < 2 ? 0 : 2;
        if (F2 == F0) return part % 2;
        return F2 < 0 || F2 == F1 ? min(part, 1) : part;
    }
    // Starts the copy of a place's units and goes on to the next place. On a device without bulk copies all threads of the
    // team share in it.
    template <int F> __device__ __forceinline__ void copy(Place &p, u32 local, u32 slot) const {
        if constexpr (F >= 0) {
            const u32 units = units_of<F>(), bytes = min((u32)WARPS, units - p.unit) * Traits<F>::SIZE;
            const u8 *from = record<F>(a.parts[p.part].weight, units, local, p.unit);
#if __CUDA_ARCH__ >= 900
            bulk_copy(shared_address(ring) + slot * SLOT, from, bytes, barriers + slot * 8);
#else
            for (u32 i = threadIdx.x % (WARPS * 32) * 16; i < bytes; i += WARPS * 512) copy16(ring + slot * SLOT + i, from + i);
#endif
            p.unit += WARPS;
            if (p.unit < units) return;
            p.unit = 0;
            if (GATED && p.part == 0) {
                p.part = 1;
            } else {
                p.part = 0;
                p.tile += gridDim.x * TEAMS;
            }
        }
    }
    __device__ __forceinline__ void fetch(Place &p, u32 slot) const {
#if __CUDA_ARCH__ >= 900
        if (!leads()) return;
#endif
        if (p.tile < a.tiles) {
            u32 local = p.tile;
            if constexpr (!GATED) p.part = locate(p.tile, local);
            const u32 k = kind(p.part);
            if (ONE_FORMAT || k == 0) copy<F0>(p, local, slot);
            else if (k == 1) copy<F1 == F0 ? -1 : F1>(p, local, slot);
            else copy<F2 == F0 || F2 == F1 ? -1 : F2>(p, local, slot);
        }
        if (__CUDA_ARCH__ < 900) copies_commit();
    }
    // Waits until a slot is filled.
    __device__ __forceinline__ void wait(u32 slot, u32 phase) const {
#if __CUDA_ARCH__ >= 900
        bulk_wait(barriers + slot * 8, phase);
#else
        copies_wait<DEPTH - 1>();
        barrier();
#endif
    }
    // A barrier of the warps of the team.
    __device__ __forceinline__ void barrier() const {
        asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(WARPS * 32) : "memory");
    }
    // The units of a tile in a part. The sums of each warp go to `to`.
    template <int F>
    __device__ __forceinline__ void
    run(Place &ahead, u32 &slot, u32 &phase, const u8 *x, Lane &l, float *to) const {
        if constexpr (F >= 0) {
            constexpr u32 units = units_of<F>();
            float acc[2] = {0, 0};
#pragma unroll 1
            for (u32 unit = warp;; unit += WARPS) {
                const bool last = units <= WARPS || unit - warp + WARPS >= units;
                wait(slot, phase);
                if (unit < units)
                    multiply<F, S>(ring + slot * SLOT + warp * Traits<F>::SIZE, x + unit * (Traits<F>::UNIT * S::SIZE / 128), l,
                                   acc);
                if (last) {
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        acc[r] += __shfl_xor_sync(FULL, acc[r], 1);
                        acc[r] += __shfl_xor_sync(FULL, acc[r], 2);
                        if (l.t == 0) to[l.g + 8 * r] = acc[r];
                    }
                }
                // All have read the slot, and at the end of the part have left their sums.
                barrier();
                fetch(ahead, slot);
                if (++slot == DEPTH) slot = 0, phase ^= 1;
                if (last) break;
            }
        }
    }
    __device__ __forceinline__ void
    run_part(u32 part, Place &ahead, u32 &slot, u32 &phase, const u8 *x, Lane &l, float *to) const {
        const u32 k = kind(part);
        if (ONE_FORMAT || k == 0) run<F0>(ahead, slot, phase, x, l, to);
        else if (k == 1) run<F1 == F0 ? -1 : F1>(ahead, slot, phase, x, l, to);
        else run<F2 == F0 || F2 == F1 ? -1 : F2>(ahead, slot, phase, x, l, to);
    }
};

// Four columns of a row, zeros past its end.
__device__ __forceinline__ float4 read4(const float *row, u32 col) {
    float4 v = make_float4(0, 0, 0, 0);
    if (COLS % 4 == 0) {
        if (col < COLS) v = *(const float4 *)(row + col);
    } else {
        if (col < COLS) v.x = row[col];
        if (col + 1 < COLS) v.y = row[col + 1];
        if (col + 2 < COLS) v.z = row[col + 2];
        if (col + 3 < COLS) v.w = row[col + 3];
    }
    return v;
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
    float e = none ? 0.0f : top * (1.0f / (126.99f * 254.0f));
    // Sums with this number are whole, in its low bits.
    const float whole = 12582912.0f;
    u32 h[2], l[2];
    int sums[2];
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
        sums[j] = 254 * __dp4a((int)h[j], 0x01010101, 0) + __dp4a((int)l[j], 0x01010101, 0);
    }
    *(uint2 *)(set + (i * 4 + t) * 8) = make_uint2(h[0], h[1]);
    *(uint2 *)(set + 128 + (i * 4 + t) * 8) = make_uint2(l[0], l[1]);
    // What is no number stays none.
    if (bits >= 0x7f800000u) e = __int_as_float(0x7fc00000);
    if (t == 0) ((float *)(set + S::SCALES_AT))[i] = e;
    if constexpr (S::SIZE > S::INT16_AT) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            sums[j] += __shfl_xor_sync(mask, sums[j], 1);
            sums[j] += __shfl_xor_sync(mask, sums[j], 2);
        }
        if (t < 2) {
            const int own = t == 0 ? sums[0] : sums[1];
            if constexpr (S::FLOAT16_AT > S::INT16_AT) ((int *)(set + S::INT16_AT))[2 * i + t] = own;
            if constexpr (S::SIZE > S::FLOAT16_AT) ((float *)(set + S::FLOAT16_AT))[2 * i + t] = e * (float)own;
        }
        sums[0] += sums[1];
    } else {
        sums[0] += sums[1];
        sums[0] += __shfl_xor_sync(mask, sums[0], 1);
        sums[0] += __shfl_xor_sync(mask, sums[0], 2);
    }
    if (t == 2) {
        if constexpr (S::FLOAT32_AT > S::INT32_AT) ((int *)(set + S::INT32_AT))[i] = sums[0];
        if constexpr (S::INT16_AT > S::FLOAT32_AT) ((float *)(set + S::FLOAT32_AT))[i] = e * (float)sums[0];
    }
}

// The largest value of the block.
__device__ __forceinline__ float largest_of_block(float v, float *scratch) {
    v = warp_max(v);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_max(threadIdx.x % 32 < TEAMS * WARPS ? scratch[threadIdx.x % 32] : 0);
}

// The first column of a chunk of 8, and of the second half of it 16 further.
__device__ __forceinline__ u32 chunk_column(u32 c) { return c / 4 * 32 + c % 4 * 4; }

// Reads activations, times the norm's weight, and leaves them in `x`, set after set: BATCH chunks of 8 columns at a time.
// Returns the thread's sum of their squares.
template <typename S>
__device__ __forceinline__ float place_all(const MatvecArgs &a, u8 *x, float scale, const float4 (&norm)[2]) {
    float squares = 0;
#pragma unroll 1
    for (u32 first = threadIdx.x; first < CHUNKS; first += BATCH * THREADS) {
        float4 v[BATCH][2], w[BATCH][2];
#pragma unroll
        for (int n = 0; n < BATCH; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const u32 col = chunk_column(first + n * THREADS) + 16 * j;
                v[n][j] = read4(a.x, col);
                if (NORM == WEIGHTED) w[n][j] = ONE_CHUNK ? norm[j] : read4(a.norm, col);
            }
#pragma unroll
        for (int n = 0; n < BATCH; n++) {
            const u32 c = first + n * THREADS;
            if (c >= CHUNKS) continue;
            float values[2][4];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float4 u = v[n][j];
                if (NORM != NONE) squares = fmaf(u.x, u.x, fmaf(u.y, u.y, fmaf(u.z, u.z, fmaf(u.w, u.w, squares))));
                if (NORM == WEIGHTED) u.x *= w[n][j].x, u.y *= w[n][j].y, u.z *= w[n][j].z, u.w *= w[n][j].w;
                values[j][0] = u.x * scale, values[j][1] = u.y * scale;
                values[j][2] = u.z * scale, values[j][3] = u.w * scale;
            }
            place<S>(x, c, values);
        }
        if (ONE_CHUNK) break;
    }
    return squares;
}

// Prepares the activations. Returns what their products must be multiplied by, but for the norm's factor; the squares that
// this is made of are left in `scratch`, which has SQUARES + 32 floats.
template <typename S>
__device__ __forceinline__ float prepare(const MatvecArgs &a, u8 *x, float *scratch, const float4 (&norm)[2]) {
    float scale = 1;
    if constexpr (S::IS_FLOAT) {
        float top = 0;
        for (u32 col = threadIdx.x; col < COLS; col += THREADS)
            top = fmaxf(top, fabsf(NORM == WEIGHTED ? a.x[col] * a.norm[col] : a.x[col]));
        scale = half_range_scale(largest_of_block(top, scratch + SQUARES));
    }
    float squares = place_all<S>(a, x, scale, norm);
    if (NORM != NONE && FEW_CHUNKS) {
        if (threadIdx.x < 128) scratch[threadIdx.x] = squares;
    } else if (NORM != NONE) {
        squares = warp_sum(squares);
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = squares;
    }
    // With this barrier all threads see the barriers of the ring too.
    __syncthreads();
    return 1.0f / scale;
}

// The norm's factor, from the squares that `prepare` left. Of a whole warp.
__device__ __forceinline__ float norm_factor(const MatvecArgs &a, const float *scratch) {
    const u32 lane = threadIdx.x % 32;
    float squares;
    if (FEW_CHUNKS) {
        const float4 four = ((const float4 *)scratch)[lane];
        squares = four.x + four.y + (four.z + four.w);
    } else {
        squares = lane < TEAMS * WARPS ? scratch[lane] : 0;
    }
    return rsqrtf(warp_sum(squares) * (1.0f / COLS) + a.epsilon);
}

// The thread's weights of the norm, or what brings all of them nearer.
__device__ __forceinline__ void read_norm(const MatvecArgs &a, float4 (&norm)[2]) {
    if (NORM != WEIGHTED) return;
    if (ONE_CHUNK) {
        u32 bits = 0;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            norm[j] = read4(a.norm, chunk_column(threadIdx.x) + 16 * j);
            bits ^= __float_as_uint(norm[j].x) ^ __float_as_uint(norm[j].y) ^ __float_as_uint(norm[j].z) ^ __float_as_uint(norm[j].w);
        }
        // So that the compiler leaves the loads where they are: there are less than 2^30 tiles.
        asm volatile("prefetch.global.L2 [%0];" ::"l"(a.norm + (bits & a.tiles >> 30)));
    } else {
        for (u32 i = threadIdx.x * 32; i < COLS; i += THREADS * 32) asm volatile("prefetch.global.L2 [%0];" ::"l"(a.norm + i));
    }
}

// The largest result of the block. The host compares those of all blocks: sooner than they could tell each other. `best` is the
// rank of a lane's largest result, 0 where it has none, and `value` that result.
__device__ __forceinline__ void find_largest(const MatvecArgs &a, u64 best, float value, int team, int warp) {
    __shared__ u64 bests[TEAMS];
    __shared__ float values[TEAMS];
    if (warp == 0) {
        const u64 top = best_of_warp(best);
        if (top == 0 ? threadIdx.x % 32 == 0 : best == top) bests[team] = top, values[team] = value;
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    best = bests[0], value = values[0];
    for (int i = 1; i < TEAMS; i++)
        if (bests[i] > best) best = bests[i], value = values[i];
    a.largest[blockIdx.x] = make_uint2(index_of(best), __float_as_uint(value));
}

// `whole` has the headers of the weights.
template <int F0, int F1, int F2, bool GATED>
__device__ __forceinline__ void matvec(const MatvecArgs &a, const MatvecArgs &whole) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ __align__(8) u64 barriers[TEAMS * DEPTH];
    typedef Matvec<F0, F1, F2, GATED> M;
    typedef typename M::S S;
    const M m(a, shared, shared_address(barriers));
    u8 *x = shared + TEAMS * DEPTH * M::SLOT;
    float *scratch = (float *)(x + PADDED / 128 * S::SIZE);
    // [2][1 or 2 parts][warps][16] of each team
    float *added = scratch + SQUARES + 32 + m.team * (4 * WARPS * 16);

    let_next_start();
    Place ahead = {m.first_tile(), 0, 0};
#if __CUDA_ARCH__ >= 900
    if (m.leads()) {
        for (int i = 0; i < DEPTH; i++) barrier_init(m.barriers + i * 8);
        barriers_ready();
    }
#endif
#pragma unroll 1
    for (int i = 0; i < DEPTH; i++) m.fetch(ahead, i);
    float4 norm[2];
    read_norm(a, norm);
    after_previous();
    // What is added to results is read long before: nothing waits for it but the sum.
    float bias = 0, residual = 0;
    auto read_added = [&](u32 tile) {
        if (GATED || m.warp != 0 || tile >= a.tiles) return;
        u32 local;
        const u32 part = m.locate(tile, local), row = local * 16 + threadIdx.x % 16;
        const Part &p = a.parts[part];
        bias = p.bias && row < p.rows ? p.bias[row] : 0;
        residual = a.residual && part == 0 && row < p.rows ? a.residual[row] : 0;
    };
    read_added(m.first_tile());
    float factor = prepare<S>(a, x, scratch, norm);
    // Now, while others begin to multiply: after the products nothing would go on beside it.
    if (NORM != NONE && m.warp == 0) factor *= norm_factor(a, scratch);

    u32 slot = 0, phase = 0, flip = 0;
    u64 best = 0;
    float best_value = 0;
    Lane l;
#pragma unroll 1
    for (u32 tile = m.first_tile(); tile < a.tiles; tile += gridDim.x * TEAMS, flip ^= 1) {
        u32 local = tile, part = 0;
        if constexpr (!GATED) part = m.locate(tile, local);
        const Part &p = a.parts[part];
        const u32 row = local * 16 + l.lane % 16;
        const bool sums = m.warp == 0, writes = sums && l.lane < 16 && row < p.rows;
        float *to = added + flip * (2 * WARPS * 16);
#pragma unroll 1
        for (u32 i = 0; i <= GATED; i++)
            m.run_part(GATED ? i : part, ahead, slot, phase, x, l, to + (i * WARPS + m.warp) * 16);
        if (sums) {
            // Half of the warps' sums in each half of the lanes.
            float v[2] = {0, 0};
#pragma unroll
            for (int i = 0; i <= GATED; i++) {
#pragma unroll
                for (int w = 0; w < WARPS; w += 2)
                    if (w + 1 < WARPS || l.lane < 16) v[i] += to[(i * WARPS + w) * 16 + l.lane];
                v[i] += __shfl_xor_sync(FULL, v[i], 16);
                v[i] *= factor;
                if constexpr (S::IS_FLOAT) v[i] /= weight_scale(whole.parts[part + i].weight);
            }
            const float result = GATED ? activate(ACTIVATION, v[0]) * v[1] : v[0] + (bias + residual);
            if (writes) p.out[row] = result;
            if (LARGEST && writes && rank_of(result, row) > best) best = rank_of(result, row), best_value = result;
            read_added(tile + gridDim.x * TEAMS);
        }
    }
    if constexpr (LARGEST) find_largest(a, best, best_value, m.team, m.warp);
}

#if CHOSEN
// The product number `blockIdx.y` as one with the matrix that was chosen for it; whether that is one of those that there are.
template <int F> __device__ __forceinline__ void choose(Part &p, u32 matrix) {
    if constexpr (F >= 0) {
        p.weight += (u64)matrix * p.tiles * units_of<F>() * Traits<F>::SIZE;
        if (p.bias) p.bias += (u64)matrix * p.rows;
        p.out += (u64)blockIdx.y * p.rows;
    }
}
template <int F0, int F1, int F2> __device__ __forceinline__ bool choose_all(MatvecArgs &a) {
    const u32 matrix = (u32)a.chosen[blockIdx.y];
    const bool exists = matrix < a.matrices;
    a.x += (u64)(blockIdx.y / a.products_per_row) * COLS;
    choose<F0>(a.parts[0], exists ? matrix : 0);
    choose<F1>(a.parts[1], exists ? matrix : 0);
    choose<F2>(a.parts[2], exists ? matrix : 0);
    if (!exists)
        for (int part = 0; part < 3; part++)
            for (u32 i = blockIdx.x * THREADS + threadIdx.x; a.parts[part].out && i < a.parts[part].rows; i += gridDim.x * THREADS)
                a.parts[part].out[i] = __int_as_float(0x7fc00000);
    return exists;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, THREADS <= 512 ? 2 : 1) NAME(const __grid_constant__ MatvecArgs a) {
#if CHOSEN
    after_previous();
    MatvecArgs own = a;
    if (choose_all<FORMATS>(own)) matvec<FORMATS, GATED_PAIR>(own, a);
#else
    matvec<FORMATS, GATED_PAIR>(a, a);
#endif
}
