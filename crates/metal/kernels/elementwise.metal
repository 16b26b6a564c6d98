// Element-by-element operations on f32 matrices.

struct ScaleArgs {
    uint count;
    float factor;
};

// y[i] = factor * x[i]
kernel void scale_f32(device const float *x [[buffer(0)]],
                      device float *y [[buffer(1)]],
                      constant ScaleArgs &args [[buffer(2)]],
                      uint i [[thread_position_in_grid]]) {
    if (i < args.count) {
        y[i] = args.factor * x[i];
    }
}
