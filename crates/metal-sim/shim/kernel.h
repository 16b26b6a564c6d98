// Kernel entry points: the scanner lists each parameter's attribute, the compiler supplies its type.
#pragma once
#pragma clang system_header
#include "builtins.h"
#include "simdgroup_matrix.h"

namespace metal_sim {
const Runtime* runtime;

// ---- function constants ----------------------------------------------------------------------------
template <class T, int Index> struct FunctionConstant {
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
    static METAL_SIM_OUTLINE P* get(Lane& lane) { return static_cast<P*>(lane.threadgroup->SOURCE[Slot]); }    \
    static constexpr ArgumentDescriptor describe() {                                                          \
      return {KIND, Slot, metal::is_const_v<P>, false, size_of<P>(), align_of<P>()};          \
    }                                                                                                         \
  };                                                                                                          \
  template <class P, int Slot> struct Parameter<P&, ATTRIBUTE<Slot>> {                                        \
    static METAL_SIM_OUTLINE P& get(Lane& lane) { return *static_cast<P*>(lane.threadgroup->SOURCE[Slot]); }   \
    static constexpr ArgumentDescriptor describe() {                                                          \
      return {KIND, Slot, metal::is_const_v<P>, true, size_of<P>(), align_of<P>()};           \
    }                                                                                                         \
  };
METAL_SIM_MEMORY_PARAMETER(Buffer, argument_buffer, buffers)
METAL_SIM_MEMORY_PARAMETER(ThreadgroupMemory, argument_threadgroup, dynamic_memory)

METAL_SIM_INLINE Uint3 grid_position(Lane& lane) {
  Threadgroup& group = *lane.threadgroup;
  return {group.position.x * group.dispatch_size.x + lane.position.x, group.position.y * group.dispatch_size.y + lane.position.y,
          group.position.z * group.dispatch_size.z + lane.position.z};
}
METAL_SIM_INLINE uint32_t volume(Uint3 size) { return size.x * size.y * size.z; }
#define METAL_SIM_BUILTIN_PARAMETER(ATTRIBUTE, EXPRESSION)                                                    \
  struct ATTRIBUTE {};                                                                                        \
  template <class P> struct Parameter<P, ATTRIBUTE> {                                                         \
    static METAL_SIM_OUTLINE metal::remove_cv_t<metal::remove_reference_t<P>> get(Lane& lane) {                \
      using Q = metal::remove_cv_t<metal::remove_reference_t<P>>;                                             \
      return EXPRESSION;                                                                                      \
    }                                                                                                         \
    static constexpr ArgumentDescriptor describe() { return {argument_builtin, 0, true, false, 0, 1}; } \
  };
METAL_SIM_BUILTIN_PARAMETER(thread_position_in_grid, position_as<Q>(grid_position(lane)))
METAL_SIM_BUILTIN_PARAMETER(thread_position_in_threadgroup, position_as<Q>(lane.position))
METAL_SIM_BUILTIN_PARAMETER(threadgroup_position_in_grid, position_as<Q>(lane.threadgroup->position))
METAL_SIM_BUILTIN_PARAMETER(threads_per_threadgroup, position_as<Q>(lane.threadgroup->size))
METAL_SIM_BUILTIN_PARAMETER(dispatch_threads_per_threadgroup, position_as<Q>(lane.threadgroup->dispatch_size))
METAL_SIM_BUILTIN_PARAMETER(threadgroups_per_grid, position_as<Q>(lane.threadgroup->threadgroups))
METAL_SIM_BUILTIN_PARAMETER(threads_per_grid, position_as<Q>(lane.threadgroup->grid))
METAL_SIM_BUILTIN_PARAMETER(grid_size, position_as<Q>(lane.threadgroup->grid))
METAL_SIM_BUILTIN_PARAMETER(grid_origin, position_as<Q>(Uint3{0, 0, 0}))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_threadgroup, Q(lane.thread))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_simdgroup, Q(lane.lane))
METAL_SIM_BUILTIN_PARAMETER(thread_index_in_quadgroup, Q(lane.lane & 3))
METAL_SIM_BUILTIN_PARAMETER(simdgroup_index_in_threadgroup, Q(lane.simdgroup->index))
METAL_SIM_BUILTIN_PARAMETER(quadgroup_index_in_threadgroup, Q(lane.thread / 4))
METAL_SIM_BUILTIN_PARAMETER(simdgroups_per_threadgroup, Q(lane.threadgroup->simdgroup_count))
METAL_SIM_BUILTIN_PARAMETER(quadgroups_per_threadgroup, Q((lane.threadgroup->thread_count + 3) / 4))
METAL_SIM_BUILTIN_PARAMETER(dispatch_simdgroups_per_threadgroup, Q((volume(lane.threadgroup->dispatch_size) + 31) / 32))
METAL_SIM_BUILTIN_PARAMETER(dispatch_quadgroups_per_threadgroup, Q((volume(lane.threadgroup->dispatch_size) + 3) / 4))
METAL_SIM_BUILTIN_PARAMETER(threads_per_simdgroup, Q(simd_width))
METAL_SIM_BUILTIN_PARAMETER(thread_execution_width, Q(simd_width))

template <auto Function, class... Attribute> struct Entry;
template <class... P, void (*Function)(P...), class... Attribute> struct Entry<Function, Attribute...> {
  static_assert(sizeof...(P) == sizeof...(Attribute), "every kernel parameter needs an attribute");
  static void run(Lane& lane) { Function(Parameter<P, Attribute>::get(lane)...); }
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
