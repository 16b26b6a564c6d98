// Names of types that every header needs, whatever executes the kernels.
#pragma once
#pragma clang system_header

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef unsigned long uintptr_t;
typedef long intptr_t;
typedef _Float16 half;
typedef __bf16 bfloat;

// Sources that use no namespace as a whole name these through it.
namespace metal {
using ::uchar; using ::ushort; using ::uint; using ::ulong; using ::half; using ::bfloat;
using ::int8_t; using ::uint8_t; using ::int16_t; using ::uint16_t; using ::int32_t; using ::uint32_t;
using ::int64_t; using ::uint64_t; using ::size_t; using ::ptrdiff_t; using ::uintptr_t; using ::intptr_t;
}  // namespace metal

namespace metal_sim {
constexpr uint32_t simd_width = 32;
struct Uint3 { uint32_t x, y, z; };
__attribute__((always_inline)) inline uint32_t volume(Uint3 size) { return size.x * size.y * size.z; }

enum ArgumentKind : uint32_t { argument_buffer, argument_threadgroup, argument_builtin };

struct ArgumentDescriptor {
  ArgumentKind kind;
  uint32_t slot;
  uint32_t read_only;
  uint32_t reference;       // the whole object must be bound
  uint64_t size, alignment; // of the pointed-to type
};
}  // namespace metal_sim
