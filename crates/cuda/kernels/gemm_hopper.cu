// Several rows of activations times up to three matrices of one format, on GPUs of compute capability 9.0; or times two, a
// gate and what it lets through, which make one result.
//
// Every warp of two warpgroups has a tile of 16 rows of weights: it decodes them in registers to the operand of a
// warpgroup's product, while the product before runs. Activations come from shared memory, where bulk copies bring panels
// of 64 columns as `panels.cu` wrote them; further bulk copies bring records of weights. So weights are read and decoded
// once for each TOKENS rows of activations.
//
// Blocks stay: whole results, of 128 rows and TOKENS rows of activations, are dealt out in rounds; the columns of those
// that would make no whole round are shared out evenly over all blocks. The last block that adds to a result sums up what
// all have found, in their order.
#include "hopper.cuh"
#include "tiled.cuh"

#ifndef FORMAT
#define FORMAT Q4_K
#define TOKENS 256 // of a result
#define WEIGHT_STAGES 4
#define PANEL_STAGES 4
#define BLOCKS 1 // of a multiprocessor
#define GATED 0
#endif

struct Part {
    const u8 *weight; // tiled
    const float *bias, *residual; // or null; [tokens, rows]
    float *out;       // [tokens, rows]
    u32 tiles, rows, blocks; // blocks of rows
};
struct GemmArgs {
    Part parts[3];
    const u8 *panels;     // [panels, padded_tokens, 64 halves]
    const float *unscale; // of each row of activations
    float *partial;       // [grid, 2, TOKENS * 128]
    u32 *done;            // [shared-out results], zero between launches
    u32 tokens, padded_tokens, token_blocks;
    u32 units;
    u32 whole, shared_out; // results
    u32 sharers;           // blocks that have a share
    int activation;        // of a gate
};

typedef Record<FORMAT> R;
enum {
    CONSUMERS = 256,
    // Where results are few, two blocks share a multiprocessor, so that one decodes while the other waits.
    THREADS = CONSUMERS + (BLOCKS == 2 ? 32 : 128),
    TILES = CONSUMERS / 32,
    // Tiles of a result: the first warpgroup has those of the gate, the second the same of the other matrix.
    RESULT_TILES = GATED ? TILES / 2 : TILES,
    PANEL = TOKENS * 128,
    PANELS = R::UNIT / 64,
    // A matrix of single precision is two of halves.
    PARTS_OF_VALUES = R::BITS == 32 ? 2 : 1,
    // A warpgroup takes as long for 8 columns as for 64, so few are left to the products of single warps.
    BY_WARPS = TOKENS <= 32,
    WIDTH = TOKENS >= 128 && TOKENS % 128 == 0 ? 128 : TOKENS >= 64 ? 64 : TOKENS, // of a product
    SUMS = TOKENS / 2, // of each thread
    // A warp alone takes the panels of a unit at once, so that it has much to do between two barriers.
    STAGE_PANELS = BY_WARPS ? PANELS : 1,
    STAGE = STAGE_PANELS * PANEL,
    // Units of panels that are under way, and by which weights lag behind their ring.
    LAG_ = PANEL_STAGES * STAGE_PANELS < PANELS ? 1 : PANEL_STAGES * STAGE_PANELS / PANELS,
    LAG = LAG_ < WEIGHT_STAGES ? LAG_ : WEIGHT_STAGES - 1,
    // Floats between tokens where a warp turns its results around.
    TURN = 20,
    // Tokens that are turned around at a time: those of a gate are seen by all.
    TURNED = !GATED ? 8 : TOKENS <= 16 ? TOKENS : TOKENS <= 64 ? 16 : 32,
    IS_SCALED = R::SCALES == K_SCALES || R::SCALES == BYTE_SCALES || R::SCALES == K2_SCALES,
    // The registers that a thread of each kind needs where results are many.
    MANY = TOKENS > 128
};

// A run of units of one result.
struct Segment {
    u32 result, first, last; // units
    u32 share;               // number of the shared-out result, or none
};
#define NO_SHARE 0xffffffffu

