// The language: types, conversions, operators, constants, address spaces, templates.
#include <metal_stdlib>
using namespace metal;

// ---- vectors ---------------------------------------------------------------------------------------
kernel void swizzles(device float4* out [[buffer(0)]]) {
    float4 v(1, 2, 3, 4);
    out[0] = v.wzyx;
    out[1] = float4(v.xy, v.zz);
    v.xz = v.zx;
    out[2] = v;
    v.yw *= float2(10, 100);
    out[3] = v;
    out[4] = v.rgba + v.bgra;
    float3 w = v.xyz;
    w.yz += 1.0;
    out[5] = float4(w, dot(w, float3(1)));
    out[6] = float4(float2(7), 8, 9);
    out[7] = -v;
    out[8] = select(v, float4(0), v > 20.0f);
    out[9] = float4(any(v > 300.0f), all(v > 0.0f), v[1], (2.0f * v).w);
    v.x = 42;
    out[10] = v;
    out[11] = float4(int4(-1.9, 1.9, 2.5, -2.5));
}

kernel void packed(device packed_float3* data [[buffer(0)]], device uint* sizes [[buffer(1)]]) {
    data[1] = data[0] * 2.0f + float3(1, 2, 3);
    data[2] = float3(data[0].x, data[0][1], float3(data[0]).z);
    sizes[0] = sizeof(float3);
    sizes[1] = sizeof(packed_float3);
    sizes[2] = sizeof(half4);
    sizes[3] = alignof(float4);
    sizes[4] = alignof(packed_half4);
    sizes[5] = sizeof(bool2);
    sizes[6] = sizeof(long);
    sizes[7] = sizeof(bfloat);
    sizes[8] = sizeof(float4x4);
    sizes[9] = sizeof(float3x3);
    struct Mixed { char a; float2 b; packed_half3 c; };
    sizes[10] = sizeof(Mixed);
}

kernel void integers(device int* out [[buffer(0)]]) {
    out[0] = uchar4(250) .x + 10;
    out[1] = uchar4(uchar4(250) + uchar4(10)).x;
    out[2] = short(40000);
    out[3] = int(uint(-1) >> 28);
    out[4] = -7 / 2;
    out[5] = -7 % 3;
    out[6] = int2(5, -5).y >> 1;
    out[7] = (int4(1, 2, 3, 4) << int4(1)).w;
    out[8] = (uint3(12) & uint3(10)).x;
    out[9] = as_type<int>(1.0f);
    out[10] = int(as_type<ushort>(half(1.0h)));
    out[11] = int(as_type<uint>(uchar4(1, 2, 3, 4)));
    out[12] = int(as_type<half2>(0x3c004000u).x);
    out[13] = int(char(200));
    out[14] = true + true;
    out[15] = int(ulong(1) << 40 >> 38);
}

kernel void matrices(device float4* out [[buffer(0)]]) {
    float4x4 m(float4(1, 2, 3, 4), float4(5, 6, 7, 8), float4(9, 10, 11, 12), float4(13, 14, 15, 16));
    out[0] = m * float4(1, 0, 0, 1);
    out[1] = float4(1, 0, 0, 1) * m;
    out[2] = (m * m)[1];
    out[3] = transpose(m)[0];
    out[4] = float4x4(2.0f)[2];
    out[5] = float4(half4x4(m)[3]);
    m[1][2] = 100;
    out[6] = m[1];
    float2x3 n(float3(1, 2, 3), float3(4, 5, 6));
    out[7] = float4(n * float2(1, 10), determinant(float2x2(1, 2, 3, 4)));
}

// ---- narrow floating point ---------------------------------------------------------------------------
kernel void narrow(device const half* in [[buffer(0)]], device half* out [[buffer(1)]], device bfloat* brain [[buffer(2)]]) {
    half a = in[0], b = in[1], c = in[2];
    out[0] = a + b;
    out[1] = a * b + c;          // two roundings
    out[2] = half(float(a) * float(b) + float(c));
    half sum = 0.0h;
    for (int i = 0; i < 3000; i++) sum += 1.0h;
    out[3] = sum;
    out[4] = half(65520.0f);
    out[5] = half4(a).w / half(3);
    bfloat d = bfloat(1.00390625f), e = bfloat(3.0f);
    brain[0] = d;
    brain[1] = d * e;
    brain[2] = e / bfloat(7.0f);
}

// ---- function constants ------------------------------------------------------------------------------
constant int factor [[function_constant(3)]];
constant bool has_bias [[function_constant(7)]];
constant float scale_or_zero [[function_constant(1)]];
constant float scale = is_function_constant_defined(scale_or_zero) ? scale_or_zero : 0.5f;
constant int doubled = factor * 2;
kernel void constants(device float* out [[buffer(0)]], device const float* bias [[buffer(1), function_constant(has_bias)]]) {
    out[0] = factor;
    out[1] = doubled;
    out[2] = scale;
    out[3] = has_bias ? bias[0] : -1.0f;
    out[4] = is_function_constant_defined(factor);
}

kernel void optional_reference(device int* out [[buffer(0)]], constant int& count [[buffer(1), function_constant(has_bias)]],
                               uint i [[thread_position_in_grid]]) {
    int sum = 1;
    for (int k = 0; k < 4; k++) sum += has_bias ? count * k : k;
    out[i] = sum;
}

