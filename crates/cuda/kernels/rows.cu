// Rows by index, decoded.
#include "decode.cuh"

struct RowsArgs {
    const u8 *table;
    const int *indices;
    float *out;
    u32 rows, cols; // of the table
};
template <int F> __device__ void get_rows(const RowsArgs &a) {
    after_previous();
    // What begins from here on finds what the launches before this one wrote, be it before it waits.
    let_next_start();
    u32 index = (u32)a.indices[blockIdx.y];
    // The host has checked it; this keeps a broken promise inside the table.
    index = index < a.rows ? index : 0;
    const u8 *row = a.table + index * row_bytes<F>(a.cols);
    float *out = a.out + (u64)blockIdx.y * a.cols;
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < a.cols; i += gridDim.x * blockDim.x) out[i] = element<F>(row, i);
}
#define ROWS(F)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) get_rows_##F(const __grid_constant__ RowsArgs a) { get_rows<F>(a); }
ROWS(F32) ROWS(F16) ROWS(BF16) ROWS(Q4_0) ROWS(Q4_1) ROWS(Q5_0) ROWS(Q5_1) ROWS(Q8_0) ROWS(Q2_K) ROWS(Q3_K) ROWS(Q4_K)
ROWS(Q5_K) ROWS(Q6_K) ROWS(Q8_K) ROWS(IQ4_NL) ROWS(IQ4_XS) ROWS(MXFP4)
