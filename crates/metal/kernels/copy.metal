// Copies of 32-bit elements between strided matrices: windows of columns, and the exchange of tokens and heads.

// y[i, j, k] = x[i, j, k] for strides in elements; the last dimension is contiguous in both. A thread per element.
kernel void copy(device const uint* x [[buffer(0)]],
                 device uint* y [[buffer(1)]],
                 constant CopyArgs& args [[buffer(2)]],
                 uint3 at [[thread_position_in_grid]]) {
    const ulong plane = at.z, row = at.y;
    y[plane * args.to_plane + row * args.to_row + at.x] =
        x[args.from_first + plane * args.from_plane + row * args.from_row + at.x];
}
