// Kernel entry points on an NVIDIA GPU: the scanner lists each parameter's attribute, the compiler supplies its type.
#pragma once
#pragma clang system_header
#include "builtins.h"
#include "simdgroup_matrix.h"

extern "C" {
// Function constants by index, and whether they have a value: written before the first launch.
__attribute__((address_space(4), used)) ulong metal_sim_constants[2048];
__attribute__((address_space(4), used)) uchar metal_sim_constants_defined[2048];
extern __attribute__((address_space(3), aligned(16))) char metal_sim_dynamic_memory[];
}

namespace metal_sim {
template <class T, int Index> struct FunctionConstant {
  static_assert(Index < 2048, "function constants up to 2047");
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

template <int Slot> struct Buffer {};
template <int Slot> struct ThreadgroupMemory {};
template <class P> METAL_SIM_INLINE P position_as(Uint3 value) {
  using Q = metal::remove_cv_t<P>;
  if constexpr (is_vector<Q>) {
    Q result;
    uint32_t all[3] = {value.x, value.y, value.z};
    for (int i = 0; i < Info<Q>::count; i++) result.components[i] = ElementOf<Q>(all[i]);
    return result;
  } else {
    return Q(value.x);
  }
}
template <class P, class Attribute> struct Parameter;
template <class P, int Slot> struct Parameter<P*, Buffer<Slot>> {
  static METAL_SIM_INLINE P* get(const Arguments& arguments) {
    return (P*)(__attribute__((address_space(1))) char*)arguments.buffers[Slot];
  }
};
template <class P, int Slot> struct Parameter<P&, Buffer<Slot>> {
  static METAL_SIM_INLINE P& get(const Arguments& arguments) {
    return *(P*)(__attribute__((address_space(1))) char*)arguments.buffers[Slot];
  }
};
template <class P, int Slot> struct Parameter<P*, ThreadgroupMemory<Slot>> {
  static METAL_SIM_INLINE P* get(const Arguments& arguments) { return (P*)(metal_sim_dynamic_memory + arguments.dynamic_memory[Slot]); }
};
template <class P, int Slot> struct Parameter<P&, ThreadgroupMemory<Slot>> {
  static METAL_SIM_INLINE P& get(const Arguments& arguments) { return *(P*)(metal_sim_dynamic_memory + arguments.dynamic_memory[Slot]); }
};

METAL_SIM_INLINE Uint3 threadgroup_position(const Arguments& arguments) {
  return {arguments.offset.x + uint32_t(__nvvm_read_ptx_sreg_ctaid_x()), arguments.offset.y + uint32_t(__nvvm_read_ptx_sreg_ctaid_y()),
          arguments.offset.z + uint32_t(__nvvm_read_ptx_sreg_ctaid_z())};
}
METAL_SIM_INLINE Uint3 grid_position(const Arguments& arguments) {
  Uint3 group = threadgroup_position(arguments), size = arguments.dispatch_size, position = thread_position();
  return {group.x * size.x + position.x, group.y * size.y + position.y, group.z * size.z + position.z};
}
#define METAL_SIM_BUILTIN_PARAMETER(ATTRIBUTE, EXPRESSION)                                                   \
  struct ATTRIBUTE {};                                                                                       \
  template <class P> struct Parameter<P, ATTRIBUTE> {                                                        \
    static METAL_SIM_INLINE metal::remove_cv_t<metal::remove_reference_t<P>> get(const Arguments& arguments) { \
      using Q = metal::remove_cv_t<metal::remove_reference_t<P>>;                                            \
      return EXPRESSION;                                                                                     \
    }                                                                                                        \
  };
METAL_SIM_BUILTIN_PARAMETER(thread_position_in_grid, position_as<Q>(grid_position(arguments)))
METAL_SIM_BUILTIN_PARAMETER(thread_position_in_threadgroup, position_as<Q>(thread_position()))
METAL_SIM_BUILTIN_PARAMETER(threadgroup_position_in_grid, position_as<Q>(threadgroup_position(arguments)))
METAL_SIM_BUILTIN_PARAMETER(threads_per_threadgroup, position_as<Q>(threadgroup_size()))
METAL_SIM_BUILTIN_PARAMETER(dispatch_threads_per_threadgroup, position_as<Q>(arguments.dispatch_size))
METAL_SIM_BUILTIN_PARAMETER(threadgroups_per_grid, position_as<Q>(arguments.threadgroups))
METAL_SIM_BUILTIN_PARAMETER(threads_per_grid, position_as<Q>(arguments.grid))
METAL_SIM_BUILTIN_PARAMETER(grid_size, position_as<Q>(arguments.grid))
METAL_SIM_BUILTIN_PARAMETER(grid_origin, position_as<Q>(Uint3{0, 0, 0}))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_threadgroup, Q(thread_index()))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_simdgroup, Q(lane_index()))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_quadgroup, Q(lane_index() & 3))
METAL_SIM_BUILTIN_PARAMETER(simdgroup_index_in_threadgroup, Q(thread_index() / 32))
METAL_SIM_BUILTIN_PARAMETER(quadgroup_index_in_threadgroup, Q(thread_index() / 4))
METAL_SIM_BUILTIN_PARAMETER(simdgroups_per_threadgroup, Q((volume(threadgroup_size()) + 31) / 32))
METAL_SIM_BUILTIN_PARAMETER(quadgroups_per_threadgroup, Q((volume(threadgroup_size()) + 3) / 4))
METAL_SIM_BUILTIN_PARAMETER(dispatch_simdgroups_per_threadgroup, Q((volume(arguments.dispatch_size) + 31) / 32))
METAL_SIM_BUILTIN_PARAMETER(dispatch_quadgroups_per_threadgroup, Q((volume(arguments.dispatch_size) + 3) / 4))
METAL_SIM_BUILTIN_PARAMETER(threads_per_simdgroup, Q(simd_width))
METAL_SIM_BUILTIN_PARAMETER(thread_execution_width, Q(simd_width))

template <auto Function, class... Attribute> struct Entry;
template <class... P, void (*Function)(P...), class... Attribute> struct Entry<Function, Attribute...> {
  static_assert(sizeof...(P) == sizeof...(Attribute), "every kernel parameter needs an attribute");
  static METAL_SIM_INLINE void run(const Arguments& arguments) { Function(Parameter<P, Attribute>::get(arguments)...); }
};
}  // namespace metal_sim

#define is_function_constant_defined(NAME) metal_sim::is_defined(NAME)
#define kernel static
#define device
#define thread
#define constant const
#define threadgroup
#define METAL_SIM_THREADGROUP
#define METAL_FUNC inline __attribute__((always_inline))
#define coherent(SCOPE)
