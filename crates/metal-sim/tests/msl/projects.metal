// What projects write around their kernels: slots by name, attributes in every place, constants of narrow types.
#include <metal_stdlib>
using namespace metal;

typedef enum BufferIndex : uint { BufferIndexOut, BufferIndexIn = 2, BufferIndexCount } BufferIndex;
enum { ThreadsBase = 1 << 5 };
constant constexpr int SIMDGROUPS = 2;
constant constexpr int THREADS = ThreadsBase * SIMDGROUPS;

kernel void slots_by_name [[max_total_threads_per_threadgroup(THREADS)]]
    (device int* out [[buffer(BufferIndexOut)]], const device int* in [[buffer(BufferIndexIn)]],
     constant int& count [[buffer(BufferIndexCount + (SIMDGROUPS - 1))]],
     threadgroup int* shared [[threadgroup(SIMDGROUPS)]], uint i [[thread_position_in_grid]]) {
    shared[i] = in[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = shared[count - 1 - i];
}
kernel void attribute_at_the_end(coherent device int* out [[buffer(0)]], volatile coherent(device) device int* in [[buffer(1)]],
                                 uint i [[thread_position_in_grid]]) [[max_total_threads_per_threadgroup(32)]] {
    out[i] = in[i] + THREADS;
}

// Constants of a launch with the operators of vectors and of narrow types.
constant half narrow [[function_constant(0)]];
constant float wide [[function_constant(1)]];
constant uchar small [[function_constant(2)]];
constant half twice = narrow * 2.0h;
constant half2 pair = half2(narrow, narrow +
                                    0.5);
kernel void narrow_constants(device float* out [[buffer(0)]]) {
    half x = 3.0h;
    float2 v = float2(1);
    int n = 0;
    out[n++] = narrow * x;
    out[n++] = x - narrow;
    out[n++] = narrow > 0.25h;
    x *= narrow;
    out[n++] = x;
    out[n++] = -narrow;
    out[n++] = twice / narrow;
    out[n++] = pair.y;
    out[n++] = (half4(4) * narrow).w;
    out[n++] = (wide * float4(2)).z;
    v += wide;
    out[n++] = v.y;
    out[n++] = narrow + small;
    out[n++] = (pair * x).x;
    out[n++] = float4(wide).w;
    out[n++] = narrow == 0.5h;
}

// Kernels with the names of functions, of the library and of their own.
static int sign_of(int x) { return x < 0 ? -1 : 1; }
kernel void sign_of(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = sign_of(out[i]); }
kernel void abs(device int* out [[buffer(0)]], uint i [[thread_position_in_grid]]) { out[i] = abs(out[i]); }

// Directives of loops, the macro's too, in templates, and others that say nothing to this compiler.
#define UNROLLED _Pragma("clang loop unroll(full)")
#pragma METAL internals : enable
template <int N> float sum_of(device const float* x) {
    float sum = 0;
    UNROLLED for (int i = 0; i < N; i++) sum += x[i];
    return sum;
}
kernel void unrolled(device float* out [[buffer(0)]]) {
    float taken[4];
#pragma unroll(2)
    for (int i = 0; i < 4; i++) taken[i] = out[i];
#pragma nounroll
    for (int i = 0; i < 4; i++) taken[i] *= 2;
    out[0] = sum_of<4>(out) + taken[3];
}

// What projects add to the library's namespace.
namespace metal {
template <typename... Ts> struct make_void { typedef void type; };
template <typename... Ts> using void_t = typename make_void<Ts...>::type;
template <typename T> struct is_empty : bool_constant<__is_empty(T)> {};
template <typename T> struct pointer_element {};
template <typename T> struct pointer_element<thread T*> { using type = remove_cv_t<T>; };
template <typename T> struct pointer_element<device T*> { using type = remove_cv_t<T>; };
}

// Members that are chosen by the type of their result.
struct Quotient {
    template <typename T> enable_if_t<is_integral_v<T>, T> operator()(T x, T y) thread { return x / y + 100; }
    template <typename T> enable_if_t<!is_integral_v<T>, T> operator()(T x, T y) thread { return x / y; }
};
kernel void chosen(device float* out [[buffer(0)]]) {
    out[0] = Quotient()(3.0f, 2.0f);
    out[1] = Quotient()(3, 2);
}
