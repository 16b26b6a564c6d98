// What every kernel uses: types, half precision, the tensor-core product, asynchronous copies, reductions, and the
// edges between dependent launches. No headers are needed: NVRTC alone compiles this.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define QUANT_F16 u16

#define WARP 32
#define FULL 0xffffffffu
#define INFINITE __int_as_float(0x7f800000)

// A launch that depends on the one before it may start while that one still runs. Nothing but weights may be read, and
// nothing written, before `after_previous`.
__device__ __forceinline__ void after_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ float from_half(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ __forceinline__ u16 to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
// `low` in the low half of the word.
__device__ __forceinline__ u32 to_half2(float low, float high) {
    u32 h;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
    return h;
}
__device__ __forceinline__ float low_half(u32 h) { return from_half((u16)(h & 0xffff)); }
__device__ __forceinline__ float high_half(u32 h) { return from_half((u16)(h >> 16)); }
__device__ __forceinline__ float from_bf16(u16 b) { return __uint_as_float((u32)b << 16); }
__device__ __forceinline__ u16 to_bf16(float f) {
    u32 u = __float_as_uint(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (u16)((u >> 16) | 0x40);
    return (u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
__device__ __forceinline__ u32 half2_sub(u32 a, u32 b) {
    u32 d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 half2_mul(u32 a, u32 b) {
    u32 d;
    asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
__device__ __forceinline__ u32 half2_fma(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// c += a b, 16 x 8 x 16, half precision in, single out.
__device__ __forceinline__ void mma(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// The same of 16 x 8 x 32 bytes, those of `a` unsigned, those of `b` signed.
__device__ __forceinline__ void mma_bytes(int (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm(
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
// Four matrices of 8 x 8 halves, whose rows' addresses the lanes give: eight lanes for each matrix.
__device__ __forceinline__ void load_matrices(u32 (&m)[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(p)) : "memory");
}
__device__ __forceinline__ void load_transposed(u32 (&m)[4], const void *p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(shared_address(p)) : "memory");
}

__device__ __forceinline__ void copy16(void *shared, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global) : "memory");
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) v += __shfl_xor_sync(FULL, v, i);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int i = 16; i > 0; i >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL, v, i));
    return v;
}

// Sum over the block, known to every thread. `scratch` has 32 floats and can be used again after a barrier.
__device__ __forceinline__ float block_sum(float v, float *scratch) {
    v = warp_sum(v);
    int warps = (blockDim.x + 31) / 32;
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < warps; i++) sum += scratch[i];
    return sum;
}
__device__ __forceinline__ float block_max(float v, float *scratch) {
    v = warp_max(v);
    int warps = (blockDim.x + 31) / 32;
    if ((threadIdx.x & 31) == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    float top = scratch[0];
    for (int i = 1; i < warps; i++) top = fmaxf(top, scratch[i]);
    return top;
}

// The power of two that brings values of at most `top` to at most 2^12: well inside half precision, and so that what is
// small beside `top` keeps its digits. 1 where `top` is no finite number or 0.
__device__ __forceinline__ float half_range_scale(float top) {
    u32 exponent = (__float_as_uint(top) >> 23) & 0xff;
    if (exponent == 0 || exponent == 0xff) return 1.0f;
    int scale = 12 - ((int)exponent - 126) + 127;
    scale = scale < 1 ? 1 : scale > 254 ? 254 : scale;
    return __uint_as_float((u32)scale << 23);
}

enum { SILU = 0, GELU = 1, SIGMOID = 2 };
__device__ __forceinline__ float activate(int kind, float x) {
    if (kind == GELU) {
        float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return 0.5f * x * (1.0f + tanhf(inner));
    }
    float s = 1.0f / (1.0f + expf(-x));
    return kind == SILU ? x * s : s;
}
