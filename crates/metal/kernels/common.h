// What every kernel file starts with.

// Four floats from an address that is only aligned to 4 bytes: rows of odd width begin anywhere. Apple's load
// instructions ask for the alignment of an element, so this is one load all the same.
inline float4 load4(device const float* p) { return float4(*(device const packed_float4*)p); }
inline void store4(device float* p, float4 v) { *(device packed_float4*)p = packed_float4(v); }

// Before a loop whose bounds are known to the compiler: what it indexes stays in registers, which have no addresses.
#define UNROLL _Pragma("clang loop unroll(full)")

// The first `count` of less than four elements (0 and less: none); the others are zero and are not touched. Named, since an index
// that is computed would put the vector into memory.
template <typename T>
inline vec<T, 4> load_tail(device const T* p, int count) {
    vec<T, 4> v = T(0);
    if (count > 0) v.x = p[0];
    if (count > 1) v.y = p[1];
    if (count > 2) v.z = p[2];
    return v;
}
template <typename T>
inline void store_tail(device T* p, vec<T, 4> v, int count) {
    if (count > 0) p[0] = v.x;
    if (count > 1) p[1] = v.y;
    if (count > 2) p[2] = v.z;
}

// Four floats of which only the first `count` exist: four and more are all.
inline float4 load4_partial(device const float* p, int count) { return count >= 4 ? load4(p) : load_tail(p, count); }
inline void store4_partial(device float* p, float4 v, int count) {
    if (count >= 4) store4(p, v);
    else store_tail(p, v, count);
}

// Below every finite float, and itself one: fast arithmetic may take it that there is no infinity.
#define LOWEST (-3.402823466e38f)

inline float sum4(float4 v) { return (v.x + v.y) + (v.z + v.w); }

// tanh that neither overflows nor depends on the fast-math variant: the exponential of something negative only, and near
// zero, where that would cancel, the first terms of the series.
inline float safe_tanh(float x) {
    const float a = abs(x), square = x * x;
    if (a < 0.1f) return x * (1.0f + square * (-0.333333333f + square * 0.133333333f));
    const float e = precise::exp(-2.0f * a);
    return copysign((1.0f - e) / (1.0f + e), x);
}

// The activations, numbered as in ops/elementwise.rs.
inline float activate(int kind, float x) {
    if (kind == ACTIVATION_GELU) {
        // sqrt(2 / pi)
        return 0.5f * x * (1.0f + safe_tanh(0.7978845608f * x * (1.0f + 0.044715f * x * x)));
    }
    float s = 1.0f / (1.0f + precise::exp(-x));
    return kind == ACTIVATION_SILU ? x * s : s;
}

// `x` where it is no number, else no more than `most`. The bits decide, for fast arithmetic may take it that there is no NaN.
inline float at_most(float x, float most) {
    return (as_type<uint>(x) & 0x7fffffffu) > 0x7f800000u ? x : min(x, most);
}

// The gate of gpt-oss: (u + 1) * g * sigmoid(alpha * g), where g is the gate and u the other operand, both held to the limit.
inline float clamped_gate(float gate, float up, float alpha, float limit) {
    const float g = at_most(gate, limit), u = -at_most(-at_most(up, limit), limit);
    return (u + 1.0f) * (g / (1.0f + precise::exp(-alpha * g)));
}

// A gate times what it lets through; the last two arguments are of the clamped one.
inline float gated(int kind, float gate, float up, float alpha, float limit) {
    return kind == ACTIVATION_CLAMPED ? clamped_gate(gate, up, alpha, limit) : activate(kind, gate) * up;
}
