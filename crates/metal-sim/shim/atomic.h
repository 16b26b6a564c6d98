// <metal_atomic>: atomics on 32-bit and 64-bit values, relaxed as in MSL.
#pragma once
#pragma clang system_header
#include "math.h"
#ifdef METAL_SIM_SANITIZE
#include "sanitizer.h"
#endif

namespace metal {
enum memory_order { memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst };
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8 };
METAL_SIM_INLINE constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }

template <class T> struct atomic { T value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<ulong> atomic_ulong;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
}  // namespace metal

namespace metal_sim {
enum AtomicAccess : uint32_t { atomic_read, atomic_write, atomic_read_and_write };
METAL_SIM_OUTLINE void note_atomic(const volatile void* address, size_t size, AtomicAccess access, metal::memory_order order) {
#ifdef METAL_SIM_SANITIZE
  Lane* lane = current_lane();
  lane->threadgroup->sanitizer->hooks->atomic_access(lane, uint64_t(address), size, access, order, METAL_SIM_PLACE);
#endif
}
// Read, change, write, until nobody came between.
template <class T, class F>
METAL_SIM_INLINE T atomic_update(volatile metal::atomic<T>* object, F change, metal::memory_order order) {
  note_atomic(object, sizeof(T), atomic_read_and_write, order);
  T old, updated;
  T* address = const_cast<T*>(&object->value);
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do updated = change(old);
  while (!__atomic_compare_exchange(address, &old, &updated, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
}  // namespace metal_sim

namespace metal {
#define METAL_SIM_ATOMIC_UPDATE(NAME, EXPRESSION)                                                             \
  template <class T> METAL_SIM_INLINE T atomic_fetch_##NAME##_explicit(                                       \
      volatile atomic<T>* object, type_identity_t<T> x, memory_order order) {                                 \
    return metal_sim::atomic_update(object, [=](T old) { return EXPRESSION; }, order);                        \
  }
METAL_SIM_ATOMIC_UPDATE(add, T(old + x))
METAL_SIM_ATOMIC_UPDATE(sub, T(old - x))
METAL_SIM_ATOMIC_UPDATE(min, x < old ? x : old)
METAL_SIM_ATOMIC_UPDATE(max, old < x ? x : old)
METAL_SIM_ATOMIC_UPDATE(and, T(old & x))
METAL_SIM_ATOMIC_UPDATE(or, T(old | x))
METAL_SIM_ATOMIC_UPDATE(xor, T(old ^ x))
// The forms without a result, which 64-bit values have alone.
template <class T> METAL_SIM_INLINE void atomic_min_explicit(volatile atomic<T>* object, type_identity_t<T> x, memory_order order) {
  atomic_fetch_min_explicit(object, x, order);
}
template <class T> METAL_SIM_INLINE void atomic_max_explicit(volatile atomic<T>* object, type_identity_t<T> x, memory_order order) {
  atomic_fetch_max_explicit(object, x, order);
}
template <class T>
METAL_SIM_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order order) {
  metal_sim::note_atomic(object, sizeof(T), metal_sim::atomic_read, order);
  T value;
  __atomic_load(const_cast<T*>(&object->value), &value, __ATOMIC_RELAXED);
  return value;
}
template <class T>
METAL_SIM_INLINE void atomic_store_explicit(volatile atomic<T>* object, type_identity_t<T> value, memory_order order) {
  metal_sim::note_atomic(object, sizeof(T), metal_sim::atomic_write, order);
  __atomic_store(const_cast<T*>(&object->value), &value, __ATOMIC_RELAXED);
}
template <class T> METAL_SIM_INLINE T atomic_exchange_explicit(volatile atomic<T>* object, type_identity_t<T> value, memory_order order) {
  return metal_sim::atomic_update(object, [=](T) { return value; }, order);
}
template <class T>
METAL_SIM_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected, type_identity_t<T> desired,
                                                            memory_order order, memory_order) {
  metal_sim::note_atomic(object, sizeof(T), metal_sim::atomic_read_and_write, order);
  return __atomic_compare_exchange(const_cast<T*>(&object->value), expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}
METAL_SIM_OUTLINE void atomic_thread_fence(mem_flags flags, memory_order order, thread_scope scope = thread_scope_device) {
#ifdef METAL_SIM_SANITIZE
  metal_sim::Lane* lane = metal_sim::current_lane();
  lane->threadgroup->sanitizer->hooks->fence(lane, uint32_t(flags), order, scope);
#endif
  METAL_SIM_FENCE();
}
}  // namespace metal
using metal::atomic_bool;
using metal::atomic_float;
using metal::atomic_int;
using metal::atomic_uint;
using metal::atomic_ulong;
