constant int a [[function_constant(0)]];
constant int b = b + a;
constant int c = d; constant int d = c;
kernel void k(device int* out [[buffer(0)]]) { out[0] = b + d; }
