kernel void k(device int (&a)[4][2] [[buffer(0)]], void (*f)(int, int) [[buffer(1)]], device int* b = nullptr [[buffer(2)]], constant struct { int x; }& c [[buffer(3)]], ...) {}
