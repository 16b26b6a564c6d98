// Library functions: each kernel has its own list of values.
#include <metal_stdlib>
using namespace metal;

kernel void common_functions(device float* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = clamp(5.0f, 0.0f, 1.0f);
    out[n++] = mix(2.0f, 4.0f, 0.25f);
    out[n++] = saturate(-3.0f);
    out[n++] = sign(-0.5f);
    out[n++] = smoothstep(0.0f, 2.0f, 0.5f);
    out[n++] = step(1.0f, 0.5f);
    out[n++] = min(3, 2);
    out[n++] = max(half(1.5h), half(2.5h));
    out[n++] = fmin(1.0f, NAN);
    out[n++] = max3(1, 7, 3);
    out[n++] = median3(9.0f, 1.0f, 4.0f);
    out[n++] = min(float3(1, 5, 2), 3.0f).y;
    out[n++] = clamp(int2(-5, 50), 0, 9).y;
    out[n++] = abs(-4);
    out[n++] = fabs(-4.5f);
}
kernel void math_functions(device float* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = sqrt(2.0f);
    out[n++] = rsqrt(4.0f);
    out[n++] = exp(1.5f);
    out[n++] = exp2(3.0f);
    out[n++] = exp10(2.0f);
    out[n++] = log(10.0f);
    out[n++] = log2(8.0f);
    out[n++] = log10(1000.0f);
    out[n++] = pow(2.0f, 0.5f);
    out[n++] = powr(3.0f, 2.0f);
    out[n++] = sin(1.0f);
    out[n++] = cos(1.0f);
    out[n++] = tan(0.5f);
    out[n++] = asin(0.5f);
    out[n++] = acos(0.5f);
    out[n++] = atan(2.0f);
    out[n++] = atan2(1.0f, -1.0f);
    out[n++] = sinh(1.0f);
    out[n++] = cosh(1.0f);
    out[n++] = tanh(0.5f);
    out[n++] = asinh(1.0f);
    out[n++] = acosh(2.0f);
    out[n++] = atanh(0.5f);
    out[n++] = sinpi(0.25f);
    out[n++] = fmod(-7.5f, 2.0f);
    out[n++] = fract(-1.25f);
    out[n++] = floor(-1.5f);
    out[n++] = ceil(-1.5f);
    out[n++] = trunc(-1.5f);
    out[n++] = round(2.5f);
    out[n++] = rint(2.5f);
    out[n++] = fma(2.0f, 3.0f, 4.0f);
    out[n++] = ldexp(1.5f, 4);
    int exponent;
    out[n++] = frexp(48.0f, exponent);
    out[n++] = exponent;
    float whole;
    out[n++] = modf(-3.75f, whole);
    out[n++] = whole;
    float c;
    out[n++] = sincos(0.3f, c);
    out[n++] = c;
    out[n++] = copysign(3.0f, -0.0f);
    out[n++] = fdim(5.0f, 3.0f);
    out[n++] = precise::exp(1.0f);
    out[n++] = fast::tanh(0.5f);
}
kernel void integer_functions(device int* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = popcount(0xf0f0u);
    out[n++] = clz(1u);
    out[n++] = clz(uchar(1));
    out[n++] = ctz(8);
    out[n++] = ctz(0);
    out[n++] = int(reverse_bits(1u) >> 31);
    out[n++] = int(rotate(0x80000001u, 1u));
    out[n++] = mulhi(1 << 20, 1 << 20);
    out[n++] = int(mulhi(0xffffffffu, 0xffffffffu));
    out[n++] = addsat(char(100), char(100));
    out[n++] = subsat(uchar(3), uchar(5));
    out[n++] = int(absdiff(-5, 7));
    out[n++] = hadd(7, 8);
    out[n++] = rhadd(7, 8);
    out[n++] = extract_bits(int(0xff00), 8, 4);
    out[n++] = int(extract_bits(0xabcdu, 4, 8));
    out[n++] = int(insert_bits(0u, 0xfu, 4, 4));
    out[n++] = mad24(3, 4, 5);
    out[n++] = madsat(int(1000000), int(1000000), 0);
    out[n++] = madhi(1 << 30, 8, 1);
}
kernel void relational_functions(device int* out [[buffer(0)]], device const float* in [[buffer(1)]]) {
    int n = 0;
    out[n++] = isnan(in[0]);
    out[n++] = isnan(in[1]);
    out[n++] = isinf(in[1]);
    out[n++] = isfinite(in[2]);
    out[n++] = isfinite(in[0]);
    out[n++] = signbit(in[3]);
    out[n++] = isnormal(in[4]);
    out[n++] = any(isnan(float2(in[2], in[0])));
    out[n++] = select(1, 2, true);
    out[n++] = select(float2(1, 2), float2(3, 4), bool2(false, true)).y;
    out[n++] = isunordered(in[0], in[2]);
}
kernel void geometric_functions(device float* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = dot(float3(1, 2, 3), float3(4, 5, 6));
    out[n++] = cross(float3(1, 0, 0), float3(0, 1, 0)).z;
    out[n++] = length(float2(3, 4));
    out[n++] = length_squared(float2(3, 4));
    out[n++] = distance(float2(1, 1), float2(4, 5));
    out[n++] = normalize(float2(3, 4)).y;
    out[n++] = reflect(float2(1, -1), float2(0, 1)).y;
    out[n++] = unpack_unorm4x8_to_float(0xff000080u).w;
    out[n++] = pack_float_to_unorm4x8(float4(1, 0, 0, 0));
}
kernel void limits(device float* out [[buffer(0)]]) {
    int n = 0;
    out[n++] = numeric_limits<int>::max();
    out[n++] = numeric_limits<short>::min();
    out[n++] = numeric_limits<uchar>::max();
    out[n++] = numeric_limits<float>::max() == FLT_MAX;
    out[n++] = numeric_limits<half>::lowest();
    out[n++] = numeric_limits<ulong>::max() == ~0ul;
    out[n++] = numeric_limits<long>::min() < 0;
    out[n++] = isinf(numeric_limits<float>::infinity());
    out[n++] = is_same_v<decltype(1.0), float>;
    out[n++] = is_same_v<decltype(half4() + half4()), half4>;
    out[n++] = is_floating_point<bfloat>::value && is_integral_v<uchar>;
    out[n++] = __METAL_VERSION__ >= 300;
}