// The runs of a block, in order.
struct Runs {
    const GemmArgs &a;
    u32 next, at, end;

    __device__ __forceinline__ static u32 start(const GemmArgs &a, u32 block) {
        return a.shared_out * a.units * block / a.sharers;
    }
    // The block that has an item.
    __device__ __forceinline__ static u32 owner(const GemmArgs &a, u32 item) {
        return ((item + 1) * a.sharers - 1) / (a.shared_out * a.units);
    }
    __device__ __forceinline__ explicit Runs(const GemmArgs &a) : a(a), next(blockIdx.x), at(0), end(0) {
        if (blockIdx.x < a.sharers) at = start(a, blockIdx.x), end = start(a, blockIdx.x + 1);
    }
    __device__ __forceinline__ bool take(Segment &s) {
        if (next < a.whole) {
            s.result = next, s.first = 0, s.last = a.units, s.share = NO_SHARE;
            next += gridDim.x;
            return true;
        }
        if (at == end) return false;
        s.share = at / a.units;
        s.result = a.whole + s.share;
        s.first = at - s.share * a.units;
        s.last = min(a.units, s.first + (end - at));
        at += s.last - s.first;
        if (s.last - s.first == a.units) s.share = NO_SHARE;
        return true;
    }
};

// The matrix of a result, and where in it.
struct Place {
    u32 part, block, token0;
    __device__ __forceinline__ Place(const GemmArgs &a, u32 result) : part(0), block(result / a.token_blocks) {
        token0 = result % a.token_blocks * TOKENS;
        while (part < 2 && block >= a.parts[part].blocks) block -= a.parts[part++].blocks;
    }
};

// The halves of 64 columns, four steps of 16: `low` those that are left of single precision.
template <int PANEL_NUMBER, int LOW>
__device__ __forceinline__ void
decode(const u8 *rec, const Scales<FORMAT> &scales, float scale, int lane, u32 (&out)[4][4]) {
    const int g = lane / 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int i = PANEL_NUMBER * 2 + half;
        u32 w[2][4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if constexpr (LOW) low_halves(rec, lane, i, r, w[r]);
            else halves_of_row<FORMAT>(rec, lane, i, r, w[r]);
            if constexpr (!R::IS_FLOAT) {
#pragma unroll
                for (int j = 0; j < 32 / R::SPAN; j++) {
                    float s, m;
                    scales.at(rec, g, 2 * i + j, r, s, m);
                    if constexpr (!IS_SCALED) s *= scale, m *= scale;
                    u32 s2 = to_half2(s, s), m2 = R::HAS_MIN ? to_half2(m, m) : 0;
#pragma unroll
                    for (int p = R::SPAN / 8 * j; p < R::SPAN / 8 * (j + 1); p++)
                        w[r][p] = R::HAS_MIN ? half2_fma(w[r][p], s2, m2) : half2_mul(w[r][p], s2);
                }
            }
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            out[2 * half + k][0] = w[0][2 * k], out[2 * half + k][1] = w[1][2 * k];
            out[2 * half + k][2] = w[0][2 * k + 1], out[2 * half + k][3] = w[1][2 * k + 1];
        }
    }
}

// Where a ring of stages stands.
struct Ring {
    u32 stage, parity;
    __device__ __forceinline__ Ring() : stage(0), parity(0) {}
    template <int STAGES> __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

struct Barriers {
    u64 weights_full[WEIGHT_STAGES], weights_empty[WEIGHT_STAGES];
    u64 panels_full[PANEL_STAGES], panels_empty[PANEL_STAGES];
};

// A warp that brings records, unit by unit: a lane for each tile.
struct WeightBringer {
    const GemmArgs &a;
    u8 *stages;
    Barriers &b;
    Runs runs;
    Segment s;
    const u8 *from;
    u32 left; // units of the segment
    Ring ring;
    bool more;
    const u32 lane;