// ---- templates and host names -------------------------------------------------------------------------
template <typename T, int N> struct Repeat { T values[N]; };
template <typename T, int N, bool negate = false>
[[kernel]] void repeat(device T* out [[buffer(0)]], constant T& value [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    Repeat<T, N> r;
    for (int k = 0; k < N; k++) r.values[k] = negate ? T(-value) : value;
    if (i < N) out[i] = r.values[i];
}
typedef decltype(repeat<float, 2>) repeat_float;
template [[host_name("repeat_float_2")]] kernel repeat_float repeat<float, 2>;
template [[host_name("repeat_int_3_negated")]] [[kernel]] void repeat<int, 3, true>(device int*, constant int&, uint);
template [[host_name("repeat_half4_1")]] kernel decltype(repeat<half4, 1>) repeat<half4, 1>;
template <typename T>
kernel void by_parameters(device T* out [[buffer(0)]]) { out[0] = T(sizeof(T)); }
template [[host_name("by_parameters_" "short")]] [[kernel]] void by_parameters(device short* out [[buffer(0)]]);
template [[host_name("by_parameters_" "long")]] [[kernel]] void by_parameters(device long* out [[buffer(0)]]);

// Overloads on an address space alone, of members and of functions.
struct Counter {
    int count;
    Counter() thread : count(1) {}
    Counter() threadgroup : count(1) {}
    int twice() const thread { return 2 * count; }
    int twice() const device { return 2 * count; }
    int twice() const constant { return 2 * count; }
};
typedef struct {
    union {
        struct { half d, m; };
        half2 dm;
    };
    uchar q[4];
} Block;
kernel void copy_block(device Block* out [[buffer(0)]]) { out[1] = out[0]; out[0].dm = out[1].dm.yx; }
template <typename T> struct Pointee { static constexpr constant int size = 0; };
template <typename T> struct Pointee<device T*> { static constexpr constant int size = sizeof(T); };
template <typename T> struct Pointee<thread T*> { static constexpr constant int size = sizeof(T); };
static thread Counter& operator+=(thread Counter& a, int b) { a.count = a.count + b; return a; }
static threadgroup Counter& operator+=(threadgroup Counter& a, int b) { a.count = a.count + b; return a; }
static int first_of(device const int* values) { return values[0]; }
static int first_of(thread const int* values) { return values[0]; }
static int first_of(constant const int* values) { return values[0]; }
kernel void overloads(device int* out [[buffer(0)]], constant Counter& given [[buffer(1)]]) {
    Counter mine;
    int local[1] = {5};
    mine += Pointee<device short*>::size;
    out[0] = mine.twice() + given.twice();
    out[1] = first_of(out) + first_of(local);
}
[[host_name("renamed")]] kernel void original(device int* out [[buffer(0)]]) { out[0] = 77; }
namespace inner {
kernel void in_namespace(device int* out [[buffer(0)]]) { out[0] = 78; }
}

// ---- constant data and threadgroup variables -----------------------------------------------------------
constant constexpr int table[4] = {10, 20, 30, 40};
constant uchar bytes[] = {1, 2, 3};
enum Flavour : int { plain = 3, sweet };
static_assert(sizeof(bytes) == 3, "an array in constant memory");
kernel void reverse(device int* data [[buffer(0)]], ushort i [[thread_index_in_threadgroup]],
                    ushort n [[threads_per_threadgroup]]) {
    threadgroup int copy[256], other[256];
    threadgroup int2 pair;
    threadgroup int zeros[4] = {0};
    if (i == 1) zeros[0] = 1;
    if (i == 0) pair = int2(table[2], bytes[1] + sweet);
    copy[i] = data[i];
    other[i] = data[i] * 2;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    data[i] = copy[n - 1 - i] + other[n - 1 - i] + pair.x + pair.y;
}
kernel void dynamic_memory(device int* data [[buffer(0)]], threadgroup int* first [[threadgroup(0)]],
                           threadgroup int4* second [[threadgroup(2)]], uint i [[thread_index_in_threadgroup]]) {
    first[i] = data[i];
    second[i] = int4(data[i] * 10);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    data[i] = first[i ^ 1] + second[i ^ 2].z;
}

// ---- atomics ---------------------------------------------------------------------------------------------
kernel void atomics(device atomic_uint* counters [[buffer(0)]], device atomic_int* extremes [[buffer(1)]],
                    device atomic<float>* sum [[buffer(2)]], uint i [[thread_position_in_grid]],
                    uint thread_index [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint local;
    if (thread_index == 0) atomic_store_explicit(&local, 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    atomic_fetch_add_explicit(&local, 1u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0)
        atomic_fetch_add_explicit(&counters[0], atomic_load_explicit(&local, memory_order_relaxed), memory_order_relaxed);
    atomic_fetch_xor_explicit(&counters[1], i, memory_order_relaxed);
    atomic_fetch_or_explicit(&counters[2], 1u << (i % 32), memory_order_relaxed);
    atomic_fetch_max_explicit(&extremes[0], int(i), memory_order_relaxed);
    atomic_fetch_min_explicit(&extremes[1], -int(i), memory_order_relaxed);
    atomic_fetch_sub_explicit(&extremes[2], 2, memory_order_relaxed);
    atomic_fetch_add_explicit(sum, 0.5f, memory_order_relaxed);
    uint expected = 0;
    if (atomic_compare_exchange_weak_explicit(&counters[3], &expected, i + 1, memory_order_relaxed, memory_order_relaxed))
        atomic_fetch_add_explicit(&counters[4], 1u, memory_order_relaxed);
}

// ---- barriers --------------------------------------------------------------------------------------------
kernel void ladder(device int* data [[buffer(0)]], uint i [[thread_index_in_threadgroup]], uint n [[threads_per_threadgroup]]) {
    threadgroup int sums[1024];
    sums[i] = data[i];
    for (uint step = 1; step < n; step *= 2) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        int add = i >= step ? sums[i - step] : 0;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        sums[i] += add;
    }
    data[i] = sums[i];
}
kernel void within_simdgroup(device int* data [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
    threadgroup int shared[64];
    shared[i] = data[i];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    data[i] = shared[i ^ 31];
}
