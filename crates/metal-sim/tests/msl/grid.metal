// Positions, sizes and indices of the grid.
#include <metal_stdlib>
using namespace metal;

struct Seen {
    uint position, in_threadgroup, group, size, dispatch_size, groups, threads;
    uint index, lane, simdgroup, simdgroups, width;
};

kernel void positions(device Seen* seen [[buffer(0)]],
                      uint3 position [[thread_position_in_grid]],
                      ushort3 in_threadgroup [[thread_position_in_threadgroup]],
                      uint3 threadgroup_position [[threadgroup_position_in_grid]],
                      uint3 size [[threads_per_threadgroup]],
                      uint3 dispatch_size [[dispatch_threads_per_threadgroup]],
                      uint3 groups [[threadgroups_per_grid]],
                      uint3 threads [[threads_per_grid]],
                      uint index [[thread_index_in_threadgroup]],
                      ushort lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]],
                      uint simdgroups [[simdgroups_per_threadgroup]],
                      uint width [[threads_per_simdgroup]]) {
    device Seen& s = seen[position.x + threads.x * (position.y + threads.y * position.z)];
    s.position = position.x | position.y << 11 | position.z << 22;
    s.in_threadgroup = in_threadgroup.x | in_threadgroup.y << 11 | in_threadgroup.z << 22;
    s.group = threadgroup_position.x | threadgroup_position.y << 11 | threadgroup_position.z << 22;
    s.size = size.x | size.y << 11 | size.z << 22;
    s.dispatch_size = dispatch_size.x | dispatch_size.y << 11 | dispatch_size.z << 22;
    s.groups = groups.x | groups.y << 11 | groups.z << 22;
    s.threads = threads.x | threads.y << 11 | threads.z << 22;
    s.index = index;
    s.lane = lane;
    s.simdgroup = simdgroup;
    s.simdgroups = simdgroups;
    s.width = width;
}

kernel void scalar_position(device uint* out, uint i [[thread_position_in_grid]]) { out[i] = i * i; }