    __device__ __forceinline__ WeightBringer(const GemmArgs &a, u8 *stages, Barriers &b)
        : a(a), stages(stages), b(b), runs(a), lane(threadIdx.x % 32) {
        take();
    }
    __device__ __forceinline__ void take() {
        more = runs.take(s);
        if (!more) return;
        left = s.last - s.first;
        Place place(a, s.result);
        const Part &part = a.parts[GATED ? lane / RESULT_TILES % 2 : place.part];
        const u32 tile = place.block * RESULT_TILES + lane % RESULT_TILES;
        from = record<FORMAT>(part.weight, a.units, min(tile, part.tiles - 1), s.first);
    }
    __device__ __forceinline__ void next() {
        barrier_wait(&b.weights_empty[ring.stage], ring.parity ^ 1);
        if (lane == 0) barrier_expect(&b.weights_full[ring.stage], TILES * R::SIZE);
        __syncwarp();
        if (lane < TILES)
            bulk_copy(stages + (ring.stage * TILES + lane) * R::SIZE, from, R::SIZE, &b.weights_full[ring.stage]);
        from += R::SIZE;
        ring.advance<WEIGHT_STAGES>();
        if (--left == 0) take();
    }
};

// A warp that brings the panels of a unit.
struct PanelBringer {
    const GemmArgs &a;
    u8 *stages;
    Barriers &b;
    Ring ring;

    __device__ __forceinline__ PanelBringer(const GemmArgs &a, u8 *stages, Barriers &b) : a(a), stages(stages), b(b) {}
    __device__ __forceinline__ void bring(u32 unit, u32 token0) {
        const u32 lane = threadIdx.x % 32;
        const u64 stride = (u64)a.padded_tokens * 128;
        const u8 *from = a.panels + (u64)token0 * 128 + (u64)(unit * PANELS + (STAGE_PANELS > 1 ? lane : 0)) * stride;
#pragma unroll
        for (u32 p = 0; p < PANELS; p += STAGE_PANELS) {
            barrier_wait(&b.panels_empty[ring.stage], ring.parity ^ 1);
            if (lane == 0) barrier_expect(&b.panels_full[ring.stage], STAGE);
            __syncwarp();
            if (lane < STAGE_PANELS)
                bulk_copy(stages + ring.stage * STAGE + lane * PANEL, from, PANEL, &b.panels_full[ring.stage]);
            from += stride;
            ring.advance<PANEL_STAGES>();
        }
    }
};

// One warp brings all: weights are there before anything ran, and come as units end.
__device__ __forceinline__ void bring_all(const GemmArgs &a, u8 *weights, u8 *panels, Barriers &b) {
    WeightBringer bringer(a, weights, b);
    PanelBringer panel_bringer(a, panels, b);
    for (int i = 0; i < WEIGHT_STAGES && bringer.more; i++) bringer.next();
    after_previous();
    Runs runs(a);
    Segment s;
    u32 units = 0;
    while (runs.take(s)) {
        Place place(a, s.result);
        for (u32 unit = s.first; unit < s.last; unit++, units++) {
            panel_bringer.bring(unit, place.token0);
            if (units >= LAG && bringer.more) bringer.next();
        }
    }
}

// Two warps do.
__device__ __forceinline__ void bring_weights(const GemmArgs &a, u8 *weights, Barriers &b) {
    WeightBringer bringer(a, weights, b);
    while (bringer.more) bringer.next();
}
__device__ __forceinline__ void bring_panels(const GemmArgs &a, u8 *panels, Barriers &b) {
    PanelBringer bringer(a, panels, b);
    Runs runs(a);
    Segment s;
    while (runs.take(s)) {
        Place place(a, s.result);
        for (u32 unit = s.first; unit < s.last; unit++) bringer.bring(unit, place.token0);
    }
}

struct Consumer {
    const GemmArgs &a;
    Barriers &b;
    const u8 *weights, *panels;
    const int warp, lane;
    Ring weight_ring, panel_ring;
    float sums[SUMS];
    u32 operand[2][4][4];

