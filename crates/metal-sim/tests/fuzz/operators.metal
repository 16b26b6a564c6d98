struct s { float operator()(float x) const { return x; } operator float() const { return 0; } s operator<(s) const; s operator>>(int); };
kernel void k(device s& a [[buffer(0)]]) { a = a << 1 >> 2; a < a > (a); }
