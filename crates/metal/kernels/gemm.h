// A tile of a product on the matrix units: GEMM_ROWS outputs for GEMM_TOKENS tokens by a threadgroup of four SIMD-groups, each
// 32 by 16 of it. Per step, every thread decodes one unit of sixteen weights and loads eight activations into
// threadgroup memory, from which the SIMD-groups multiply 8x8 blocks. A weight is decoded once per 32 tokens instead of
// once per token.
//
// The order of the terms of a sum is free, so a step takes two *units* of every row, whatever elements these are (see
// formats.h), and the activations follow the units. No format needs a step that is as long as its blocks.
//
// Decoded weights are kept as halves where the format's range allows it (8 KB of threadgroup memory instead of 12, so
// that one more threadgroup fits a core); activations and sums stay floats.
#include <metal_simdgroup_matrix>

template <bool WIDE> struct WeightTile { typedef half Type; typedef half4 Type4; };
template <> struct WeightTile<true> { typedef float Type; typedef float4 Type4; };

// Computes a tile and leaves it in `scratch`, GEMM_TOKENS rows of GEMM_ROWS floats, for all threads to read. `in_row` is the weight
// row of this thread, the tile's row thread_index / 2, and `in_token` its activations, of the tile's token thread_index / 4; where a
// tile is cut, any row will do. Tiles in `scratch` (the host computes its size) are of 8x8 blocks, each contiguous so that loading
// a block touches every bank once; afterwards the results are there.
template <typename F>
inline void gemm_tile(device const uchar* in_row,
                      device const float* in_token,
                      int cols,
                      threadgroup char* scratch,
                      ushort thread_index,
                      ushort simd) {
    typedef typename WeightTile<F::WIDE_RANGE>::Type W;
    typedef typename WeightTile<F::WIDE_RANGE>::Type4 W4;
    threadgroup W* weights = (threadgroup W*)scratch;
    threadgroup float* inputs = (threadgroup float*)(weights + GEMM_ROWS * GEMM_STEP);
    const int units = (cols + 15) / 16;

    // This thread's part of a step: unit `part` of its row, and eight elements of its token.
    const short row = thread_index / 2, part = thread_index & 1, token = thread_index / 4, run = thread_index & 3;
    threadgroup W* to_weights = weights + ((row / 8) * 4 + part * 2) * 64 + (row & 7) * 8;
    threadgroup float* to_inputs = inputs + ((token / 8) * 4 + run) * 64 + (token & 7) * 8;

    // The SIMD-group's quarter: four blocks of weight rows, two of tokens.
    threadgroup const W* my_weights = weights + (simd & 1) * 4 * 4 * 64;
    threadgroup const float* my_inputs = inputs + (simd >> 1) * 2 * 4 * 64;
    simdgroup_float8x8 acc[2][4];
    UNROLL for (short i = 0; i < 2; i++) {
        UNROLL for (short j = 0; j < 4; j++) acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }

    for (int step = 0; step < units; step += 2) {
        // Rows of blocks have an even number of units. Of other rows the last step may have a unit too many: all of it is past
        // the row, so that nothing is loaded, and it counts as zeros.
        Unit u;
        F::load(in_row, step + part, cols, u);
        const UnitValues decoded = values_of(u);
        const int offset = F::offset(step + (run >> 1)) + (run & 1) * F::GAP;
        float4 in[2];
        for (short i = 0; i < 2; i++) {
            in[i] = F::PARTIAL ? load4_partial(in_token + offset + 4 * i, cols - offset - 4 * i)
                               : load4(in_token + offset + 4 * i);
        }
        // The loads above overlap with the products of the step before; now its tiles may be overwritten.
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL for (short i = 0; i < 4; i++) {
            *(threadgroup W4*)(to_weights + (i >> 1) * 64 + (i & 1) * 4) = W4(decoded.v[i]);
        }
        UNROLL for (short i = 0; i < 2; i++) *(threadgroup float4*)(to_inputs + i * 4) = in[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);

        UNROLL for (short k = 0; k < GEMM_STEP / 8; k++) {
            simdgroup_matrix<W, 8, 8> a[4];
            simdgroup_float8x8 b[2];
            // Weights lie row by row, as they were decoded, and are wanted with the row as the column.
            UNROLL for (short j = 0; j < 4; j++) simdgroup_load(a[j], my_weights + (j * 4 + k) * 64, 8, ulong2(0, 0), true);
            UNROLL for (short i = 0; i < 2; i++) simdgroup_load(b[i], my_inputs + (i * 4 + k) * 64, 8);
            UNROLL for (short i = 0; i < 2; i++) {
                UNROLL for (short j = 0; j < 4; j++) simdgroup_multiply_accumulate(acc[i][j], b[i], a[j], acc[i][j]);
            }
        }
    }

    // Results go through threadgroup memory: edges of the matrix are cut there, and rows are written as whole lines.
    threadgroup_barrier(mem_flags::mem_threadgroup);
    threadgroup float* results = (threadgroup float*)scratch;
    UNROLL for (short i = 0; i < 2; i++) {
        UNROLL for (short j = 0; j < 4; j++) {
            threadgroup float* to = results + ((simd >> 1) * 16 + i * 8) * GEMM_ROWS + (simd & 1) * 32 + j * 8;
            simdgroup_store(acc[i][j], to, GEMM_ROWS);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
