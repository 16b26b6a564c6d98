// Vector, packed vector and matrix types with the conversions and operators of MSL.
//
// The scanner defines METAL_SIM_SWIZZLES_2, _3 and _4: the multi-component swizzles that the source uses.
#pragma once
#pragma clang system_header
#include "type_traits.h"

namespace metal {
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
template <class T, int Columns, int Rows> struct matrix;
}  // namespace metal

namespace metal_sim {
using metal::decay_t;
using metal::enable_if_t;
using metal::is_same_v;
using metal::vec;

template <class To, class From> METAL_SIM_INLINE constexpr To convert(From value) {
  if constexpr (is_same_v<To, From>) return value;
  else if constexpr (is_same_v<To, bool>) return value != From(0);
  else if constexpr (is_same_v<From, bfloat> || is_same_v<To, bfloat>) return To(float(value));
  else return To(value);
}

}  // namespace metal_sim

namespace metal {
template <int... Index> struct Picked { static constexpr int count = sizeof...(Index); };
// Components of a vector picked by name: `v.zyx`. Lives in a union with the vector's components.
template <class T, int Width, int... Index> struct Swizzle {
  T components[Width];
  static constexpr int count = sizeof...(Index);
  using Vector = vec<T, count>;
  METAL_SIM_INLINE Vector get() const {
    Vector result;
    int next = 0;
    ((result.components[next++] = components[Index]), ...);
    return result;
  }
  METAL_SIM_INLINE operator Vector() const { return get(); }
  METAL_SIM_INLINE Swizzle& operator=(const Vector& value) {
    Vector copy = value;
    int next = 0;
    ((components[Index] = copy.components[next++]), ...);
    return *this;
  }
  Swizzle() = default;
  Swizzle(const Swizzle&) = default;
  METAL_SIM_INLINE Swizzle& operator=(const Swizzle& other) { return *this = other.get(); }
  template <class S, class = enable_if_t<metal::is_scalar_v<S>>> METAL_SIM_INLINE Swizzle& operator=(S value) {
    return *this = Vector(value);
  }
  template <class O> METAL_SIM_INLINE Swizzle& operator+=(const O& o) { return *this = get() + o; }
  template <class O> METAL_SIM_INLINE Swizzle& operator-=(const O& o) { return *this = get() - o; }
  template <class O> METAL_SIM_INLINE Swizzle& operator*=(const O& o) { return *this = get() * o; }
  template <class O> METAL_SIM_INLINE Swizzle& operator/=(const O& o) { return *this = get() / o; }
  METAL_SIM_INLINE T operator[](int i) const { return get().components[i]; }
  // Components of the components, to be read: `v.zyx.x`.
#define METAL_SIM_COMPONENT(INDEX, NAME, COLOUR)                                                             \
  __declspec(property(get = component_##INDEX)) T NAME;                                                      \
  __declspec(property(get = component_##INDEX)) T COLOUR;                                                    \
  METAL_SIM_INLINE T component_##INDEX() const {                                                             \
    static_assert(INDEX < count, "the vector has fewer components");                                         \
    return (*this)[INDEX];                                                                                   \
  }
  METAL_SIM_COMPONENT(0, x, r)
  METAL_SIM_COMPONENT(1, y, g)
  METAL_SIM_COMPONENT(2, z, b)
  METAL_SIM_COMPONENT(3, w, a)
#undef METAL_SIM_COMPONENT
#define METAL_SIM_SWIZZLE(WIDTH, NAME, ...)                                                                  \
  __declspec(property(get = swizzle_##NAME)) vec<T, Picked<__VA_ARGS__>::count> NAME;                        \
  METAL_SIM_INLINE vec<T, Picked<__VA_ARGS__>::count> swizzle_##NAME() const { return get().NAME; }
  METAL_SIM_SWIZZLES_4
#undef METAL_SIM_SWIZZLE
};

}  // namespace metal

namespace metal_sim {
// A constant that is computed on each use, and its type.
template <class T> struct LaunchConstant { using constant_type = T; };
// Picks components off one: for vectors, members that ask for the value.
template <class T, class Constant> struct Components : LaunchConstant<T> {};
template <class T, int N, class Constant> struct Components<vec<T, N>, Constant> : LaunchConstant<vec<T, N>> {
#define METAL_SIM_COMPONENT(INDEX, NAME, COLOUR)                                                             \
  __declspec(property(get = component_##INDEX)) T NAME;                                                      \
  __declspec(property(get = component_##INDEX)) T COLOUR;                                                    \
  METAL_SIM_INLINE T component_##INDEX() const { return (*this)[INDEX]; }
  METAL_SIM_COMPONENT(0, x, r)
  METAL_SIM_COMPONENT(1, y, g)
  METAL_SIM_COMPONENT(2, z, b)
  METAL_SIM_COMPONENT(3, w, a)
#undef METAL_SIM_COMPONENT
  METAL_SIM_INLINE T operator[](int i) const { return vec<T, N>(static_cast<const Constant&>(*this))[i]; }
};

// static_cast, except that it also converts between half and bfloat, which clang refuses to do.
template <class To, class From> METAL_SIM_INLINE constexpr To static_conversion(From&& value) {
  if constexpr (metal::is_arithmetic_v<To> && metal::is_arithmetic_v<decay_t<From>>) return convert<To, decay_t<From>>(value);
  else return static_cast<To>(static_cast<From&&>(value));
}

// What an expression is as a vector: vectors, packed vectors and swizzles mix in operators.
template <class T> struct VectorInfo { static constexpr bool is_vector = false; };
template <class T, int N> struct VectorInfo<vec<T, N>> {
  static constexpr bool is_vector = true;
  static constexpr int count = N;
  using Element = T;
  using Vector = vec<T, N>;
};
template <class T, int N> struct VectorInfo<metal::packed_vec<T, N>> : VectorInfo<vec<T, N>> {};
template <class T, int Width, int... I> struct VectorInfo<metal::Swizzle<T, Width, I...>>
    : VectorInfo<vec<T, sizeof...(I)>> {};
template <class T> using Info = VectorInfo<decay_t<T>>;
template <class T> constexpr bool is_vector = Info<T>::is_vector;
template <class T> constexpr bool is_scalar = metal::is_scalar_v<decay_t<T>>;
template <class T> using VectorOf = typename Info<T>::Vector;
// Plain type of a value that may be a swizzle.
template <class T> METAL_SIM_INLINE auto plain(const T& value) {
  if constexpr (is_vector<T>) return VectorOf<T>(value);
  else return value;
}
template <class T> using ElementOf = typename Info<T>::Element;

// The type of a launch constant's value, and that of any other operand.
template <class A, class = void> struct OperandOf { static constexpr bool is_constant = false; using Type = decay_t<A>; };
template <class A> struct OperandOf<A, void_t<typename A::constant_type>> {
  static constexpr bool is_constant = true;
  using Type = typename A::constant_type;
};
// Launch constants convert to their types, which is enough for the operators of the compiler, and for no others: those
// of vectors and of narrow floating point.
template <class A> constexpr bool is_narrow_or_vector =
    is_same_v<typename OperandOf<A>::Type, half> || is_same_v<typename OperandOf<A>::Type, bfloat> || is_vector<typename OperandOf<A>::Type>;
template <class A> constexpr bool is_constant_number = OperandOf<A>::is_constant && !is_vector<typename OperandOf<A>::Type>;
template <class A, class B> constexpr bool needs_value =
    (OperandOf<A>::is_constant || OperandOf<B>::is_constant) && (is_narrow_or_vector<A> || is_narrow_or_vector<B>);
#define METAL_SIM_CONSTANT_OPERATOR(OP)                                                                      \
  template <class A, class B, enable_if_t<needs_value<A, B>, int> = 0>                                       \
  METAL_SIM_INLINE auto operator OP(const A& a, const B& b) {                                                \
    return static_cast<typename OperandOf<A>::Type>(a) OP static_cast<typename OperandOf<B>::Type>(b);       \
  }
#define METAL_SIM_CONSTANT_ASSIGNMENT(OP)                                                                    \
  METAL_SIM_CONSTANT_OPERATOR(OP)                                                                            \
  template <class A, class B, enable_if_t<OperandOf<B>::is_constant && is_narrow_or_vector<A>, int> = 0>     \
  METAL_SIM_INLINE A& operator OP##=(A& a, const B& b) { return a = A(a OP b); }
METAL_SIM_CONSTANT_ASSIGNMENT(+)
METAL_SIM_CONSTANT_ASSIGNMENT(-)
METAL_SIM_CONSTANT_ASSIGNMENT(*)
METAL_SIM_CONSTANT_ASSIGNMENT(/)
METAL_SIM_CONSTANT_OPERATOR(<)
METAL_SIM_CONSTANT_OPERATOR(>)
METAL_SIM_CONSTANT_OPERATOR(<=)
METAL_SIM_CONSTANT_OPERATOR(>=)
METAL_SIM_CONSTANT_OPERATOR(==)
METAL_SIM_CONSTANT_OPERATOR(!=)
template <class A, enable_if_t<OperandOf<A>::is_constant && is_narrow_or_vector<A>, int> = 0>
METAL_SIM_INLINE auto operator-(const A& a) { return -static_cast<typename OperandOf<A>::Type>(a); }
}  // namespace metal_sim

namespace metal {
#define METAL_SIM_VECTOR_MEMBERS(N)                                                                          \
  using element_type = T;                                                                                    \
  vec() = default;                                                                                           \
  vec(const vec&) = default;                                                                                 \
  METAL_SIM_INLINE vec& operator=(const vec& other) {                                                        \
    __builtin_memcpy((void*)this, &other, sizeof(vec));                                                      \
    return *this;                                                                                            \
  }                                                                                                          \
  template <class S, class = enable_if_t<is_scalar_v<S>>> METAL_SIM_INLINE constexpr vec(S value) : components{} { \
    for (int i = 0; i < N; i++) components[i] = metal_sim::convert<T>(value);                                \
  }                                                                                                          \
  template <class S, enable_if_t<metal_sim::is_constant_number<S>, int> = 0>                                 \
  METAL_SIM_INLINE vec(const S& value) : vec(static_cast<typename metal_sim::OperandOf<S>::Type>(value)) {}  \
  template <class U, class = enable_if_t<!is_same_v<U, T>>> explicit METAL_SIM_INLINE constexpr vec(const vec<U, N>& o) : components{} { \
    for (int i = 0; i < N; i++) components[i] = metal_sim::convert<T>(o.components[i]);                      \
  }                                                                                                          \
  METAL_SIM_INLINE constexpr vec(const packed_vec<T, N>& o) : components{} { \
    for (int i = 0; i < N; i++) components[i] = o.components[i];                                             \
  }                                                                                                          \
  template <class U, class = enable_if_t<!is_same_v<U, T>>>                                                  \
  explicit METAL_SIM_INLINE vec(const packed_vec<U, N>& o) {                                                 \
    for (int i = 0; i < N; i++) components[i] = metal_sim::convert<T>(o.components[i]);                      \
  }                                                                                                          \
  template <class U, int W, int... I, class = enable_if_t<!is_same_v<U, T> && sizeof...(I) == N>>            \
  explicit METAL_SIM_INLINE vec(const Swizzle<U, W, I...>& o) : vec(o.get()) {}                   \
  template <class A, class B, class... R> METAL_SIM_INLINE constexpr vec(const A& a, const B& b, const R&... rest) : components{} { \
    /* A list in braces may be shorter; what it leaves out is zero. */ static_assert(total<A, B, R...>() <= N, "too many vector components");   \
    int next = 0;                                                                                            \
    append(next, a);                                                                                         \
    append(next, b);                                                                                         \
    (append(next, rest), ...);                                                                               \
  }                                                                                                          \
  template <class A> static constexpr int parts() {                                                          \
    if constexpr (metal_sim::is_vector<A>) return metal_sim::Info<A>::count;                                 \
    else return 1;                                                                                           \
  }                                                                                                          \
  template <class... A> static constexpr int total() { return (0 + ... + parts<A>()); }                      \
  template <class A> METAL_SIM_INLINE constexpr void append(int& next, const A& part) {                                \
    if constexpr (metal_sim::is_vector<A>) {                                                                 \
      for (int i = 0; i < metal_sim::Info<A>::count; i++)                                                    \
        components[next++] = metal_sim::convert<T>(metal_sim::ElementOf<A>(part[i]));                        \
    } else if constexpr (is_scalar_v<A>) components[next++] = metal_sim::convert<T>(part);                   \
    else components[next++] = T(part);                                                                       \
  }                                                                                                          \
  METAL_SIM_INLINE constexpr T& operator[](int i) { return components[i]; }                                  \
  METAL_SIM_INLINE constexpr const T& operator[](int i) const { return components[i]; }

#define METAL_SIM_SWIZZLE(WIDTH, NAME, ...) Swizzle<T, WIDTH, __VA_ARGS__> NAME;
template <class T> struct vec<T, 1> {
  T components[1];
  METAL_SIM_INLINE vec() = default;
  METAL_SIM_INLINE vec(T value) : components{value} {}
  METAL_SIM_INLINE T& operator[](int i) { return components[i]; }
  METAL_SIM_INLINE const T& operator[](int i) const { return components[i]; }
};
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  union {
    T components[2];
    struct { T x, y; };
    struct { T r, g; };
    METAL_SIM_SWIZZLES_2
  };
  METAL_SIM_VECTOR_MEMBERS(2)
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  union {
    T components[3];
    struct { T x, y, z; };
    struct { T r, g, b; };
    METAL_SIM_SWIZZLES_3
  };
  METAL_SIM_VECTOR_MEMBERS(3)
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  union {
    T components[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    METAL_SIM_SWIZZLES_4
  };
  METAL_SIM_VECTOR_MEMBERS(4)
};

// A vector with the alignment of its element.
template <class T> struct PackedComponents2 { union { T components[2]; struct { T x, y; }; struct { T r, g; }; METAL_SIM_SWIZZLES_2 }; };
template <class T> struct PackedComponents3 { union { T components[3]; struct { T x, y, z; }; struct { T r, g, b; }; METAL_SIM_SWIZZLES_3 }; };
template <class T> struct PackedComponents4 { union { T components[4]; struct { T x, y, z, w; }; struct { T r, g, b, a; }; METAL_SIM_SWIZZLES_4 }; };
template <class T, int N>
using PackedComponents = conditional_t<N == 2, PackedComponents2<T>, conditional_t<N == 3, PackedComponents3<T>, PackedComponents4<T>>>;
template <class T, int N> struct packed_vec : PackedComponents<T, N> {
  packed_vec() = default;
  packed_vec(const packed_vec&) = default;
  METAL_SIM_INLINE packed_vec& operator=(const packed_vec& other) {
    __builtin_memcpy((void*)this, &other, sizeof(packed_vec));
    return *this;
  }
  METAL_SIM_INLINE packed_vec(const vec<T, N>& value) {
    for (int i = 0; i < N; i++) this->components[i] = value.components[i];
  }
  template <int Width, int... I, class = enable_if_t<sizeof...(I) == N>>
  METAL_SIM_INLINE packed_vec(const Swizzle<T, Width, I...>& value) : packed_vec(value.get()) {}
  template <class U, class = enable_if_t<!is_same_v<U, T>>> explicit METAL_SIM_INLINE packed_vec(const vec<U, N>& value)
      : packed_vec(vec<T, N>(value)) {}
  template <class S, class = enable_if_t<is_scalar_v<S>>> METAL_SIM_INLINE packed_vec(S value)
      : packed_vec(vec<T, N>(value)) {}
  template <class A, class B, class... R> METAL_SIM_INLINE packed_vec(const A& a, const B& b, const R&... rest)
      : packed_vec(vec<T, N>(a, b, rest...)) {}
  METAL_SIM_INLINE T& operator[](int i) { return this->components[i]; }
  METAL_SIM_INLINE const T& operator[](int i) const { return this->components[i]; }
};

// Operators: vector with vector of the same type, or with a scalar that is converted to the element type.
#define METAL_SIM_OPERATOR_CHECKS(A, B)                                                                     \
  static_assert(metal_sim::Info<A>::count == metal_sim::Info<B>::count, "vectors of different sizes");     \
  static_assert(is_same_v<metal_sim::ElementOf<A>, metal_sim::ElementOf<B>>,                               \
                "vectors of different element types need an explicit conversion");
#define METAL_SIM_BINARY_OPERATOR(RESULT, OP)                                                               \
  template <class A, class B, enable_if_t<metal_sim::is_vector<A> && metal_sim::is_vector<B>, int> = 0>     \
  METAL_SIM_INLINE auto operator OP(const A& left, const B& right) {                                        \
    METAL_SIM_OPERATOR_CHECKS(A, B)                                                                         \
    using V = metal_sim::VectorOf<A>;                                                                       \
    using E = metal_sim::ElementOf<A>;                                                                      \
    constexpr int N = metal_sim::Info<A>::count;                                                            \
    V a = left, b = right;                                                                                  \
    vec<RESULT, N> result;                                                                                  \
    for (int i = 0; i < N; i++) result.components[i] = RESULT(a.components[i] OP b.components[i]);          \
    return result;                                                                                          \
  }                                                                                                         \
  template <class A, class B, enable_if_t<metal_sim::is_vector<A> && metal_sim::is_scalar<B>, int> = 0>     \
  METAL_SIM_INLINE auto operator OP(const A& left, B right) {                                               \
    return metal_sim::VectorOf<A>(left) OP metal_sim::VectorOf<A>(right);                                   \
  }                                                                                                         \
  template <class A, class B, enable_if_t<metal_sim::is_scalar<A> && metal_sim::is_vector<B>, int> = 0>     \
  METAL_SIM_INLINE auto operator OP(A left, const B& right) {                                               \
    return metal_sim::VectorOf<B>(left) OP metal_sim::VectorOf<B>(right);                                   \
  }
#define METAL_SIM_ARITHMETIC_OPERATOR(OP)                                                                   \
  METAL_SIM_BINARY_OPERATOR(E, OP)                                                                          \
  template <class T, int N, class B, enable_if_t<metal_sim::is_vector<B> || metal_sim::is_scalar<B>, int> = 0> \
  METAL_SIM_INLINE vec<T, N>& operator OP##=(vec<T, N>& left, const B& right) {                             \
    return left = left OP right;                                                                            \
  }                                                                                                         \
  template <class T, int N, class B, enable_if_t<metal_sim::is_vector<B> || metal_sim::is_scalar<B>, int> = 0> \
  METAL_SIM_INLINE packed_vec<T, N>& operator OP##=(packed_vec<T, N>& left, const B& right) {               \
    return left = left OP right;                                                                            \
  }
METAL_SIM_ARITHMETIC_OPERATOR(+)
METAL_SIM_ARITHMETIC_OPERATOR(-)
METAL_SIM_ARITHMETIC_OPERATOR(*)
METAL_SIM_ARITHMETIC_OPERATOR(/)
METAL_SIM_ARITHMETIC_OPERATOR(%)
METAL_SIM_ARITHMETIC_OPERATOR(&)
METAL_SIM_ARITHMETIC_OPERATOR(|)
METAL_SIM_ARITHMETIC_OPERATOR(^)
METAL_SIM_ARITHMETIC_OPERATOR(<<)
METAL_SIM_ARITHMETIC_OPERATOR(>>)
METAL_SIM_BINARY_OPERATOR(bool, <)
METAL_SIM_BINARY_OPERATOR(bool, >)
METAL_SIM_BINARY_OPERATOR(bool, <=)
METAL_SIM_BINARY_OPERATOR(bool, >=)
METAL_SIM_BINARY_OPERATOR(bool, ==)
METAL_SIM_BINARY_OPERATOR(bool, !=)
METAL_SIM_BINARY_OPERATOR(bool, &&)
METAL_SIM_BINARY_OPERATOR(bool, ||)
#define METAL_SIM_UNARY_OPERATOR(RESULT, OP)                                                                \
  template <class A, enable_if_t<metal_sim::is_vector<A>, int> = 0>                                         \
  METAL_SIM_INLINE auto operator OP(const A& operand) {                                                     \
    using E = metal_sim::ElementOf<A>;                                                                      \
    metal_sim::VectorOf<A> a = operand;                                                                     \
    vec<RESULT, metal_sim::Info<A>::count> result;                                                          \
    for (int i = 0; i < metal_sim::Info<A>::count; i++) result.components[i] = RESULT(OP a.components[i]);  \
    return result;                                                                                          \
  }
METAL_SIM_UNARY_OPERATOR(E, +)
METAL_SIM_UNARY_OPERATOR(E, -)
METAL_SIM_UNARY_OPERATOR(E, ~)
METAL_SIM_UNARY_OPERATOR(bool, !)
template <class T, int N> METAL_SIM_INLINE vec<T, N>& operator++(vec<T, N>& v) { return v += T(1); }
template <class T, int N> METAL_SIM_INLINE vec<T, N>& operator--(vec<T, N>& v) { return v -= T(1); }
template <class T, int N> METAL_SIM_INLINE vec<T, N> operator++(vec<T, N>& v, int) { auto old = v; v += T(1); return old; }
template <class T, int N> METAL_SIM_INLINE vec<T, N> operator--(vec<T, N>& v, int) { auto old = v; v -= T(1); return old; }

// Matrices are arrays of columns.
template <class T, int Columns, int Rows> struct matrix {
  vec<T, Rows> columns[Columns];
  matrix() = default;
  matrix(const matrix&) = default;
  matrix& operator=(const matrix&) = default;
  explicit METAL_SIM_INLINE matrix(T diagonal) {
    for (int c = 0; c < Columns; c++)
      for (int r = 0; r < Rows; r++) columns[c].components[r] = c == r ? diagonal : T(0);
  }
  template <class U, class = enable_if_t<!is_same_v<U, T>>>
  explicit METAL_SIM_INLINE matrix(const matrix<U, Columns, Rows>& other) {
    for (int c = 0; c < Columns; c++) columns[c] = vec<T, Rows>(other.columns[c]);
  }
  template <class... V, class = enable_if_t<sizeof...(V) + 1 == Columns>>
  METAL_SIM_INLINE matrix(const vec<T, Rows>& first, const V&... rest)
      : columns{first, vec<T, Rows>(rest)...} {}
  template <class A, class B, class... V,
            class = enable_if_t<(sizeof...(V) + 2 == Columns * Rows) && is_scalar_v<A> && is_scalar_v<B>>, class = void>
  METAL_SIM_INLINE matrix(A first, B second, V... rest) {
    T all[] = {T(first), T(second), T(rest)...};
    for (int i = 0; i < Columns * Rows; i++) columns[i / Rows].components[i % Rows] = all[i];
  }
  METAL_SIM_INLINE vec<T, Rows>& operator[](int i) { return columns[i]; }
  METAL_SIM_INLINE const vec<T, Rows>& operator[](int i) const { return columns[i]; }
};
template <class T, int C, int R> METAL_SIM_INLINE vec<T, R> operator*(const matrix<T, C, R>& m, const vec<T, C>& v) {
  vec<T, R> result(T(0));
  for (int c = 0; c < C; c++) result += m.columns[c] * v.components[c];
  return result;
}
template <class T, int C, int R> METAL_SIM_INLINE vec<T, C> operator*(const vec<T, R>& v, const matrix<T, C, R>& m) {
  vec<T, C> result(T(0));
  for (int c = 0; c < C; c++)
    for (int r = 0; r < R; r++) result.components[c] += v.components[r] * m.columns[c].components[r];
  return result;
}
template <class T, int C, int K, int R>
METAL_SIM_INLINE matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
  matrix<T, C, R> result;
  for (int c = 0; c < C; c++) result.columns[c] = a * b.columns[c];
  return result;
}
template <class T, int C, int R, class S, class = enable_if_t<is_scalar_v<S>>>
METAL_SIM_INLINE matrix<T, C, R> operator*(const matrix<T, C, R>& m, S s) {
  matrix<T, C, R> result;
  for (int c = 0; c < C; c++) result.columns[c] = m.columns[c] * T(s);
  return result;
}
template <class T, int C, int R, class S, class = enable_if_t<is_scalar_v<S>>>
METAL_SIM_INLINE matrix<T, C, R> operator*(S s, const matrix<T, C, R>& m) { return m * s; }
template <class T, int C, int R>
METAL_SIM_INLINE matrix<T, C, R> operator+(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  matrix<T, C, R> result;
  for (int c = 0; c < C; c++) result.columns[c] = a.columns[c] + b.columns[c];
  return result;
}
template <class T, int C, int R>
METAL_SIM_INLINE matrix<T, C, R> operator-(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  matrix<T, C, R> result;
  for (int c = 0; c < C; c++) result.columns[c] = a.columns[c] - b.columns[c];
  return result;
}
template <class T, int C, int R> METAL_SIM_INLINE matrix<T, C, R> operator-(const matrix<T, C, R>& m) {
  matrix<T, C, R> result;
  for (int c = 0; c < C; c++) result.columns[c] = -m.columns[c];
  return result;
}
// `a += b` is `a = a + b`, whatever the right side is.
#define METAL_SIM_MATRIX_ASSIGNMENT(OP) \
  template <class T, int C, int R, class B> METAL_SIM_INLINE matrix<T, C, R>& operator OP##=(matrix<T, C, R>& a, const B& b) { return a = a OP b; }
METAL_SIM_MATRIX_ASSIGNMENT(+)
METAL_SIM_MATRIX_ASSIGNMENT(-)
METAL_SIM_MATRIX_ASSIGNMENT(*)
template <class T, int C, int R> METAL_SIM_INLINE matrix<T, R, C> transpose(const matrix<T, C, R>& m) {
  matrix<T, R, C> result;
  for (int c = 0; c < C; c++)
    for (int r = 0; r < R; r++) result.columns[r].components[c] = m.columns[c].components[r];
  return result;
}

#define METAL_SIM_FOR_EACH_SCALAR(DO) \
  DO(bool) DO(char) DO(uchar) DO(short) DO(ushort) DO(int) DO(uint) DO(long) DO(ulong) DO(half) DO(bfloat) DO(float)
#define METAL_SIM_VECTOR_NAMES(T)                                                      \
  typedef vec<T, 2> T##2; typedef vec<T, 3> T##3; typedef vec<T, 4> T##4;              \
  typedef packed_vec<T, 2> packed_##T##2; typedef packed_vec<T, 3> packed_##T##3; typedef packed_vec<T, 4> packed_##T##4;
METAL_SIM_FOR_EACH_SCALAR(METAL_SIM_VECTOR_NAMES)
#define METAL_SIM_MATRIX_NAMES(T)                                                                        \
  typedef matrix<T, 2, 2> T##2x2; typedef matrix<T, 2, 3> T##2x3; typedef matrix<T, 2, 4> T##2x4;         \
  typedef matrix<T, 3, 2> T##3x2; typedef matrix<T, 3, 3> T##3x3; typedef matrix<T, 3, 4> T##3x4;         \
  typedef matrix<T, 4, 2> T##4x2; typedef matrix<T, 4, 3> T##4x3; typedef matrix<T, 4, 4> T##4x4;
METAL_SIM_MATRIX_NAMES(float)
METAL_SIM_MATRIX_NAMES(half)
METAL_SIM_MATRIX_NAMES(bfloat)

template <class To, class From> METAL_SIM_INLINE To as_type(const From& value) {
  static_assert(sizeof(To) == sizeof(From), "as_type needs types of the same size");
  To result;
  __builtin_memcpy((void*)&result, &value, sizeof result);
  return result;
}
template <class To, class T, int W, int... I> METAL_SIM_INLINE To as_type(const Swizzle<T, W, I...>& value) {
  return as_type<To>(value.get());
}

template <class T, int N> struct __is_valid_simdgroup_type<vec<T, N>> : true_type {};
template <class T, int N> struct is_trivially_copyable<vec<T, N>> : true_type {};
template <class T> struct vec_elements : integral_constant<int, 1> {};
template <class T, int N> struct vec_elements<vec<T, N>> : integral_constant<int, N> {};
template <class T> constexpr int vec_elements_v = vec_elements<T>::value;

template <class T, size_t N> struct array {
  T elements[N ? N : 1];
  METAL_SIM_INLINE T& operator[](size_t i) { return elements[i]; }
  METAL_SIM_INLINE const T& operator[](size_t i) const { return elements[i]; }
  METAL_SIM_INLINE constexpr size_t size() const { return N; }
  METAL_SIM_INLINE T* data() { return elements; }
  METAL_SIM_INLINE const T* data() const { return elements; }
  METAL_SIM_INLINE constexpr bool empty() const { return N == 0; }
  METAL_SIM_INLINE T* begin() { return elements; }
  METAL_SIM_INLINE const T* begin() const { return elements; }
  METAL_SIM_INLINE T* end() { return elements + N; }
  METAL_SIM_INLINE const T* end() const { return elements + N; }
  METAL_SIM_INLINE T& front() { return elements[0]; }
  METAL_SIM_INLINE const T& front() const { return elements[0]; }
  METAL_SIM_INLINE T& back() { return elements[N - 1]; }
  METAL_SIM_INLINE const T& back() const { return elements[N - 1]; }
  METAL_SIM_INLINE void fill(const T& value) {
    for (T& element : elements) element = value;
  }
};
}  // namespace metal

// MSL's built-in types need no namespace.
#define METAL_SIM_GLOBAL_NAMES(T) \
  using metal::T##2; using metal::T##3; using metal::T##4; \
  using metal::packed_##T##2; using metal::packed_##T##3; using metal::packed_##T##4;
METAL_SIM_FOR_EACH_SCALAR(METAL_SIM_GLOBAL_NAMES)
#define METAL_SIM_GLOBAL_MATRICES(T)                                    \
  using metal::T##2x2; using metal::T##2x3; using metal::T##2x4;        \
  using metal::T##3x2; using metal::T##3x3; using metal::T##3x4;        \
  using metal::T##4x2; using metal::T##4x3; using metal::T##4x4;
METAL_SIM_GLOBAL_MATRICES(float)
METAL_SIM_GLOBAL_MATRICES(half)
METAL_SIM_GLOBAL_MATRICES(bfloat)
using metal::as_type;
using metal::vec;
