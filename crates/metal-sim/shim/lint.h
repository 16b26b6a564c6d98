// The shim for lint: the same library, with address spaces that the compiler keeps apart.
//
// A device, constant or threadgroup pointer converts to none of the other two. To a plain pointer, which is what `thread`
// means here, all of them convert: so the methods and operators of the shim's classes work on objects in every space,
// as those of MSL's built-in types do. Nothing is executed, so functions of the runtime need no bodies.
#pragma once
#pragma clang system_header
#include "builtins.h"
#include "simdgroup_matrix.h"

namespace metal_sim {
const Runtime* runtime;
template <class T, int Index> struct FunctionConstant : Components<T, FunctionConstant<T, Index>> { operator T() const; };
template <class T, int Index> bool is_defined(const FunctionConstant<T, Index>&);
template <int Id, class T> METAL_SIM_LINT_THREADGROUP T& local_memory();
}  // namespace metal_sim

#undef METAL_SIM_LOOP
#define METAL_SIM_LOOP(DIRECTIVE) _Pragma(DIRECTIVE)
#define is_function_constant_defined(NAME) metal_sim::is_defined(NAME)
#define kernel static
#define device METAL_SIM_LINT_DEVICE
#define thread
#define constant const METAL_SIM_LINT_CONSTANT
#define threadgroup METAL_SIM_LINT_THREADGROUP
#define METAL_SIM_THREADGROUP METAL_SIM_LINT_THREADGROUP
#define METAL_FUNC inline __attribute__((always_inline))
#define coherent(SCOPE)
