// What a kernel asks about the thread that runs it: function constants, threadgroup variables, bindings and positions.
#pragma once
#pragma clang system_header
#include "runtime.h"

namespace metal_sim {
const Runtime* runtime;

// ---- function constants ----------------------------------------------------------------------------
template <class T, int Index> struct FunctionConstant : Components<T, FunctionConstant<T, Index>> {
  static_assert(sizeof(T) <= sizeof(uint64_t), "function constants have at most 8 bytes here");
  METAL_SIM_OUTLINE operator T() const {
    T value;
    __builtin_memcpy(&value, &current_lane()->threadgroup->constants[Index], sizeof(T));
    return value;
  }
};
template <class T, int Index> METAL_SIM_OUTLINE bool is_defined(const FunctionConstant<T, Index>&) {
  return current_lane()->threadgroup->constants_defined[Index];
}

// ---- threadgroup variables -------------------------------------------------------------------------
template <int Id, class T> struct LocalKey { static const char key; };
template <int Id, class T> const char LocalKey<Id, T>::key = 0;
template <int Id, class T> METAL_SIM_OUTLINE T& local_memory() {
  return *static_cast<T*>(runtime->local_memory(current_lane(), &LocalKey<Id, T>::key, sizeof(T), alignof(T) < 16 ? 16 : alignof(T)));
}

// ---- the running thread ----------------------------------------------------------------------------
typedef Lane& Context;
METAL_SIM_INLINE void* buffer(Context lane, int slot) { return lane.threadgroup->buffers[slot]; }
METAL_SIM_INLINE void* threadgroup_memory(Context lane, int slot) { return lane.threadgroup->dynamic_memory[slot]; }
METAL_SIM_INLINE Uint3 thread_position(Context lane) { return lane.position; }
METAL_SIM_INLINE Uint3 threadgroup_position(Context lane) { return lane.threadgroup->position; }
METAL_SIM_INLINE Uint3 threadgroup_size(Context lane) { return lane.threadgroup->size; }
METAL_SIM_INLINE Uint3 dispatch_size(Context lane) { return lane.threadgroup->dispatch_size; }
METAL_SIM_INLINE Uint3 threadgroup_count(Context lane) { return lane.threadgroup->threadgroups; }
METAL_SIM_INLINE Uint3 whole_grid(Context lane) { return lane.threadgroup->grid; }
METAL_SIM_INLINE uint32_t thread_index(Context lane) { return lane.thread; }
}  // namespace metal_sim