    __device__ __forceinline__ Consumer(const GemmArgs &a, Barriers &b, const u8 *weights, const u8 *panels)
        : a(a), b(b), weights(weights), panels(panels), warp(threadIdx.x / 32), lane(threadIdx.x % 32) {}

    // What was decoded times panel `p` of the stage, by this warp.
    __device__ __forceinline__ void multiply_alone(u32 (&operand)[4][4], int p) {
        const u8 *panel = panels + panel_ring.stage * STAGE + p * PANEL + lane % 8 * 128;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
            float c[4];
#pragma unroll
            for (int i = 0; i < 4; i++) c[i] = sums[n * 4 + i];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                u32 m[4];
                load_matrices(m, panel + n * 1024 + ((half * 4 + lane / 8) ^ (lane % 8)) * 16);
                const u32 *first = operand[2 * half], *second = operand[2 * half + 1];
                mma(c, first[0], first[1], first[2], first[3], m[0], m[1]);
                mma(c, second[0], second[1], second[2], second[3], m[2], m[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) sums[n * 4 + i] = c[i];
        }
    }
    // The same, by the warpgroup: it goes on while other work is done.
    __device__ __forceinline__ void multiply_together(u32 (&operand)[4][4]) {
        const u64 matrix = swizzled_matrix(shared_address(panels + panel_ring.stage * STAGE));
        products_fence();
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int n = 0; n < TOKENS / WIDTH; n++)
                Product<WIDTH>::add(sums + n * (WIDTH / 2), operand[k], matrix + k * 2 + n * (WIDTH * 128 / 16));
        products_commit();
    }
    __device__ __forceinline__ void let_record_go() {
        __syncwarp();
        if (lane == 0) barrier_arrive(&b.weights_empty[weight_ring.stage]);
    }
    __device__ __forceinline__ void let_go(u32 stage) {
        if (lane == 0) barrier_arrive(&b.panels_empty[stage]);
    }

    // The panels of a unit from number P on. What was decoded is multiplied, and the panel before is let go: `held`.
    template <int P> __device__ __forceinline__ void
    step(const u8 *rec, const Scales<FORMAT> &scales, float scale, u32 &held) {
        if constexpr (P < PANELS) {
            constexpr int first = P * PARTS_OF_VALUES % 2;
            decode<P, 0>(rec, scales, scale, lane, operand[first]);
            if constexpr (P == PANELS - 1 && PARTS_OF_VALUES == 1) let_record_go();
            barrier_wait(&b.panels_full[panel_ring.stage], panel_ring.parity);
            multiply_together(operand[first]);
            products_wait<1>();
            if (held != NO_SHARE) let_go(held);
            if constexpr (PARTS_OF_VALUES == 2) {
                decode<P, 1>(rec, scales, scale, lane, operand[1]);
                if constexpr (P == PANELS - 1) let_record_go();
                multiply_together(operand[1]);
                products_wait<1>();
            }
            held = panel_ring.stage;
            panel_ring.advance<PANEL_STAGES>();
            step<P + 1>(rec, scales, scale, held);
        }
    }
    // The same by this warp.
    template <int P> __device__ __forceinline__ void step_alone(const u8 *rec, const Scales<FORMAT> &scales, float scale) {
        if constexpr (P < PANELS) {
            decode<P, 0>(rec, scales, scale, lane, operand[0]);
            multiply_alone(operand[0], P);
            if constexpr (PARTS_OF_VALUES == 2) {
                decode<P, 1>(rec, scales, scale, lane, operand[0]);
                multiply_alone(operand[0], P);
            }
            step_alone<P + 1>(rec, scales, scale);
        }
    }

