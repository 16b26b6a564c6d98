threadgroup int outside;
kernel void k() { threadgroup float a[2][3], *b, (*c)[4], d{1}, e = 2, f(3); for (threadgroup int i;;) {} if (threadgroup int j = 1) {} auto l = [] { threadgroup int m; }; threadgroup }
