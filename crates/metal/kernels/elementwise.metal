// Element-by-element operations on f32.

// Which operation: one of UNARY_* or BINARY_*, and the activation of those that have one.
constant int OPERATION [[function_constant(0)]];
constant int ACTIVATION [[function_constant(1)]];

inline float4 activate4(float4 v) {
    UNROLL for (short i = 0; i < 4; i++) v[i] = activate(ACTIVATION, v[i]);
    return v;
}

// Four elements a thread, in a grid of exactly as many threads as that takes: lanes next to each other read one line.
kernel void unary(device const float* x [[buffer(0)]],
                  device float* y [[buffer(1)]],
                  constant ElementwiseArgs& args [[buffer(2)]],
                  uint at [[thread_position_in_grid]]) {
    const ulong i = ulong(at) * 4;
    const int count = int(min(args.elements - i, ulong(4)));
    float4 v = load4_partial(x + i, count);
    if (OPERATION == UNARY_SCALE) v *= args.factor;
    if (OPERATION == UNARY_ACTIVATION) v = activate4(v);
    if (OPERATION == UNARY_SOFT_CAP) {
        UNROLL for (short j = 0; j < 4; j++) v[j] = args.factor * safe_tanh(v[j] / args.factor);
    }
    store4_partial(y + i, v, count);
}

// `b` of `period` elements is repeated: one row for every row of `a`, or all of it once. The grid's rows are these, so that no
// index has to be divided.
kernel void binary(device const float* a [[buffer(0)]],
                   device const float* b [[buffer(1)]],
                   device float* y [[buffer(2)]],
                   constant ElementwiseArgs& args [[buffer(3)]],
                   uint2 at [[thread_position_in_grid]]) {
    const ulong column = ulong(at.x) * 4, i = at.y * args.period + column;
    const int count = int(min(args.period - column, ulong(4)));
    float4 v = load4_partial(a + i, count);
    const float4 w = load4_partial(b + column, count);
    if (OPERATION == BINARY_ADD) v += w;
    if (OPERATION == BINARY_MUL) v *= w;
    if (OPERATION == BINARY_GATED) {
        UNROLL for (short k = 0; k < 4; k++) v[k] = gated(ACTIVATION, v[k], w[k], args.factor, args.limit);
    }
    store4_partial(y + i, v, count);
}
