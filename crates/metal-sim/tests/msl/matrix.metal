// simdgroup_matrix: every operation, and the orders that a queue of products could get wrong.
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

template <typename A, typename D>
kernel void multiply(device const A* a [[buffer(0)]], device const A* b [[buffer(1)]],
                     device const D* c [[buffer(2)]], device D* d [[buffer(3)]]) {
    simdgroup_matrix<A, 8, 8> ma, mb;
    simdgroup_matrix<D, 8, 8> mc, md;
    simdgroup_load(ma, a, 8);
    simdgroup_load(mb, b, 8);
    simdgroup_load(mc, c, 8);
    simdgroup_multiply_accumulate(md, ma, mb, mc);
    simdgroup_store(md, d, 8);
}
template [[host_name("multiply_float")]] kernel void multiply<float, float>(
    device const float*, device const float*, device const float*, device float*);
template [[host_name("multiply_half")]] kernel void multiply<half, half>(
    device const half*, device const half*, device const half*, device half*);
template [[host_name("multiply_mixed")]] kernel void multiply<half, float>(
    device const half*, device const half*, device const float*, device float*);
template [[host_name("multiply_bfloat")]] kernel void multiply<bfloat, float>(
    device const bfloat*, device const bfloat*, device const float*, device float*);

// Transposed load, origin and row length, transposed store.
kernel void layout(device const float* in [[buffer(0)]], device float* out [[buffer(1)]]) {
    simdgroup_float8x8 m;
    simdgroup_load(m, in, 20, ulong2(3, 2), true);
    simdgroup_store(m, out, 12, ulong2(1, 1), false);
    simdgroup_store(m, out + 200, 12, ulong2(1, 1), true);
}

// d = a * b, then the result is used as an operand, an accumulator and by value.
static simdgroup_float8x8 twice(simdgroup_float8x8 m) {
    simdgroup_float8x8 two(2.0f), result;
    simdgroup_multiply(result, m, two);
    return result;
}
kernel void chain(device const float* in [[buffer(0)]], device float* out [[buffer(1)]]) {
    simdgroup_float8x8 a, b, ab, sum = make_filled_simdgroup_matrix<float, 8>(1.0f);
    simdgroup_load(a, in);
    simdgroup_load(b, in + 64);
    simdgroup_multiply(ab, a, b);
    simdgroup_multiply_accumulate(sum, ab, b, sum);     // 1 + a b b
    simdgroup_multiply_accumulate(sum, a, a, sum);      // 1 + a b b + a a
    simdgroup_multiply_accumulate(ab, ab, ab, ab);      // ab ab + ab
    simdgroup_load(a, in + 64);                         // a is overwritten while a product with it may wait
    simdgroup_multiply_accumulate(sum, a, b, sum);      // ... + b b
    simdgroup_float8x8 copy = sum;
    sum = make_filled_simdgroup_matrix<float, 8>(0.0f);
    simdgroup_store(twice(copy), out);
    simdgroup_store(ab, out + 64);
    simdgroup_store(sum, out + 128);
}

// Elements read and written through thread_elements, between products.
kernel void elements(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                     ushort lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 a, b, c = make_filled_simdgroup_matrix<float, 8>(0.0f);
    simdgroup_load(a, in);
    simdgroup_load(b, in + 64);
    thread auto& e = a.thread_elements();
    for (int step = 0; step < 3; step++) {
        simdgroup_multiply_accumulate(c, a, b, c);
        e[0] = e[0] + 1.0f;
        e[1] = e[1] + 1.0f;
    }
    float first = c.thread_elements()[0];
    c.thread_elements()[1] *= 2.0f;
    simdgroup_store(c, out);
    out[64 + lane] = first;
}

// More products between two synchronisations than any queue holds, with accumulators in an array.
kernel void many(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                 constant uint& count [[buffer(2)]]) {
    simdgroup_float8x8 sums[4];
    for (short i = 0; i < 4; i++) sums[i] = simdgroup_float8x8(0.0f);
    for (uint step = 0; step < count; step++) {
        simdgroup_float8x8 a, b;
        simdgroup_load(a, in + step % 5);
        simdgroup_load(b, in + step % 7);
        for (short i = 0; i < 4; i++) {
            simdgroup_multiply_accumulate(sums[i], a, b, sums[i]);
            simdgroup_barrier(mem_flags::mem_none);
        }
    }
    for (short i = 0; i < 4; i++) simdgroup_store(sums[i], out + 64 * i);
}

// Between threadgroup barriers, with several SIMD-groups.
kernel void staged(device const float* in [[buffer(0)]], device float* out [[buffer(1)]],
                   threadgroup float* tile [[threadgroup(0)]], uint thread_index [[thread_index_in_threadgroup]],
                   uint group [[simdgroup_index_in_threadgroup]], uint threads [[threads_per_threadgroup]]) {
    simdgroup_float8x8 sum(0.0f);
    for (int step = 0; step < 4; step++) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = thread_index; i < 64; i += threads) tile[i] = in[step * 64 + i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 a, weight(float(group + 1));
        simdgroup_load(a, tile);
        simdgroup_multiply_accumulate(sum, a, weight, sum);
    }
    simdgroup_store(sum, out + 64 * group);
}

// A product that only half of the SIMD-group executes.
kernel void divergent(device float* out [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
    simdgroup_float8x8 a(1.0f), b(2.0f), c(0.0f);
    if (lane < 16) simdgroup_multiply_accumulate(c, a, b, c);
    simdgroup_store(c, out);
}
