// Kernel entry points: the scanner lists each parameter's attribute, the compiler supplies its type.
#pragma once
#pragma clang system_header
#include "builtins.h"
#include "context.h"
#include "simdgroup_matrix.h"

namespace metal_sim {
// ---- parameters ------------------------------------------------------------------------------------
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
template <class P> constexpr uint64_t size_of() { if constexpr (metal::is_void_v<P>) return 1; else return sizeof(P); }
template <class P> constexpr uint64_t align_of() { if constexpr (metal::is_void_v<P>) return 1; else return alignof(P); }
#define METAL_SIM_MEMORY_PARAMETER(ATTRIBUTE, KIND, SOURCE)                                                   \
  template <class P, int Slot> struct Parameter<P*, ATTRIBUTE<Slot>> {                                        \
    static METAL_SIM_OUTLINE P* get(Context context) { return (P*)SOURCE(context, Slot); }                     \
    static constexpr ArgumentDescriptor describe() {                                                          \
      return {KIND, Slot, metal::is_const_v<P>, false, size_of<P>(), align_of<P>()};                          \
    }                                                                                                         \
  };                                                                                                          \
  template <class P, int Slot> struct Parameter<P&, ATTRIBUTE<Slot>> {                                        \
    static METAL_SIM_OUTLINE P& get(Context context) { return *(P*)SOURCE(context, Slot); }                    \
    static constexpr ArgumentDescriptor describe() {                                                          \
      return {KIND, Slot, metal::is_const_v<P>, true, size_of<P>(), align_of<P>()};                           \
    }                                                                                                         \
  };
METAL_SIM_MEMORY_PARAMETER(Buffer, argument_buffer, buffer)
METAL_SIM_MEMORY_PARAMETER(ThreadgroupMemory, argument_threadgroup, threadgroup_memory)

METAL_SIM_INLINE Uint3 grid_position(Context context) {
  Uint3 group = threadgroup_position(context), size = dispatch_size(context), position = thread_position(context);
  return {group.x * size.x + position.x, group.y * size.y + position.y, group.z * size.z + position.z};
}
#define METAL_SIM_BUILTIN_PARAMETER(ATTRIBUTE, EXPRESSION)                                                    \
  struct ATTRIBUTE {};                                                                                        \
  template <class P> struct Parameter<P, ATTRIBUTE> {                                                         \
    static METAL_SIM_OUTLINE metal::remove_cv_t<metal::remove_reference_t<P>> get(Context context) {           \
      using Q = metal::remove_cv_t<metal::remove_reference_t<P>>;                                             \
      return EXPRESSION;                                                                                      \
    }                                                                                                         \
    static constexpr ArgumentDescriptor describe() { return {argument_builtin, 0, true, false, 0, 1}; } \
  };
METAL_SIM_BUILTIN_PARAMETER(thread_position_in_grid, position_as<Q>(grid_position(context)))
METAL_SIM_BUILTIN_PARAMETER(thread_position_in_threadgroup, position_as<Q>(thread_position(context)))
METAL_SIM_BUILTIN_PARAMETER(threadgroup_position_in_grid, position_as<Q>(threadgroup_position(context)))
METAL_SIM_BUILTIN_PARAMETER(threads_per_threadgroup, position_as<Q>(threadgroup_size(context)))
METAL_SIM_BUILTIN_PARAMETER(dispatch_threads_per_threadgroup, position_as<Q>(dispatch_size(context)))
METAL_SIM_BUILTIN_PARAMETER(threadgroups_per_grid, position_as<Q>(threadgroup_count(context)))
METAL_SIM_BUILTIN_PARAMETER(threads_per_grid, position_as<Q>(whole_grid(context)))
METAL_SIM_BUILTIN_PARAMETER(grid_size, position_as<Q>(whole_grid(context)))
METAL_SIM_BUILTIN_PARAMETER(grid_origin, position_as<Q>(Uint3{0, 0, 0}))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_threadgroup, Q(thread_index(context)))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_simdgroup, Q(thread_index(context) & (simd_width - 1)))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_quadgroup, Q(thread_index(context) & 3))
METAL_SIM_BUILTIN_PARAMETER(simdgroup_index_in_threadgroup, Q(thread_index(context) / simd_width))
METAL_SIM_BUILTIN_PARAMETER(quadgroup_index_in_threadgroup, Q(thread_index(context) / 4))
METAL_SIM_BUILTIN_PARAMETER(simdgroups_per_threadgroup, Q((volume(threadgroup_size(context)) + simd_width - 1) / simd_width))
METAL_SIM_BUILTIN_PARAMETER(quadgroups_per_threadgroup, Q((volume(threadgroup_size(context)) + 3) / 4))
METAL_SIM_BUILTIN_PARAMETER(dispatch_simdgroups_per_threadgroup, Q((volume(dispatch_size(context)) + simd_width - 1) / simd_width))
METAL_SIM_BUILTIN_PARAMETER(dispatch_quadgroups_per_threadgroup, Q((volume(dispatch_size(context)) + 3) / 4))
METAL_SIM_BUILTIN_PARAMETER(threads_per_simdgroup, Q(simd_width))
METAL_SIM_BUILTIN_PARAMETER(thread_execution_width, Q(simd_width))

template <auto Function, class... Attribute> struct Entry;
template <class... P, void (*Function)(P...), class... Attribute> struct Entry<Function, Attribute...> {
  static_assert(sizeof...(P) == sizeof...(Attribute), "every kernel parameter needs an attribute");
  static METAL_SIM_ENTRY void run(Context context) { Function(Parameter<P, Attribute>::get(context)...); }
  static constexpr ArgumentDescriptor arguments[sizeof...(P) + 1] = {Parameter<P, Attribute>::describe()..., {}};
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
