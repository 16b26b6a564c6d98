template <typename T, int N = (1 > 0), template <class> class C = vec> kernel void k(device T* a [[buffer(0)]]) { if (N < 2 && N > 1) a[0] = T(1); }
template [[host_name("k1")]] kernel void k<float, (2 > 1), vec>(device float* a [[buffer(0)]]);
template [[host_name("k2")]] kernel void k<vec<float, 4>, 1>(device vec<float, 4>*);
