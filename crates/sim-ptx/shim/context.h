// What a kernel asks about the thread that runs it on an NVIDIA GPU: function constants, threadgroup variables, bindings and
// positions.
#pragma once
#pragma clang system_header
#include "runtime.h"

extern "C" {
// Function constants by index, and whether they have a value: written before the first launch.
__attribute__((address_space(4), used)) ulong metal_sim_constants[2048];
__attribute__((address_space(4), used)) uchar metal_sim_constants_defined[2048];
extern __attribute__((address_space(3), aligned(16))) char metal_sim_dynamic_memory[];
}

namespace metal_sim {
template <class T, int Index> struct FunctionConstant : Components<T, FunctionConstant<T, Index>> {
  static_assert(Index < 2048, "function constants up to 2047");
  static_assert(sizeof(T) <= sizeof(ulong), "function constants have at most 8 bytes here");
  METAL_SIM_INLINE operator T() const {
    ulong bits = metal_sim_constants[Index];
    T value;
    __builtin_memcpy(&value, &bits, sizeof(T));
    return value;
  }
};
template <class T, int Index> METAL_SIM_INLINE bool is_defined(const FunctionConstant<T, Index>&) {
  return metal_sim_constants_defined[Index];
}
template <int Id, class T> METAL_SIM_INLINE T& local_memory() {
  static __attribute__((address_space(3), loader_uninitialized, aligned(16))) T value;
  return *(T*)&value;
}

typedef const Arguments& Context;
METAL_SIM_INLINE void* buffer(Context arguments, int slot) {
  return (void*)(__attribute__((address_space(1))) char*)arguments.buffers[slot];
}
METAL_SIM_INLINE void* threadgroup_memory(Context arguments, int slot) {
  return (void*)(metal_sim_dynamic_memory + arguments.dynamic_memory[slot]);
}
METAL_SIM_INLINE Uint3 thread_position(Context) { return thread_position(); }
METAL_SIM_INLINE Uint3 threadgroup_position(Context arguments) {
  return {arguments.offset.x + uint32_t(__nvvm_read_ptx_sreg_ctaid_x()), arguments.offset.y + uint32_t(__nvvm_read_ptx_sreg_ctaid_y()),
          arguments.offset.z + uint32_t(__nvvm_read_ptx_sreg_ctaid_z())};
}
METAL_SIM_INLINE Uint3 threadgroup_size(Context) { return threadgroup_size(); }
METAL_SIM_INLINE Uint3 dispatch_size(Context arguments) { return arguments.dispatch_size; }
METAL_SIM_INLINE Uint3 threadgroup_count(Context arguments) { return arguments.threadgroups; }
METAL_SIM_INLINE Uint3 whole_grid(Context arguments) { return arguments.grid; }
METAL_SIM_INLINE uint32_t thread_index(Context) { return thread_index(); }
}  // namespace metal_sim
