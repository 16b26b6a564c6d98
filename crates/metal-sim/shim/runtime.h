// What compiled kernels and the Rust runtime share. Every struct mirrors one in src/runtime/layout.rs; the
// loader compares the sizes in LibraryDescriptor before it runs anything.
#pragma once
#pragma clang system_header
#define METAL_SIM_INLINE inline __attribute__((always_inline))
#define METAL_SIM_ENTRY
#define METAL_SIM_FENCE() __atomic_thread_fence(__ATOMIC_SEQ_CST)
// How a loop is to be compiled. Here loops are left as they are: unrolled ones run no faster, and the compiler takes more
// than twice the time for them.
#define METAL_SIM_LOOP(DIRECTIVE)
// Functions of ours that look at the runtime's memory or let other threads run. With the sanitizer they are calls,
// so that the memory is not checked and the return address tells where in the source they were called.
#define METAL_SIM_UNCHECKED __attribute__((no_sanitize("thread", "alignment", "array-bounds")))
// Around functions of ours that are inlined into others: what they do is not to be checked again and again.
#define METAL_SIM_UNCHECKED_BEGIN \
  _Pragma("clang attribute push(__attribute__((no_sanitize(\"thread\", \"alignment\", \"array-bounds\"))), apply_to = function)")
#define METAL_SIM_UNCHECKED_END _Pragma("clang attribute pop")
#ifdef METAL_SIM_SANITIZE
#define METAL_SIM_OUTLINE inline METAL_SIM_UNCHECKED __attribute__((noinline, convergent, nomerge))
#else
#define METAL_SIM_OUTLINE METAL_SIM_INLINE
#endif

#include "types.h"

namespace metal_sim {

#ifdef METAL_SIM_SANITIZE
constexpr uint32_t abi_version = 3 + (1 << 16);
#else
constexpr uint32_t abi_version = 3;
#endif
constexpr size_t stack_size = 128 << 10;   // one fiber's stack, aligned to its size
constexpr size_t exchange_bytes = 32;      // the widest value that a SIMD-group operation passes
constexpr uint32_t simdgroup_barrier_bit = 1u << 31;
constexpr uint32_t matrix_tile_limit = 192;
constexpr uint32_t matrix_operation_limit = 192;

struct Threadgroup;
struct SimdGroup;
struct MatrixQueue;
struct Sanitizer;
struct SanitizerHooks;

// One Metal thread.
struct Lane {
  Threadgroup* threadgroup;
  SimdGroup* simdgroup;
  uint32_t lane;                // thread_index_in_simdgroup
  uint32_t thread;              // thread_index_in_threadgroup
  Uint3 position;               // thread_position_in_threadgroup
  uint32_t site;                // where it waits: line * 256 + column
  uint32_t barrier_flags;       // of the barrier it waits at; simdgroup_barrier adds simdgroup_barrier_bit
  uint32_t matrix_operations;   // queued since the last synchronisation
  uint32_t matrix_tiles;        // taken since the last synchronisation
  uint32_t stack;               // runtime: index of its stack
  void* stack_pointer;          // runtime: where it was switched out, null before it starts
  uint64_t place;               // with the sanitizer: the instruction behind the call that waits
  uint64_t silent_barriers;     // with the sanitizer: which barriers without memory flags it has passed
  uint64_t silent_place;        // and the instruction behind the call of the last one
};

// One SIMD-group: 32 lanes with consecutive thread indices.
struct SimdGroup {
  uint32_t members, finished;                // lane masks
  uint32_t runnable, waiting_simd, waiting_barrier;
  uint32_t generation;                       // counts completed SIMD-group operations
  uint32_t active;                           // lanes that took part in the last completed operation
  uint32_t site;                             // of the pending operation
  uint32_t sites_differ;                     // lanes wait at more than one site
  uint32_t combine_pending;                  // the next lane to resume completes the operation
  uint32_t index;                            // simdgroup_index_in_threadgroup
  Lane* lanes;
  MatrixQueue* matrix_queue;
  void (*matrix_flush)(SimdGroup*);          // set while matrix operations are queued
  uint64_t stamps[2];                        // sanitizer: when accesses of device and threadgroup memory happen
  alignas(64) unsigned char exchange[2][simd_width][exchange_bytes];
  alignas(64) unsigned char result[2][64];
};

// One threadgroup while it runs.
struct Threadgroup {
  Uint3 position;                   // threadgroup_position_in_grid
  Uint3 size;                       // threads_per_threadgroup: smaller at the edges of the grid
  Uint3 dispatch_size;              // dispatch_threads_per_threadgroup
  Uint3 threadgroups;               // threadgroups_per_grid
  Uint3 grid;                       // threads_per_grid
  uint32_t thread_count, simdgroup_count;
  void* const* buffers;             // by slot
  void* const* dynamic_memory;      // by slot
  const uint64_t* constants;        // function constants by index
  const uint8_t* constants_defined;
  void* worker;                     // runtime: what executes this threadgroup
  Sanitizer* sanitizer;             // null without it
};

// What the runtime offers to kernels.
struct Runtime {
  // Blocks until every lane that can take part has arrived; true for the lane that must combine the values.
  bool (*simd_arrive)(Lane*, uint32_t site);
  void (*threadgroup_barrier)(Lane*, uint32_t flags, uint32_t site);
  // Storage of a threadgroup variable, the same for all threads of a threadgroup.
  void* (*local_memory)(Lane*, const void* key, size_t size, size_t alignment);
  // Ends the dispatch with an error. Does not return.
  void (*fail)(Lane*, const char* reason);
};

struct KernelDescriptor {
  const char* name;
  void (*run)(Lane&);
  const ArgumentDescriptor* arguments;
  const char* const* argument_names;
  uint64_t optional;        // bit mask of the arguments that depend on a function constant
  uint32_t argument_count;
  uint32_t max_threads;     // max_total_threads_per_threadgroup, 0 if not given
};

struct ConstantDescriptor { const char* name; const char* type; uint32_t index; uint32_t size; };

struct LibraryDescriptor {
  uint32_t abi;
  uint32_t lane_size, simdgroup_size, threadgroup_size, queue_size;
  uint32_t kernel_count, constant_count;
  const KernelDescriptor* kernels;
  const ConstantDescriptor* constants;
};

extern const Runtime* runtime __attribute__((visibility("hidden")));

METAL_SIM_UNCHECKED_BEGIN
METAL_SIM_INLINE uintptr_t stack_pointer() {
  uintptr_t value;
#if defined(__x86_64__)
  asm("movq %%rsp, %0" : "=r"(value));
#elif defined(__aarch64__)
  asm("mov %0, sp" : "=r"(value));
#else
#error "unsupported host"
#endif
  return value;
}
// The lane whose stack this is: its address lies at the top of the stack.
METAL_SIM_INLINE Lane* current_lane() {
  return *reinterpret_cast<Lane* const*>((stack_pointer() | (stack_size - 1)) + 1 - sizeof(Lane*));
}
METAL_SIM_UNCHECKED_END

}  // namespace metal_sim
#define METAL_SIM_SITE uint32_t site = __builtin_LINE() * 256u + (__builtin_COLUMN() & 255u)
