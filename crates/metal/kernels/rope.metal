// Rotary position embedding of every head of every row.

// A thread per pair of elements, head and row: a pair is read and written by one thread alone, so the result may lie
// over the input. Heads of odd width have a last pair with one element.
kernel void rope(device const float* x [[buffer(0)]],
                 device float* y [[buffer(1)]],
                 constant RopeArgs& args [[buffer(2)]],
                 device const ulong* turns [[buffer(3)]],
                 device const int* positions [[buffer(4)]],
                 uint3 at [[thread_position_in_grid]]) {
    const int pair = int(at.x), head = int(at.y), row = int(at.z);
    const ulong base = (ulong(row) * args.heads + head) * args.head_dim;
    const int2 e = pair_elements(pair, args.pairs, args.interleaved != 0);
    if (e.y >= args.head_dim) {
        y[base + e.x] = x[base + e.x];
        return;
    }
    float2 v = float2(x[base + e.x], x[base + e.y]);
    if (pair < args.pairs) v = rotate(v, args.magnitude * rotation(turns[pair], positions[row]));
    y[base + e.x] = v.x;
    y[base + e.y] = v.y;
}
