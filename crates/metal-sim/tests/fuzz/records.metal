struct a { struct b { kernel void k(); threadgroup int x; }; };;;
struct { int y; } z;
union u { int i; float f; } v = {1};
enum class e : uchar { x = 1 << 2, y } w;
namespace n { namespace m { kernel void k(device a* p [[buffer(0)]]) { threadgroup struct a::b q; } } }