    __device__ __forceinline__ void run(const Segment &s, float scale) {
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] = 0;
        u32 held = NO_SHARE;
        for (u32 unit = s.first; unit < s.last; unit++) {
            barrier_wait(&b.weights_full[weight_ring.stage], weight_ring.parity);
            const u8 *rec = weights + (weight_ring.stage * TILES + warp) * R::SIZE;
            Scales<FORMAT> scales;
            scales.read(rec, lane / 4);
            if constexpr (IS_SCALED) {
#pragma unroll
                for (int r = 0; r < 2; r++) scales.d[r] *= scale, scales.dmin[r] *= scale;
            }
            if constexpr (BY_WARPS) {
                barrier_wait(&b.panels_full[panel_ring.stage], panel_ring.parity);
                step_alone<0>(rec, scales, scale);
                let_record_go();
                let_go(panel_ring.stage);
                panel_ring.advance<PANEL_STAGES>();
            } else {
                step<0>(rec, scales, scale, held);
            }
            weight_ring.advance<WEIGHT_STAGES>();
        }
        if constexpr (!BY_WARPS) {
            products_wait<0>();
            let_go(held);
        }
    }

    // Adds up what the blocks of a shared-out result found; false for all but the last of them.
    __device__ __forceinline__ bool gather(const Segment &s, u32 *arrived) {
        const u32 item = s.share * a.units, first = Runs::owner(a, item), last = Runs::owner(a, item + a.units - 1);
        // A block's first run goes to its first place, its last to its second.
        const u32 own = blockIdx.x == first && Runs::start(a, first) != item;
        float *to = a.partial + (u64)(blockIdx.x * 2 + own) * (TOKENS * 128) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < SUMS; i++) to[i * CONSUMERS] = sums[i];
        __threadfence();
        named_barrier(1, CONSUMERS);
        if (threadIdx.x == 0) *arrived = atomicAdd(a.done + s.share, 1);
        named_barrier(1, CONSUMERS);
        const bool is_last = *arrived == last - first;
        if (!is_last) return false;
        __threadfence();
        if (threadIdx.x == 0) a.done[s.share] = 0;
