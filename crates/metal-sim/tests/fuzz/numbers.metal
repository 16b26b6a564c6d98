kernel void k(device float* a [[buffer(99999999999999999999)]], device int* b [[buffer(-1)]], device int* c [[buffer(0x1f)]]) { a[0] = 0x.p + 1'0'0u + 1.e+-3 + .5h + 0b; }
