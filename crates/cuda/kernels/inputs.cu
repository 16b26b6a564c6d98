// What begins a forward: what the host wrote comes to its places, and angles of rotations are made of it.
#include "common.cuh"

// Small matrices that the host left in memory that the device can read, each to its place: blocks of one number each.
struct InputsArgs {
    const u32 *from;
    u32 *to[12];
    u32 first[12], words[12];
};
extern "C" __global__ void __launch_bounds__(128) inputs(const __grid_constant__ InputsArgs a) {
    let_next_start();
    after_previous();
    const volatile u32 *from = a.from + a.first[blockIdx.x];
    u32 *to = a.to[blockIdx.x];
    for (u32 i = blockIdx.y * blockDim.x + threadIdx.x; i < a.words[blockIdx.x]; i += gridDim.y * blockDim.x) to[i] = from[i];
}

// Cosines and sines of every pair of every token.
struct AnglesArgs {
    const int *positions;
    const double *inv_freq;
    float2 *out; // [tokens, pairs]
    u32 tokens, pairs;
    float magnitude;
};
extern "C" __global__ void __launch_bounds__(128) angles(const __grid_constant__ AnglesArgs a) {
    after_previous();
    // What begins from here on finds the inputs in their places.
    let_next_start();
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.tokens * a.pairs) return;
    double s, c;
    sincos((double)a.positions[i / a.pairs] * a.inv_freq[i % a.pairs], &s, &c);
    a.out[i] = make_float2((float)c * a.magnitude, (float)s * a.magnitude);
}
