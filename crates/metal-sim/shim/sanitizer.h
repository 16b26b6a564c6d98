// The sanitizer inside compiled kernels: what clang's instrumentation calls before every access of memory.
//
// Bounds, the ring of the last accesses of each granule and the bits of written bytes are looked at here, since
// it happens at every access; whatever looks wrong goes to the runtime, which decides and reports. The structs
// mirror those in src/sanitize/layout.rs.
#pragma once
#pragma clang system_header
#include "runtime.h"

namespace metal_sim {

// What is known about one granule of memory: its last write and up to two reads, enough to find a conflict with
// any later write. A stamp is the run of a threadgroup (32 bits), the barriers passed by its threads (11), the
// SIMD-group (5), the barriers passed by the SIMD-group (11) and the lane (5).
struct ShadowCell {
  uint64_t write;
  uint64_t reads[2];
  uint32_t write_place;        // instruction, relative to the library
  uint32_t read_places[2];
  uint32_t flags;              // out of bounds, touched by atomics: for the runtime to look at
};
struct Shadow {
  ShadowCell* cells;
  uint64_t start;              // address of the first cell's granule
  uint32_t granule_shift;      // bytes of a granule as a power of two
};
enum RegionKind : uint32_t { region_device, region_threadgroup, region_ignored };
struct Region {
  uint64_t start, length;
  const Shadow* shadow;        // null where no one writes before the next barrier between dispatches
  unsigned char* written;      // a bit for each byte of the memory; null where all is written
  uint64_t memory_start;       // address of the first of these bytes
  RegionKind kind;
  uint32_t number;             // its index
};
struct SanitizerHooks;
struct Sanitizer {
  const Region* regions;
  const SanitizerHooks* hooks;
  uint64_t unordered_from[2];  // by kind of region: stamps of other runs from here on may be unordered
  int64_t steps;               // left
  uint64_t library;            // what places are relative to
  uint64_t last_end, last_place;  // of the last read: the components of a vector come one after the other
  const Lane* last_lane;
  unsigned char region_of_place[1024];
};

struct SanitizerHooks {
  // The region of an access; does not return where there is none.
  const Region* (*find)(Lane*, uint64_t address, uint64_t size, uint32_t writes, uint64_t place);
  // Makes granules small enough for the access.
  void (*refine)(Lane*, const Region*, uint64_t address, uint64_t size);
  // The access may be unordered with what the cell tells: its write (0) or one of its reads (1, 2).
  void (*conflict)(Lane*, const Region*, uint64_t address, uint64_t size, uint32_t writes, uint64_t place, const ShadowCell*, uint32_t which);
  // The cell has flags.
  void (*flagged)(Lane*, const Region*, uint64_t address, uint64_t size, uint32_t writes, uint64_t place, ShadowCell*);
  void (*unwritten)(Lane*, const Region*, uint64_t address, uint64_t size, uint64_t place);
  void (*out_of_steps)(Lane*, uint64_t place);
  void (*misaligned)(Lane*, const char* type, uint64_t address, uint64_t alignment, uint32_t writes, uint64_t place);
  void (*bad_index)(Lane*, const char* type, uint64_t index, uint64_t place);
  void (*atomic_access)(Lane*, uint64_t address, uint64_t size, uint32_t access, uint32_t order, uint64_t place);
  void (*fence)(Lane*, uint32_t flags, uint32_t order, uint32_t scope);
};

#define METAL_SIM_PLACE uint64_t(__builtin_return_address(0))
METAL_SIM_UNCHECKED_BEGIN

METAL_SIM_INLINE bool is_on_own_stack(uint64_t address) {
  return ((address ^ stack_pointer()) & ~uint64_t(stack_size - 1)) == 0;
}
METAL_SIM_INLINE bool may_be_unordered(uint64_t earlier, uint64_t stamp, uint64_t from) {
  uint64_t difference = earlier ^ stamp;
  if (difference >> 32) return earlier >= from;
  // Another lane since the same barriers, or another SIMD-group since the same barrier of the threadgroup.
  return difference - 1 < 31 || difference - (1u << 16) < (1u << 21) - (1u << 16);
}

// Keeps two reads so that every write that is unordered with a dropped one is unordered with one that is kept:
// of two SIMD-groups if there are two, else of two lanes. Threadgroups run one after the other, so that a read
// of an earlier one does for all writes to come.
METAL_SIM_INLINE void record_read(ShadowCell* cell, uint64_t stamp, uint64_t from, uint32_t place) {
  uint64_t first = cell->reads[0], second = cell->reads[1];
  if (first == stamp || second == stamp) return;
  uint64_t difference = first ^ stamp;
  bool second_is_valid = (second ^ stamp) >> 21 == 0;
  int slot;
  if (first < from || (difference >> 21 && difference >> 32 == 0)) slot = 0;   // ordered before everything to come
  else if (difference >> 32) slot = 1;
  else if (difference >> 16) {
    if (second_is_valid && (first ^ second) >> 16 && (second ^ stamp) >> 16) return;
    slot = 1;
  } else if (difference >> 5) slot = 0;
  else if (second_is_valid && (second ^ stamp) >> 16) return;
  else slot = 1;
  cell->reads[slot] = stamp;
  cell->read_places[slot] = place;
}

template <bool writes> void look_closely(Lane* lane, uint64_t address, uint64_t size, uint64_t place);

// The granules of an access of at most 16 bytes that lies inside of the region.
template <bool writes> __attribute__((noinline)) void check_granules(Lane* lane, const Region* region, uint64_t address, uint64_t size, uint64_t place) {
  Sanitizer* sanitizer = lane->threadgroup->sanitizer;
  const Shadow* shadow = region->shadow;
  uint64_t start = address - shadow->start;
  uint32_t shift = shadow->granule_shift;
  if ((start | size) & ((1u << shift) - 1)) return look_closely<writes>(lane, address, size, place);
  uint64_t stamp = lane->simdgroup->stamps[region->kind] | lane->lane, from = sanitizer->unordered_from[region->kind];
  uint32_t relative = uint32_t(place - sanitizer->library);
  ShadowCell* cell = shadow->cells + (start >> shift);
  for (ShadowCell* end = cell + (size >> shift); cell < end; cell++) {
    if (cell->flags || may_be_unordered(cell->write, stamp, from)) return look_closely<writes>(lane, address, size, place);
    if (writes) {
      if (may_be_unordered(cell->reads[0], stamp, from) || may_be_unordered(cell->reads[1], stamp, from))
        return look_closely<writes>(lane, address, size, place);
      cell->write = stamp;
      cell->write_place = relative;
    } else {
      if (region->kind == region_threadgroup && cell->write < from) return look_closely<writes>(lane, address, size, place);
      record_read(cell, stamp, from, relative);
    }
  }
  if (!writes) {
    sanitizer->last_end = address + size;
    sanitizer->last_place = place;
    sanitizer->last_lane = lane;
  }
}

// What most accesses need, in few instructions.
template <bool writes> METAL_SIM_INLINE void check_small_access(Lane* lane, Sanitizer* sanitizer, uint64_t address, uint64_t size, uint64_t place) {
  const Region* region = sanitizer->regions + sanitizer->region_of_place[(place ^ place >> 10) & 1023];
  uint64_t offset = address - region->start;
  if (offset >= region->length || size > region->length - offset) return look_closely<writes>(lane, address, size, place);
  if (region->kind == region_ignored) return;
  if (unsigned char* written = region->written) {
    uint64_t byte = address - region->memory_start;
    uint32_t bits, mask = ((1u << size) - 1) << byte % 8;
    __builtin_memcpy(&bits, written + byte / 8, sizeof bits);
    if ((bits & mask) != mask) {
      if (!writes) return look_closely<writes>(lane, address, size, place);
      bits |= mask;
      __builtin_memcpy(written + byte / 8, &bits, sizeof bits);
    }
    if (!writes && !region->shadow) {
      sanitizer->last_end = address + size;
      sanitizer->last_place = place;
      sanitizer->last_lane = lane;
    }
  }
  if (region->shadow) check_granules<writes>(lane, region, address, size, place);
}

// The same with everything that can be wrong. What the first look has noted already is this access itself.
template <bool writes> __attribute__((noinline)) void look_closely(Lane* lane, uint64_t address, uint64_t size, uint64_t place) {
  Sanitizer* sanitizer = lane->threadgroup->sanitizer;
  const SanitizerHooks* hooks = sanitizer->hooks;
  if (sanitizer->steps < 0) hooks->out_of_steps(lane, place);
  const Region* region = hooks->find(lane, address, size, writes, place);
  sanitizer->region_of_place[(place ^ place >> 10) & 1023] = (unsigned char)region->number;
  if (region->kind == region_ignored) return;
  // The next component of a vector.
  bool follows = !writes && address == sanitizer->last_end && lane == sanitizer->last_lane && place - sanitizer->last_place < 64 && address % 16;
  if (!writes) {
    sanitizer->last_end = address + size;
    sanitizer->last_place = place;
    sanitizer->last_lane = lane;
  }
  if (region->written) {
    uint64_t first = address - region->memory_start, count = 0;
    for (uint64_t byte = first; byte < first + size; byte++) {
      count += region->written[byte / 8] >> byte % 8 & 1;
      if (writes) region->written[byte / 8] |= 1 << byte % 8;
    }
    if (!writes && count < size && (size <= 4 || !count) && !follows) hooks->unwritten(lane, region, address, size, place);
  }
  const Shadow* shadow = region->shadow;
  if (!shadow) return;
  uint64_t start = address - shadow->start;
  if ((start | size) & ((1u << shadow->granule_shift) - 1)) hooks->refine(lane, region, address, size);
  uint32_t shift = shadow->granule_shift, relative = uint32_t(place - sanitizer->library);
  ShadowCell* cell = shadow->cells + (start >> shift);
  uint64_t count = size >> shift, unwritten = 0;
  uint64_t stamp = lane->simdgroup->stamps[region->kind] | lane->lane, from = sanitizer->unordered_from[region->kind];
  for (uint64_t i = 0; i < count; i++, cell++) {
    if (cell->flags) hooks->flagged(lane, region, address + (i << shift), 1u << shift, writes, place, cell);
    if (may_be_unordered(cell->write, stamp, from)) hooks->conflict(lane, region, address, size, writes, place, cell, 0);
    if (writes) {
      for (uint32_t k = 0; k < 2; k++)
        if (may_be_unordered(cell->reads[k], stamp, from)) hooks->conflict(lane, region, address, size, writes, place, cell, 1 + k);
      cell->write = stamp;
      cell->write_place = relative;
    } else {
      if (region->kind == region_threadgroup) unwritten += cell->write < from;
      record_read(cell, stamp, from, relative);
    }
  }
  if (unwritten && (size <= 4 || unwritten == count) && !follows) hooks->unwritten(lane, region, address, size, place);
}

template <bool writes> METAL_SIM_INLINE void check_access(const void* pointer, uint64_t size, uint64_t place) {
  uint64_t address = uint64_t(pointer);
  if (is_on_own_stack(address)) return;
  // Constants that are computed when the library is loaded, on no fiber's stack.
  if (__builtin_expect(!runtime, 0)) return;
  Lane* lane = current_lane();
  Sanitizer* sanitizer = lane->threadgroup->sanitizer;
  if (__builtin_expect(--sanitizer->steps >= 0 && size <= 16, 1)) return check_small_access<writes>(lane, sanitizer, address, size, place);
  look_closely<writes>(lane, address, size, place);
}
}  // namespace metal_sim

