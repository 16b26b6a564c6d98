// Kernels in the manner of the programs that translate shaders to MSL: everything by its whole name, arrays in structures,
// constants with attributes, methods for every address space.
#include <metal_stdlib>
#include <simd/simd.h>

using metal::uint;

// ---- names through the namespace ---------------------------------------------------------------------------
struct Lengths { uint size0; };
typedef uint Words[1];
struct Table { uint inner[4]; };
constant Table TABLE = Table {1u, 2u, 3u, 4u};

uint steps_to_one(uint start) {
    uint n = {};
    uint i = 0u;
    n = start;
    metal::uint2 bound = metal::uint2(4294967295u);
    while (true) {
        if (metal::all(bound == metal::uint2(0u))) { break; }
        bound -= metal::uint2(bound.y == 0u, 1u);
        uint now = n;
        if (now > 1u) {
        } else { break; }
        {
            if (metal::uint(now % 2u) == 0u) {
                n = now / 2u;
            } else {
                n = metal::as_type<uint>(metal::as_type<int>(3u * now) + 1);
            }
            i = i + 1u;
        }
    }
    return i;
}
kernel void collatz(metal::uint3 id [[thread_position_in_grid]], device Words& words [[buffer(0)]],
                    constant Lengths& lengths [[buffer(1)]]) {
    uint start = words[id.x];
    if (id.x < 1 + (lengths.size0 - 0 - 4) / 4) words[id.x] = steps_to_one(start) + TABLE.inner[id.x & 3u];
    return;
}
kernel void scalars(device metal::uchar4* out [[buffer(0)]], metal::uint i [[thread_position_in_grid]]) {
    metal::half h = metal::half(1);
    metal::size_t bytes = sizeof(h);
    out[i] = metal::uchar4(metal::uchar(i), bytes, sizeof(metal::bfloat), sizeof(metal::int64_t));
}

// ---- arrays as structures, constants with attributes -------------------------------------------------------------
using namespace metal;

template<typename T, size_t Num>
struct Array {
    T elements[Num ? Num : 1];
    thread T& operator [] (size_t pos) thread { return elements[pos]; }
    constexpr const thread T& operator [] (size_t pos) const thread { return elements[pos]; }
    device T& operator [] (size_t pos) device { return elements[pos]; }
    constexpr const device T& operator [] (size_t pos) const device { return elements[pos]; }
    constexpr const constant T& operator [] (size_t pos) const constant { return elements[pos]; }
    threadgroup T& operator [] (size_t pos) threadgroup { return elements[pos]; }
    constexpr const threadgroup T& operator [] (size_t pos) const threadgroup { return elements[pos]; }
};
struct Buffer { float data[1]; };
struct Push { float scale; packed_float3 v; };
constant uint local_size_given [[function_constant(0)]];
constant uint local_size = is_function_constant_defined(local_size_given) ? local_size_given : 4u;
constant uint3 WORK_GROUP_SIZE [[maybe_unused]] = uint3(local_size, 1u, 1u);
constant uint TWICE = WORK_GROUP_SIZE.x * WORK_GROUP_SIZE[0] / local_size * 2u;
constant auto SUM = WORK_GROUP_SIZE.x + TWICE;
constant Array<float, 3> THREE = Array<float, 3>({ 1.0, 2.0, 3.0 });

template<typename Tx, typename Ty>
inline Tx mod(Tx x, Ty y) { return x - y * floor(x / y); }

static inline __attribute__((always_inline))
float work(device Buffer& buffer, thread const uint& i, constant Push& push, threadgroup Array<float, 4> (&shared)) {
    return buffer.data[i] * push.scale + shared[3u - i] + THREE[i % 3u] + float3(push.v).y + mod(-1.0, 3.0);
}
kernel void main0(constant Push& push [[buffer(1)]], device Buffer& buffer [[buffer(0)]],
                  uint3 at [[thread_position_in_grid]], uint lane [[thread_index_in_threadgroup]]) {
    threadgroup Array<float, 4> shared;
    shared[lane] = float(lane);
    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup | mem_flags::mem_texture);
    buffer.data[at.x] = work(buffer, at.x, push, shared) + float(WORK_GROUP_SIZE.x);
}
kernel void computed(device uint* out [[buffer(0)]]) {
    out[0] = WORK_GROUP_SIZE.x + WORK_GROUP_SIZE.g + WORK_GROUP_SIZE[2];
    out[1] = TWICE;
    out[2] = SUM;
    out[3] = uint3(WORK_GROUP_SIZE).x;
    out[4] = max(WORK_GROUP_SIZE, uint3(2)).z;
}

// ---- components of components ------------------------------------------------------------------------------------
kernel void chained(device float* out [[buffer(0)]]) {
    float4 v = float4(1, 2, 3, 4);
    out[0] = v.wzyx.x;
    out[1] = v.xy.yx.x;
    out[2] = v.bgr.g + v.bgr.rb.y;
    out[3] = max(v.zy.x, 2.5f);
    packed_float3 p = packed_float3(5, 6, 7);
    out[4] = p.zyx.xy.y;
    v.xy = v.wzyx.xy;
    out[5] = v.x * 10 + v.y;
}
