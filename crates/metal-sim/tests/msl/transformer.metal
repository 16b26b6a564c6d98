// The kernels of a transformer in small: the shapes of work that a backend has, not tuned ones.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// 32 weights: a scale and 4-bit values, the low nibbles first.
struct Block4 {
    half scale;
    uchar nibbles[16];
};
static_assert(sizeof(Block4) == 18, "the layout of the host");

struct MatVec {
    int columns;
    int rows;
};

// y = W x: each SIMD-group computes four rows.
kernel void matvec_4bit(device const Block4* weights [[buffer(0)]], device const float* x [[buffer(1)]],
                        device float* y [[buffer(2)]], constant MatVec& shape [[buffer(3)]],
                        uint group [[threadgroup_position_in_grid]], ushort simd [[simdgroup_index_in_threadgroup]],
                        ushort simds [[simdgroups_per_threadgroup]], ushort lane [[thread_index_in_simdgroup]]) {
    constexpr short rows = 4;
    const int first = (group * simds + simd) * rows;
    const int blocks = shape.columns / 32;
    float sums[rows] = {0.0f};
    // Two lanes share a block: one has the first 8 bytes, the other the last.
    const short part = lane & 1;
    for (int block = lane / 2; block < blocks; block += 16) {
        device const float* in = x + block * 32 + part * 8;
        float low[8], high[8];
        for (short i = 0; i < 8; i++) {
            low[i] = in[i];
            high[i] = in[i + 16];
        }
        for (short row = 0; row < rows && first + row < shape.rows; row++) {
            device const Block4& b = weights[(first + row) * blocks + block];
            float sum = 0.0f;
            for (short i = 0; i < 8; i++) {
                uchar byte = b.nibbles[part * 8 + i];
                sum += low[i] * (float(byte & 15) - 8.0f) + high[i] * (float(byte >> 4) - 8.0f);
            }
            sums[row] += float(b.scale) * sum;
        }
    }
    for (short row = 0; row < rows; row++) {
        float total = simd_sum(sums[row]);
        if (lane == 0 && first + row < shape.rows) y[first + row] = total;
    }
}

struct Norm {
    int columns;
    float epsilon;
};

// One threadgroup a row.
kernel void rms_norm(device const float4* x [[buffer(0)]], device const float4* weight [[buffer(1)]],
                     device float4* y [[buffer(2)]], constant Norm& norm [[buffer(3)]],
                     threadgroup float* partial [[threadgroup(0)]], uint row [[threadgroup_position_in_grid]],
                     uint thread_index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
                     uint simd [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
    const int count = norm.columns / 4;
    float sum = 0.0f;
    for (int i = thread_index; i < count; i += threads) {
        float4 v = x[row * count + i];
        sum += dot(v, v);
    }
    sum = simd_sum(sum);
    if (lane == 0) partial[simd] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    sum = lane < (threads + 31) / 32 ? partial[lane] : 0.0f;
    sum = simd_sum(sum);
    const float scale = rsqrt(sum / float(norm.columns) + norm.epsilon);
    for (int i = thread_index; i < count; i += threads) y[row * count + i] = x[row * count + i] * scale * weight[i];
}

struct Gemm {
    int m, n, k;
};

// C[m, n] = A[m, k] B[n, k]^T: tiles of 64 x 32 by four SIMD-groups, k in steps of 32, edges cut.
kernel void gemm(device const half* a [[buffer(0)]], device const float* b [[buffer(1)]], device float* c [[buffer(2)]],
                 constant Gemm& shape [[buffer(3)]], threadgroup uchar* memory [[threadgroup(0)]],
                 uint2 tile [[threadgroup_position_in_grid]], ushort thread_index [[thread_index_in_threadgroup]],
                 ushort simd [[simdgroup_index_in_threadgroup]]) {
    threadgroup half* ta = (threadgroup half*)memory;                  // 64 x 32
    threadgroup half* tb = (threadgroup half*)(memory + 64 * 32 * 2);  // 32 x 32
    threadgroup float* tc = (threadgroup float*)memory;                // 64 x 32
    const int row0 = tile.y * 64, column0 = tile.x * 32;
    const short sub_row = (simd & 1) * 32, sub_column = (simd >> 1) * 16;
    simdgroup_half8x8 ma[4], mb[2];
    simdgroup_float8x8 sums[8];
    for (short i = 0; i < 8; i++) sums[i] = make_filled_simdgroup_matrix<float, 8>(0.0f);
    for (int k0 = 0; k0 < shape.k; k0 += 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (short i = thread_index; i < 64 * 32; i += 128) {
            const int row = row0 + i / 32, k = k0 + i % 32;
            ta[i] = row < shape.m && k < shape.k ? a[row * shape.k + k] : half(0.0h);
        }
        for (short i = thread_index; i < 32 * 32; i += 128) {
            const int column = column0 + i / 32, k = k0 + i % 32;
            tb[i] = column < shape.n && k < shape.k ? half(b[column * shape.k + k]) : half(0.0h);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (short k = 0; k < 32; k += 8) {
            for (short i = 0; i < 4; i++) simdgroup_load(ma[i], ta + (sub_row + 8 * i) * 32 + k, 32);
            simdgroup_barrier(mem_flags::mem_none);
            for (short j = 0; j < 2; j++) simdgroup_load(mb[j], tb + (sub_column + 8 * j) * 32 + k, 32, ulong2(0), true);
            simdgroup_barrier(mem_flags::mem_none);
            for (short i = 0; i < 8; i++) simdgroup_multiply_accumulate(sums[i], ma[i / 2], mb[i % 2], sums[i]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (short i = 0; i < 8; i++)
        simdgroup_store(sums[i], tc + (sub_row + 8 * (i / 2)) * 32 + sub_column + 8 * (i % 2), 32);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (short i = thread_index; i < 64 * 32; i += 128) {
        const int row = row0 + i / 32, column = column0 + i % 32;
        if (row < shape.m && column < shape.n) c[row * shape.n + column] = tc[i];
    }
}

struct Attention {
    int queries, keys, heads, kv_heads;
    float scale;
};

// Causal attention with online softmax: one SIMD-group for each query and head, lanes over the head's 64 numbers.
kernel void attention(device const float2* q [[buffer(0)]], device const half2* k [[buffer(1)]],
                      device const half2* v [[buffer(2)]], device float2* out [[buffer(3)]],
                      constant Attention& shape [[buffer(4)]], uint2 where [[threadgroup_position_in_grid]],
                      ushort lane [[thread_index_in_simdgroup]]) {
    const int query = where.x, head = where.y, kv_head = head / (shape.heads / shape.kv_heads);
    const int visible = shape.keys - shape.queries + query + 1;
    const float2 mine = q[(query * shape.heads + head) * 32 + lane] * shape.scale;
    float peak = -INFINITY, total = 0.0f;
    float2 sum = 0.0f;
    for (int key = 0; key < visible; key++) {
        const int at = (key * shape.kv_heads + kv_head) * 32 + lane;
        const float score = simd_sum(dot(mine, float2(k[at])));
        const float larger = max(peak, score);
        const float keep = exp(peak - larger), weight = exp(score - larger);
        total = total * keep + weight;
        sum = sum * keep + weight * float2(v[at]);
        peak = larger;
    }
    out[(query * shape.heads + head) * 32 + lane] = sum / total;
}
