// <metal_type_traits>, <metal_limits> and the traits of the shim itself, from compiler builtins alone.
#pragma once
#pragma clang system_header
#include "runtime.h"

namespace metal_sim {
// Not in `metal`, where projects define their own: Apple's library has none.
template <class...> using void_t = void;
}  // namespace metal_sim

namespace metal {
template <class T, T V> struct integral_constant {
  static constexpr T value = V;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return V; }
  constexpr T operator()() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { using type = T; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;

template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T&> { using type = T; };
template <class T> struct remove_reference<T&&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { using type = T; };
template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> using remove_volatile_t = typename remove_volatile<T>::type;
#ifdef METAL_SIM_LINT
// Address spaces that clang keeps apart and that convert to the default one; see lint.h.
#define METAL_SIM_LINT_DEVICE __attribute__((opencl_global_device))
#define METAL_SIM_LINT_CONSTANT __attribute__((opencl_global_host))
#define METAL_SIM_LINT_THREADGROUP __attribute__((opencl_local))
template <class T> struct remove_addrspace { using type = T; };
template <class T> struct remove_addrspace<METAL_SIM_LINT_DEVICE T> { using type = T; };
template <class T> struct remove_addrspace<METAL_SIM_LINT_CONSTANT T> { using type = T; };
template <class T> struct remove_addrspace<METAL_SIM_LINT_THREADGROUP T> { using type = T; };
#else
// Address spaces have no effect.
template <class T> struct remove_addrspace { using type = T; };
#endif
template <class T> using remove_addrspace_t = typename remove_addrspace<T>::type;
template <class T> struct remove_cv { using type = remove_addrspace_t<remove_const_t<remove_volatile_t<T>>>; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T*> { using type = T; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct add_pointer { using type = remove_reference_t<T>*; };
template <class T> using add_pointer_t = typename add_pointer<T>::type;
template <class T> struct add_const { using type = const T; };
template <class T> using add_const_t = typename add_const<T>::type;
template <class T> struct decay { using type = remove_cv_t<remove_reference_t<T>>; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct type_identity { using type = T; };
template <class T> using type_identity_t = typename type_identity<T>::type;

template <class A, class B> struct is_same : bool_constant<__is_same(A, B)> {};
template <class A, class B> constexpr bool is_same_v = __is_same(A, B);
template <class T> constexpr bool is_floating_point_v =
    __is_floating_point(T) || is_same_v<remove_cv_t<T>, half> || is_same_v<remove_cv_t<T>, bfloat>;
template <class T> struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T> constexpr bool is_integral_v = __is_integral(T);
template <class T> struct is_integral : bool_constant<is_integral_v<T>> {};
template <class T> constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T> struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T> constexpr bool is_scalar_v = is_arithmetic_v<T> || __is_enum(T);
template <class T> struct is_scalar : bool_constant<is_scalar_v<T>> {};
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> constexpr bool is_enum_v = __is_enum(T);
template <class T> constexpr bool is_signed_v =
    is_floating_point_v<T> || (is_integral_v<T> && T(-1) < T(0));
template <class T> struct is_signed : bool_constant<is_signed_v<T>> {};
template <class T> constexpr bool is_unsigned_v = is_integral_v<T> && !is_signed_v<T>;
template <class T> struct is_unsigned : bool_constant<is_unsigned_v<T>> {};
template <class T> constexpr bool is_pointer_v = __is_pointer(T);
template <class T> struct is_pointer : bool_constant<is_pointer_v<T>> {};
template <class T> constexpr bool is_const_v = __is_const(T);
template <class T> struct is_const : bool_constant<is_const_v<T>> {};
template <class T> constexpr bool is_void_v = is_same_v<remove_cv_t<T>, void>;
template <class T> struct is_void : bool_constant<is_void_v<T>> {};
template <class T> constexpr bool is_array_v = __is_array(T);
template <class T> struct is_array : bool_constant<is_array_v<T>> {};
template <class T> constexpr bool is_class_v = __is_class(T);
template <class T> struct is_class : bool_constant<is_class_v<T>> {};
template <class A, class B> constexpr bool is_convertible_v = __is_convertible_to(A, B);
template <class A, class B> struct is_convertible : bool_constant<is_convertible_v<A, B>> {};
template <class A, class B> constexpr bool is_base_of_v = __is_base_of(A, B);
template <class A, class B> struct is_base_of : bool_constant<is_base_of_v<A, B>> {};
template <class T> constexpr bool is_volatile_v = __is_volatile(T);
template <class T> struct is_volatile : bool_constant<is_volatile_v<T>> {};
template <class T> constexpr bool is_reference_v = __is_reference(T);
template <class T> struct is_reference : bool_constant<is_reference_v<T>> {};
template <class T> constexpr bool is_lvalue_reference_v = __is_lvalue_reference(T);
template <class T> struct is_lvalue_reference : bool_constant<is_lvalue_reference_v<T>> {};
template <class T> constexpr bool is_rvalue_reference_v = __is_rvalue_reference(T);
template <class T> struct is_rvalue_reference : bool_constant<is_rvalue_reference_v<T>> {};
template <class T> constexpr bool is_function_v = __is_function(T);
template <class T> struct is_function : bool_constant<is_function_v<T>> {};
template <class T> constexpr bool is_union_v = __is_union(T);
template <class T> struct is_union : bool_constant<is_union_v<T>> {};
// The shim's vectors count as such, too, though they have an assignment of their own.
template <class T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};
template <class T> constexpr bool is_trivially_copyable_v = is_trivially_copyable<T>::value;
template <class T, class... A> constexpr bool is_constructible_v = __is_constructible(T, A...);
template <class T, class... A> struct is_constructible : bool_constant<is_constructible_v<T, A...>> {};
template <class T> struct rank : integral_constant<size_t, 0> {};
template <class T, size_t N> struct rank<T[N]> : integral_constant<size_t, rank<T>::value + 1> {};
template <class T> constexpr size_t rank_v = rank<T>::value;
template <class T, unsigned dimension = 0> struct extent : integral_constant<size_t, 0> {};
template <class T, size_t N> struct extent<T[N], 0> : integral_constant<size_t, N> {};
template <class T, size_t N, unsigned dimension> struct extent<T[N], dimension> : extent<T, dimension - 1> {};
template <class T, unsigned dimension = 0> constexpr size_t extent_v = extent<T, dimension>::value;
template <class T> struct remove_extent { using type = __remove_extent(T); };
template <class T> using remove_extent_t = typename remove_extent<T>::type;
template <class T> struct underlying_type { using type = __underlying_type(T); };
template <class T> using underlying_type_t = typename underlying_type<T>::type;
template <class... T> struct conjunction : bool_constant<(true && ... && T::value)> {};
template <class... T> struct disjunction : bool_constant<(false || ... || T::value)> {};
template <class T> struct negation : bool_constant<!T::value> {};

template <class T> struct make_unsigned { using type = __make_unsigned(T); };
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;
template <class T> struct make_signed { using type = __make_signed(T); };
template <class T> using make_signed_t = typename make_signed<T>::type;

template <class T> T&& declval();
// A value that the programmer promises to be the same for all threads.
template <class T> using uniform = T;
template <class T> METAL_SIM_INLINE constexpr T make_uniform(T value) { return value; }

template <class T> struct _numeric_limits_impl {
  static constexpr bool is_specialized = is_integral_v<T>;
  static constexpr bool is_signed = is_signed_v<T>, is_integer = is_integral_v<T>;
  static constexpr bool has_infinity = false, has_quiet_NaN = false;
  static constexpr int digits = sizeof(T) * 8 - (is_signed ? 1 : 0);
  static constexpr int digits10 = digits * 301 / 1000, radix = 2;   // 301 / 1000: the logarithm of 2
  static constexpr T max() { return is_signed ? T((1ul << (digits - 1)) - 1 + (1ul << (digits - 1))) : T(~T(0)); }
  static constexpr T min() { return is_signed ? T(-max() - 1) : T(0); }
  static constexpr T lowest() { return min(); }
};
template <> struct _numeric_limits_impl<bool> {
  static constexpr bool max() { return true; }
  static constexpr bool min() { return false; }
  static constexpr bool lowest() { return false; }
};
#define METAL_SIM_FLOAT_LIMITS(T, MAX, MIN, EPSILON, DIGITS, MAX_EXPONENT)          \
  template <> struct _numeric_limits_impl<T> {                                            \
    static constexpr bool is_specialized = true, is_signed = true, is_integer = false; \
    static constexpr bool has_infinity = true, has_quiet_NaN = true;                \
    static constexpr int digits = DIGITS, digits10 = (DIGITS - 1) * 301 / 1000;     \
    static constexpr int max_digits10 = 2 + DIGITS * 301 / 1000, radix = 2;         \
    static constexpr int max_exponent = MAX_EXPONENT, min_exponent = 3 - MAX_EXPONENT; \
    static constexpr T max() { return T(MAX); }                                     \
    static constexpr T min() { return T(MIN); }                                     \
    static constexpr T lowest() { return T(-MAX); }                                 \
    static constexpr T epsilon() { return T(EPSILON); }                             \
    static constexpr T infinity() { return T(__builtin_inff()); }                   \
    static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }                \
    static constexpr T denorm_min() { return T(MIN * EPSILON); }                    \
    static constexpr T round_error() { return T(0.5f); }                            \
  };
METAL_SIM_FLOAT_LIMITS(float, __FLT_MAX__, __FLT_MIN__, __FLT_EPSILON__, 24, 128)
METAL_SIM_FLOAT_LIMITS(half, 65504.0f, 6.103515625e-5f, 9.765625e-4f, 11, 16)
METAL_SIM_FLOAT_LIMITS(bfloat, 3.38953139e38f, 1.17549435e-38f, 7.8125e-3f, 8, 128)
// These names are internal to Apple's headers; known collections use them all the same.
template <class... T> using _disjunction = disjunction<T...>;
template <class... T> using _conjunction = conjunction<T...>;
template <class T> struct numeric_limits : _numeric_limits_impl<T> {};
template <class T> struct __is_valid_simdgroup_type : bool_constant<is_scalar_v<T>> {};
}  // namespace metal
