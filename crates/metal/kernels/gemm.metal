// Products of weight matrices with many activation rows, on the matrix units:
//     y[t, o] = sum_i weight[o, i] * x[t, i]
//
// A threadgroup of four SIMD-groups computes a tile of 64 outputs for 32 tokens, each SIMD-group 32 by 16 of it. Per
// step, every thread decodes one unit of sixteen weights and loads eight activations into threadgroup memory, from
// which the SIMD-groups multiply 8x8 blocks. A weight is decoded once per 32 tokens instead of once per token.
//
// The order of the terms of a sum is free, so a step takes two *units* of every row, whatever elements these are (see
// formats.h), and the activations follow the units. No format needs a step that is as long as its blocks.
//
// Decoded weights are kept as halves where the format's range allows it (8 KB of threadgroup memory instead of 12, so
// that one more threadgroup fits a core); activations and sums stay floats.
#include <metal_simdgroup_matrix>

template <bool WIDE> struct WeightTile { typedef half Type; typedef half4 Type4; };
template <> struct WeightTile<true> { typedef float Type; typedef float4 Type4; };

// Threadgroup memory (the host computes its size): tiles of 8x8 blocks, each contiguous so that
// loading a block touches every bank once; afterwards the results.
template <typename F>
kernel void gemm(device const uchar* w [[buffer(0)]],
                 device const float* x [[buffer(1)]],
                 device float* y [[buffer(2)]],
                 constant GemmArgs& args [[buffer(3)]],
                 device const float* bias [[buffer(4)]],
                 threadgroup char* scratch [[threadgroup(0)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 ushort thread_index [[thread_index_in_threadgroup]],
                 ushort simd [[simdgroup_index_in_threadgroup]]) {
    typedef typename WeightTile<F::WIDE_RANGE>::Type W;
    typedef typename WeightTile<F::WIDE_RANGE>::Type4 W4;
    threadgroup W* weights = (threadgroup W*)scratch;
    threadgroup float* inputs = (threadgroup float*)(weights + GEMM_ROWS * GEMM_STEP);

    // Neighbouring threadgroups share the weights and differ in the tokens, so that the weights come from the cache.
    const int first_token = int(group.x) * GEMM_TOKENS, first_row = int(group.y) * GEMM_ROWS;
    const int units = (args.cols + 15) / 16;

    // This thread's part of a step: unit `part` of one row, and eight elements of one token.
    const short row = thread_index / 2, part = thread_index & 1;
    device const uchar* in_row = w + ulong(min(first_row + row, args.rows - 1)) * args.row_bytes;
    const short token = thread_index / 4, run = thread_index & 3;
    device const float* in_token = x + ulong(min(first_token + token, args.tokens - 1)) * args.cols;
    threadgroup W* to_weights = weights + ((row / 8) * 4 + part * 2) * 64 + (row & 7) * 8;
    threadgroup float* to_inputs = inputs + ((token / 8) * 4 + run) * 64 + (token & 7) * 8;

    // The SIMD-group's quarter: four blocks of weight rows, two of tokens.
    threadgroup const W* my_weights = weights + (simd & 1) * 4 * 4 * 64;
    threadgroup const float* my_inputs = inputs + (simd >> 1) * 2 * 4 * 64;
    simdgroup_float8x8 acc[2][4];
    for (short i = 0; i < 2; i++) {
        for (short j = 0; j < 4; j++) acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }

    for (int step = 0; step < units; step += 2) {
        UnitValues decoded;
        for (short i = 0; i < 4; i++) decoded.v[i] = 0.0f;
        if (step + part < units) {
            Unit u;
            F::load(in_row, step + part, args.cols, u);
            decoded = values_of(u);
        }
        float4 in[2] = {float4(0.0f), float4(0.0f)};
        const int unit = step + (run >> 1);
        if (unit < units) {
            const int offset = F::offset(unit) + (run & 1) * F::GAP;
            for (short i = 0; i < 2; i++) {
                in[i] = F::PARTIAL ? load4_partial(in_token + offset + 4 * i, args.cols - offset - 4 * i)
                                   : load4(in_token + offset + 4 * i);
            }
        }
        // The loads above overlap with the products of the step before; now its tiles may be overwritten.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (short i = 0; i < 4; i++) {
            *(threadgroup W4*)(to_weights + (i >> 1) * 64 + (i & 1) * 4) = W4(decoded.v[i]);
        }
        for (short i = 0; i < 2; i++) *(threadgroup float4*)(to_inputs + i * 4) = in[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);

        for (short k = 0; k < GEMM_STEP / 8; k++) {
            simdgroup_matrix<W, 8, 8> a[4];
            simdgroup_float8x8 b[2];
            // Weights lie row by row, as they were decoded, and are wanted with the row as the column.
            for (short j = 0; j < 4; j++) simdgroup_load(a[j], my_weights + (j * 4 + k) * 64, 8, ulong2(0, 0), true);
            for (short i = 0; i < 2; i++) simdgroup_load(b[i], my_inputs + (i * 4 + k) * 64, 8);
            for (short i = 0; i < 2; i++) {
                for (short j = 0; j < 4; j++) simdgroup_multiply_accumulate(acc[i][j], b[i], a[j], acc[i][j]);
            }
        }
    }

    // Results go through threadgroup memory: edges of the matrix are cut there, and rows are written as whole lines.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* results = (threadgroup float*)scratch;
    for (short i = 0; i < 2; i++) {
        for (short j = 0; j < 4; j++) {
            threadgroup float* to = results + ((simd >> 1) * 16 + i * 8) * GEMM_ROWS + (simd & 1) * 32 + j * 8;
            simdgroup_store(acc[i][j], to, GEMM_ROWS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const int out = first_row + (thread_index & (GEMM_ROWS - 1));
    if (out >= args.rows) return;
    const float added = args.has_bias != 0 ? bias[out] : 0.0f;
    for (short t = thread_index / GEMM_ROWS; t < GEMM_TOKENS && first_token + t < args.tokens; t += GEMM_THREADS / GEMM_ROWS) {
        ulong at = ulong(first_token + t) * args.y_stride + out;
        y[at] = results[t * GEMM_ROWS + (thread_index & (GEMM_ROWS - 1))] + added;
    }
}

#define INSTANTIATE(F) template [[host_name("gemm_" #F)]] kernel decltype(gemm<F>) gemm<F>;
FOR_EACH_FORMAT(INSTANTIATE)
