// Reads one word per page, so that the GPU's first touch of mapped weights is paid at load.

// A thread per page, in a grid of exactly as many.
kernel void warmup_read(device const uint *memory [[buffer(0)]],
                        device atomic_uint *sum [[buffer(1)]],
                        uint page [[thread_position_in_grid]]) {
    atomic_fetch_add_explicit(sum, memory[ulong(page) * (WARMUP_STRIDE / sizeof(uint))], memory_order_relaxed);
}
