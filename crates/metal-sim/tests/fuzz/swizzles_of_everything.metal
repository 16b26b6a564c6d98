kernel void k(device float4& a [[buffer(0)]]) { a.xyzw.wzyx.rgba.abgr.x.xxxx = a.xyzwxyzw.xr.s0; a.x; .xy; a..zw }