#pragma unroll
        for (int i = 0; i < SUMS; i++) sums[i] = 0;
        for (u32 block = first; block <= last; block++) {
            const u32 place = block == first && Runs::start(a, first) != item;
            const float *from = a.partial + (u64)(block * 2 + place) * (TOKENS * 128) + threadIdx.x;
#pragma unroll
            for (int i = 0; i < SUMS; i++) sums[i] += __ldcg(from + i * CONSUMERS);
        }
        return true;
    }

    // Turned around in shared memory, so that a lane writes four rows of a token.
    __device__ __forceinline__ void write(const Part &part, const Place &place, float unscale, float *turn) {
        const int g = lane / 4, t = lane % 4;
        const u32 row = (place.block * RESULT_TILES + warp) * 16 + 4 * t;
        const bool whole = part.rows % 4 == 0;
        float bias[4];
#pragma unroll
        for (int i = 0; i < 4; i++) bias[i] = part.bias && row + i < part.rows ? part.bias[row + i] : 0;
        turn += warp * 8 * TURN;
#pragma unroll
        for (int n = 0; n < TOKENS / 8; n++) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 4; i++) turn[(2 * t + i % 2) * TURN + g + i / 2 * 8] = sums[n * 4 + i];
            __syncwarp();
            const u32 token = place.token0 + n * 8 + g;
            if (token >= a.tokens || row >= part.rows) continue;
            const float4 v = *(const float4 *)(turn + g * TURN + 4 * t);
            const float factor = a.unscale[token] * unscale;
            const u64 at = (u64)token * part.rows + row;
            float y[4] = {fmaf(v.x, factor, bias[0]), fmaf(v.y, factor, bias[1]), fmaf(v.z, factor, bias[2]),
                          fmaf(v.w, factor, bias[3])};
            if (whole) {
                if (part.residual) {
                    const float4 r = *(const float4 *)(part.residual + at);
                    y[0] += r.x, y[1] += r.y, y[2] += r.z, y[3] += r.w;
                }
                *(float4 *)(part.out + at) = make_float4(y[0], y[1], y[2], y[3]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (row + i < part.rows) part.out[at + i] = part.residual ? y[i] + part.residual[at + i] : y[i];
            }
        }
    }

    // The same for a gate: the warpgroups show each other what they have, and take turns to write it.
    __device__ __forceinline__ void write_gated(const Place &place, float *turn) {
        const int g = lane / 4, t = lane % 4, group = warp / RESULT_TILES;
        const Part &gate = a.parts[0], &other = a.parts[1];
        const u32 row = (place.block * RESULT_TILES + warp % RESULT_TILES) * 16 + 4 * t;
        const float gate_unscale = 1.0f / weight_scale(gate.weight), unscale = 1.0f / weight_scale(other.weight);
        const bool whole = gate.rows % 4 == 0;
#pragma unroll
        for (int first = 0; first < TOKENS; first += TURNED) {
#pragma unroll
            for (int n = 0; n < TURNED / 8; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    turn[(warp * TURNED + n * 8 + 2 * t + i % 2) * TURN + g + i / 2 * 8] = sums[(first / 8 + n) * 4 + i];
            named_barrier(1, CONSUMERS);
#pragma unroll
            for (int n = 0; n < TURNED / 8; n++) {
                const u32 token = place.token0 + first + n * 8 + g;
                if (group != n % 2 || token >= a.tokens || row >= gate.rows) continue;
                const float *from = turn + (warp % RESULT_TILES * TURNED + n * 8 + g) * TURN + 4 * t;
                const float4 x = *(const float4 *)from, y = *(const float4 *)(from + RESULT_TILES * TURNED * TURN);
                const float factor = a.unscale[token] * gate_unscale, other_factor = a.unscale[token] * unscale;
                const float v[4] = {activate(a.activation, x.x * factor) * (y.x * other_factor),
                                    activate(a.activation, x.y * factor) * (y.y * other_factor),
                                    activate(a.activation, x.z * factor) * (y.z * other_factor),
                                    activate(a.activation, x.w * factor) * (y.w * other_factor)};
                float *to = gate.out + (u64)token * gate.rows + row;
                if (whole) {
                    *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
                } else {
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if (row + i < gate.rows) to[i] = v[i];
                }
            }
            // Before more is shown.
            named_barrier(1, CONSUMERS);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gemm_hopper(const __grid_constant__ GemmArgs a) {
    extern __shared__ u8 memory[];
    __shared__ Barriers barriers;
    __shared__ u32 arrived;
    __shared__ __align__(16) float turn[TILES * TURNED * TURN];
    u8 *panels = memory + (1024 - shared_address(memory) % 1024) % 1024;
    u8 *weights = panels + PANEL_STAGES * STAGE;
    let_next_start();
    if (threadIdx.x == 0) {
        for (int i = 0; i < WEIGHT_STAGES; i++) {
            barrier_init(&barriers.weights_full[i], 1);
            barrier_init(&barriers.weights_empty[i], CONSUMERS / 32);
        }
        for (int i = 0; i < PANEL_STAGES; i++) {
            barrier_init(&barriers.panels_full[i], 1);
            barrier_init(&barriers.panels_empty[i], CONSUMERS / 32);
        }
        barriers_visible();
    }
    __syncthreads();
    if (threadIdx.x >= CONSUMERS) {
        if constexpr (MANY) fewer_registers<40>();
        const u32 warp = (threadIdx.x - CONSUMERS) / 32;
        if constexpr (BLOCKS == 2) {
            bring_all(a, weights, panels, barriers);
        } else if (warp == 0) {
            bring_weights(a, weights, barriers);
        } else if (warp == 1) {
            after_previous();
            bring_panels(a, panels, barriers);
        }
    } else {
        if constexpr (MANY) more_registers<232>();
        after_previous();
        Consumer consumer(a, barriers, weights, panels);
        Runs runs(a);
        Segment s;
        while (runs.take(s)) {
            Place place(a, s.result);
            const Part &part = a.parts[GATED ? threadIdx.x / (CONSUMERS / 2) : place.part];
            const float scale = weight_scale(part.weight);
            consumer.run(s, scale);
            if (s.share != NO_SHARE && !consumer.gather(s, &arrived)) continue;
            if constexpr (GATED) consumer.write_gated(place, turn);
            else consumer.write(part, place, 1.0f / scale, turn);
        }
    }
}
