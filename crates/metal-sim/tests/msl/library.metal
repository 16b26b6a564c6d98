// The rest of the library: forms of functions for vectors and narrow types, 64-bit integers, packing, traits, containers.
#include <metal_stdlib>
using namespace metal;

kernel void vector_forms(device float* out [[buffer(0)]]) {
    int n = 0;
    float2 wholes;
    out[n++] = modf(float2(1.5f, -2.25f), wholes).y;
    out[n++] = wholes.y;
    int2 exponents;
    out[n++] = frexp(float2(3, 48), exponents).y;
    out[n++] = exponents.y;
    out[n++] = ilogb(float2(8, 0.25f)).y;
    out[n++] = ldexp(float2(1.5f, 3), int2(2, -1)).y;
    float2 cosines;
    out[n++] = sincos(float2(0, 0.5f), cosines).y;
    out[n++] = cosines.y;
    out[n++] = isunordered(float2(1, NAN), float2(1, 2)).y;
    out[n++] = isordered(half2(1.0h, 2.0h), half2(1.0h)).x;
    out[n++] = insert_bits(uint2(0xff), uint2(0), 4, 2).y;
    out[n++] = extract_bits(int2(0xf0), 4, 4).x;
    out[n++] = absdiff(int2(-5, 5), int2(7)).x;
    out[n++] = popcount(uchar4(255, 1, 3, 0)).x;
    out[n++] = fmax3(float2(1, 2), float2(3, 1), float2(2, 5)).y;
    out[n++] = clamp(half4(1, 2, 3, 4), 0.0h, 2.5h).w;
    out[n++] = refract(float2(0, -1), float2(0, 1), 0.5f).y;
    out[n++] = length(refract(float2(0.8f, -0.6f), float2(0, 1), 1.5f));
    out[n++] = faceforward(float2(0, 1), float2(0, 1), float2(0, 1)).y;
    out[n++] = distance_squared(float2(1, 1), float2(4, 5));
    out[n++] = fast::normalize(float2(3, 4)).x;
    out[n++] = precise::length(half2(3, 4));
}
kernel void half_turns(device float* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = sinpi(1.0f);
    out[n++] = sinpi(-2.5f);
    out[n++] = cospi(0.5f);
    out[n++] = cospi(1001.0f);
    out[n++] = tanpi(0.25f);
    out[n++] = sinpi(100.25f);
}
kernel void narrow_forms(device float* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = nextafter(1.0h, 2.0h) - 1.0h;
    out[n++] = nextafter(1.0h, 0.0h) - 1.0h;
    out[n++] = nextafter(0.0h, -1.0h) < 0.0h;
    out[n++] = nextafter(2.0f, 3.0f) > 2.0f;
    out[n++] = float(nextafter(bfloat(1.0f), bfloat(2.0f))) - 1.0f;
    out[n++] = isnormal(bfloat(1.0f));
    out[n++] = float(max(bfloat(3.0f), bfloat(2.0f)));
    out[n++] = fma(half(2.0h), half(3.0h), half(1.0h));
    out[n++] = rint(half(2.5h));
    out[n++] = float(exp2(bfloat(3.0f)));
    out[n++] = sign(half(-2.0h));
}
kernel void long_integers(device long* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = mulhi(1l << 40, 1l << 40);
    out[n++] = long(mulhi(~0ul, ~0ul));
    out[n++] = long(madsat(~0ul, ~0ul, 1ul));
    out[n++] = madsat(1l << 40, -(1l << 40), 0l);
    out[n++] = addsat(LONG_MAX, 5l);
    out[n++] = long(subsat(3ul, 5ul));
    out[n++] = popcount(~0ul);
    out[n++] = clz(1l);
    out[n++] = ctz(1l << 40);
    out[n++] = long(hadd(~0ul, ~0ul - 2));
    out[n++] = long(absdiff(LONG_MIN, LONG_MAX));
    out[n++] = long(rotate(1ul << 63, 1ul));
    out[n++] = long(reverse_bits(1ul << 63));
    out[n++] = long(extract_bits(0xabcdul << 40, 44, 8));
    out[n++] = median3(5l, -7l, 1l);
}
kernel void unpacking(device float4* out [[buffer(0)]]) {
    out[0] = unpack_unorm4x8_to_float(0xff800033u);
    out[1] = unpack_snorm4x8_to_float(0x7f80c000u);
    out[2].xy = unpack_unorm2x16_to_float(0xffff0000u + 0x3333u);
    out[2].zw = unpack_snorm2x16_to_float(0x80007fffu);
    out[3] = unpack_unorm10a2_to_float(0x80000000u + (1023u << 20) + (341u << 10));
    out[4] = unpack_unorm4x8_srgb_to_float(0x80ff0080u);
    out[5] = float4(unpack_unorm4x8_to_half(0xff000000u) + unpack_snorm4x8_to_half(0x7fu));
}
kernel void packing(device uint* out [[buffer(0)]]) {
    out[0] = pack_float_to_unorm4x8(float4(0, 1, 2, 0.5f));
    out[1] = pack_float_to_snorm4x8(float4(-1, 1, 0, -0.5f));
    out[2] = pack_float_to_unorm2x16(float2(1, 0.2f));
    out[3] = pack_float_to_snorm2x16(float2(-1, 0.5f));
    out[4] = pack_float_to_unorm10a2(float4(0, 1.0f / 3.0f, 1, 2.0f / 3.0f));
    out[5] = pack_float_to_srgb_unorm4x8(float4(1, 0, 0.2158605f, 1));
    out[6] = pack_half_to_unorm4x8(half4(1, 0, 0, 1));
    out[7] = pack_half_to_snorm2x16(half2(1, -1));
}
// 64-bit atomics have a minimum and a maximum without a result.
kernel void long_atomics(device atomic_ulong* out [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    atomic_max_explicit(&out[0], (ulong(i) << 33) + 1, memory_order_relaxed);
    atomic_min_explicit(&out[1], (ulong(i + 2) << 33), memory_order_relaxed);
}
kernel void quad_forms(device const int* in [[buffer(0)]], device int* out [[buffer(1)]], uint i [[thread_position_in_grid]]) {
    int x = in[i];
    device int* mine = out + 12 * i;
    mine[0] = quad_shuffle_and_fill_up(x, 100 + x, 1);
    mine[1] = quad_shuffle_and_fill_down(x, 100 + x, 1);
    mine[2] = quad_is_first();
    mine[3] = int(uint(quad_active_threads_mask()));
    mine[4] = quad_broadcast_first(x);
    mine[5] = quad_product(x);
    mine[6] = quad_min(x) * 100 + quad_or(x);
    mine[7] = quad_prefix_exclusive_sum(x);
    mine[8] = quad_prefix_exclusive_product(x);
    mine[9] = quad_shuffle(x, ushort(3 - i % 4));
    mine[10] = quad_shuffle_rotate_up(x, 1);
    mine[11] = quad_any(x == 4) * 10 + quad_xor(x) * 100 + quad_and(x);
}
enum class Small : uchar { one = 1, two };
struct Fields { uint a : 3; uint b : 5; int c : 24; };
kernel void traits(device int* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = rank<int[2][3]>::value * 10 + extent<int[2][3], 1>::value;
    out[n++] = is_same_v<underlying_type_t<Small>, uchar>;
    out[n++] = is_trivially_copyable<float4>::value && is_constructible<float, int>::value;
    out[n++] = is_lvalue_reference<thread int&>::value && is_volatile<volatile int>::value;
    out[n++] = is_function<void()>::value && !is_union<int>::value;
    out[n++] = numeric_limits<float>::digits10 * 100 + numeric_limits<int>::digits10;
    out[n++] = numeric_limits<half>::max_exponent * 1000 + numeric_limits<float>::max_digits10;
    out[n++] = FLT_MAX_EXP + HALF_MANT_DIG * 1000 + FLT_RADIX * 100000;
    out[n++] = int(M_LOG10E_H * 1000.0h) + int(M_1_PI_H * 10.0h);
    Fields fields = {7, 31, -1};
    fields.a += 2;
    out[n++] = fields.a * 1000 + fields.b * 10 + fields.c;
    out[n++] = int(Small::two);
}
// Deleted functions are functions, too; linkage has no effect.
struct Unmade {
    int value;
    Unmade() = delete;
    explicit Unmade(int value) : value(value) {}
};
template <typename T> T never(T) = delete;
extern "C" struct Linked { int value; };
extern "C" kernel void containers(device float* out [[buffer(0)]], constant array<float, 3>& given [[buffer(1)]]) {
    int n = 0;
    array<float, 4> list = {1, 2, 3, 4};
    list[2] = 7;
    float sum = 0;
    for (float value : list) sum += value;
    out[n++] = sum;
    out[n++] = list.size() + list.front() + list.back() + given[1];
    Unmade made(5);
    Linked linked = {6};
    out[n++] = made.value + linked.value;
    packed_float3 packed = float4(1, 2, 3, 4).yzw;
    packed += float3(packed_float3(int3(0, 1, 1)));
    packed.xz = packed.zx;
    out[n++] = packed.z + packed[0];
    out[n++] = dot(float3(packed), float3(1));
    float2x2 m(1, 2, 3, 4);
    m += float2x2(1.0f);
    m *= 2.0f;
    m -= -m;
    m *= float2x2(0.5f);
    out[n++] = m[0][0] + 10 * m[1][0];
    out[n++] = determinant(float4x4(float4(2, 0, 0, 1), float4(0, 3, 0, 0), float4(0, 1, 1, 0), float4(4, 0, 0, 5)));
    assert(sum > 0);
}