// The names that clang calls. They are used by no source, hence `used`.
#define METAL_SIM_CALLBACK extern "C" __attribute__((used, visibility("hidden")))
#define METAL_SIM_CALLBACKS(SIZE, PREFIX)                                                                                   \
  METAL_SIM_CALLBACK void __tsan_##PREFIX##read##SIZE(void* p) { metal_sim::check_access<false>(p, SIZE, METAL_SIM_PLACE); } \
  METAL_SIM_CALLBACK void __tsan_##PREFIX##write##SIZE(void* p) { metal_sim::check_access<true>(p, SIZE, METAL_SIM_PLACE); }
METAL_SIM_CALLBACKS(1, )
METAL_SIM_CALLBACKS(2, )
METAL_SIM_CALLBACKS(4, )
METAL_SIM_CALLBACKS(8, )
METAL_SIM_CALLBACKS(16, )
METAL_SIM_CALLBACKS(2, unaligned_)
METAL_SIM_CALLBACKS(4, unaligned_)
METAL_SIM_CALLBACKS(8, unaligned_)
METAL_SIM_CALLBACKS(16, unaligned_)
METAL_SIM_CALLBACK void __tsan_init() {}
METAL_SIM_CALLBACK void* __tsan_memcpy(void* to, const void* from, size_t size) {
  if (size) {
    metal_sim::check_access<false>(from, size, METAL_SIM_PLACE);
    metal_sim::check_access<true>(to, size, METAL_SIM_PLACE);
  }
  return __builtin_memmove(to, from, size);
}
METAL_SIM_CALLBACK void* __tsan_memmove(void* to, const void* from, size_t size) {
  if (size) {
    metal_sim::check_access<false>(from, size, METAL_SIM_PLACE);
    metal_sim::check_access<true>(to, size, METAL_SIM_PLACE);
  }
  return __builtin_memmove(to, from, size);
}
METAL_SIM_CALLBACK void* __tsan_memset(void* to, int value, size_t size) {
  if (size) metal_sim::check_access<true>(to, size, METAL_SIM_PLACE);
  return __builtin_memset(to, value, size);
}

// What clang's checks of alignment and of array indices pass on (the layout is that of UBSan's handlers).
namespace metal_sim {
struct SourceLocation { const char* file; uint32_t line, column; };
struct TypeDescriptor { uint16_t kind, info; char name[1]; };
struct TypeMismatch { SourceLocation location; const TypeDescriptor* type; unsigned char log_alignment, check; };
struct OutOfBounds { SourceLocation location; const TypeDescriptor *array, *index; };
}  // namespace metal_sim
METAL_SIM_CALLBACK void __ubsan_handle_type_mismatch_v1(const metal_sim::TypeMismatch* data, uint64_t address) {
  metal_sim::Lane* lane = metal_sim::current_lane();
  lane->threadgroup->sanitizer->hooks->misaligned(lane, data->type->name, address, uint64_t(1) << data->log_alignment, data->check == 1,
                                                  METAL_SIM_PLACE);
}
METAL_SIM_CALLBACK void __ubsan_handle_out_of_bounds(const metal_sim::OutOfBounds* data, uint64_t index) {
  metal_sim::Lane* lane = metal_sim::current_lane();
  lane->threadgroup->sanitizer->hooks->bad_index(lane, data->array->name, index, METAL_SIM_PLACE);
}
METAL_SIM_UNCHECKED_END
