//! The scanner: what it finds, what it refuses and where, and that nothing makes it fall over.

use metal_sim::scan::{Binding, Scan, scan, translate};
use proptest::prelude::*;

fn found(source: &str) -> Scan {
    scan(source).unwrap_or_else(|diagnostics| panic!("{diagnostics:?}"))
}

/// The first complaint about a source, as `line:column: message`.
fn refusal(source: &str) -> String {
    let diagnostics = scan(&format!("# 1 \"k.metal\"\n{source}")).expect_err(source);
    let text = diagnostics[0].to_string();
    text.strip_prefix("k.metal:").unwrap_or(&text).to_owned()
}

#[test]
fn parameters_and_their_bindings() {
    let source = "kernel void k(device const float* a [[buffer(3)]], constant S & s, threadgroup half* t [[threadgroup(1)]],
        device int* b [[buffer(1), function_constant(has_b)]], uint3 p [[ thread_position_in_grid ]], device int (&c)[4]) {}";
    let scan = found(source);
    let kernel = &scan.kernels[0];
    assert_eq!(kernel.name, "k");
    let bindings: Vec<_> =
        kernel.parameters.iter().map(|p| (p.name.as_str(), p.binding.clone(), p.optional)).collect();
    assert_eq!(
        bindings,
        [
            ("a", Binding::Buffer(3), false),
            ("s", Binding::Buffer(0), false),
            ("t", Binding::Threadgroup(1), false),
            ("b", Binding::Buffer(1), true),
            ("p", Binding::Builtin("thread_position_in_grid"), false),
            ("c", Binding::Buffer(2), false),
        ]
    );
}

#[test]
fn kernels_in_every_spelling() {
    let scan = found(
        "kernel void a() {}
         [[kernel]] void b() {}
         [[host_name(\"see\")]] [[kernel, max_total_threads_per_threadgroup(256)]] void c() {}
         namespace n { template <typename T, int N = (3 > 2)> kernel void d(device T* x) {} }
         template [[host_name(\"d_float\")]] kernel void n::d<float, 4>(device float*);
         static void not_a_kernel() {}",
    );
    let names: Vec<_> = scan
        .kernels
        .iter()
        .map(|k| (k.name.as_str(), k.host_name.as_deref(), k.is_template, k.max_threads))
        .collect();
    assert_eq!(
        names,
        [
            ("a", None, false, 0),
            ("b", None, false, 0),
            ("c", Some("see"), false, 256),
            ("n::d", None, true, 0)
        ]
    );
    let instance = &scan.instantiations[0];
    assert_eq!(
        (instance.host_name.as_str(), instance.kernel.as_str(), instance.arguments.as_str()),
        ("d_float", "n::d", "<float, 4>")
    );
}

#[test]
fn function_constants_and_swizzles() {
    let scan = found(
        "constant bool flag [[function_constant(BASE + 2)]];
         constant uint count [[ function_constant(7) ]];
         static float f(float4 v, S s) { return v.xy.y + v.bgr.r + s.alpha; }",
    );
    let constants: Vec<_> =
        scan.constants.iter().map(|c| (c.name.as_str(), c.type_name.as_str(), c.index.as_str())).collect();
    assert_eq!(constants, [("flag", "bool", "BASE + 2"), ("count", "uint", "7")]);
    assert_eq!(scan.swizzles.iter().map(String::as_str).collect::<Vec<_>>(), ["bgr", "xy"]);
}

#[test]
fn translation_keeps_lines_and_rewrites_in_place() {
    let source = "kernel void k(device float* x [[buffer(0)]]) {\n    threadgroup float a[4],\n        b;\n    x[0] = 1.5 + 2h;\n}\n";
    let text = translate(source, &found(source), None).unwrap();
    let body: Vec<&str> =
        text.lines().skip_while(|line| !line.starts_with("kernel void k")).take(5).collect();
    assert_eq!(body[0], "kernel void k(device float* x              ) {", "columns stay");
    assert!(
        body[1].contains("float metal_sim_local_1 [4]") && body[1].contains("metal_sim::local_memory<2"),
        "{}",
        body[1]
    );
    assert_eq!(body[3], "    x[0] = 1.5f + half(2.0f);");
}

#[test]
fn directives_about_loops_stay_and_others_go() {
    for (directive, kept) in [
        ("#pragma unroll", Some("unroll")),
        ("#pragma unroll(4)", Some("unroll(4)")),
        ("# pragma nounroll", Some("nounroll")),
        ("#pragma clang loop unroll(full)", Some("clang loop unroll(full)")),
        ("#pragma clang loop vectorize(enable)", Some("clang loop vectorize(enable)")),
        ("#pragma METAL internals : enable", None),
        ("#pragma clang diagnostic ignored \"-Wall\"", None),
        ("#pragma unroll \"4", None),
        ("#pragma once", None),
        ("#ident", None),
    ] {
        let source = format!(
            "kernel void k(device float* x) {{\n{directive}\n    for (int i = 0; i < 4; i++) x[i] = i;\n}}\n"
        );
        let text = translate(&source, &found(&source), None).unwrap();
        let expected = kept.map_or_else(String::new, |words| format!("METAL_SIM_LOOP(\"{words}\")"));
        let mut lines = text.lines().skip_while(|line| !line.starts_with("kernel void k"));
        assert_eq!(lines.nth(1), Some(expected.as_str()), "{directive}");
    }
}

#[test]
fn refusals_name_the_place() {
    let cases = [
        ("static float f() {\n  double x = 1;\n}", "2:3: 'double': MSL has no double"),
        ("static void f() { goto end; }", "1:19: 'goto': MSL has no goto"),
        ("static int* f() { return new int; }", "1:26: 'new': MSL has no dynamic memory"),
        ("static void f(thread int* p) { delete p; }", "1:32: 'delete': MSL has no dynamic memory"),
        ("static void f() { throw 1; }", "1:19: 'throw': MSL has no exceptions"),
        (
            "struct S { virtual void f(); };",
            "1:12: 'virtual': MSL has no virtual functions and no run-time types",
        ),
        (
            "kernel void k(texture2d<float> t [[texture(0)]]) {}",
            "1:15: 'texture2d': textures are outside the subset that the simulator runs",
        ),
        ("constexpr sampler s;", "1:11: 'sampler': samplers are outside the subset that the simulator runs"),
        (
            "vertex float4 v() { return 0; }",
            "1:1: vertex functions are outside the subset that the simulator runs",
        ),
        ("\nint counter = 0;", "2:1: variables at namespace scope must be in the constant address space"),
        (
            "struct S { int a; } shared;",
            "1:21: variables at namespace scope must be in the constant address space",
        ),
        ("threadgroup int t[4];", "1:1: threadgroup variables must be declared in a kernel function"),
        (
            "static void f() {\n\n threadgroup int t[4]; }",
            "3:2: threadgroup variables must be declared in a kernel function",
        ),
        ("kernel void k() { threadgroup int t = 4; }", "1:37: threadgroup variables cannot be initialised"),
        ("static int f(int n) { return n ? f(n - 1) : 0; }", "1:12: 'f' calls itself: MSL has no recursion"),
        ("static void f(int (*callback)(int)) {}", "1:21: MSL has no function pointers"),
        ("static void f() { int (*callback)(int) = g; }", "1:25: MSL has no function pointers"),
        ("kernel void k(uint i) {}", "1:15: a kernel parameter needs an attribute"),
        ("struct S { int a; }; kernel void k(const S s) {}", "1:36: a kernel parameter needs an attribute"),
        (
            "enum class A { x }; enum class B { y, x }; kernel void k(device int* a [[buffer(x)]]) {}",
            "1:74: expected a slot from 0 to 30, a number or the name of one, found 'x'",
        ),
        ("kernel void k(device int* a [[buffer(31)]]) {}", "1:31: expected a slot from 0 to 30, found '31'"),
        (
            "kernel void k(int a [[stage_in]]) {}",
            "1:23: attribute 'stage_in' is outside the subset that the simulator runs",
        ),
        (
            "kernel void k(uint a [[primitive_id]]) {}",
            "1:24: parameter attribute 'primitive_id' is outside the subset that the simulator runs",
        ),
        (
            "struct A { device int* p [[id(0)]]; };",
            "1:28: argument buffers are outside the subset that the simulator runs",
        ),
        ("static int x = 'a", "1:16: literal without an end"),
    ];
    for (source, expected) in cases {
        assert_eq!(refusal(source), expected, "{source}");
    }
}

#[test]
fn mutual_recursion_is_found_and_overloads_are_not() {
    assert!(
        refusal(
            "static int g(int); static int f(int n) { return g(n); } static int g(int n) { return f(n); }"
        )
        .contains("'f' calls itself")
    );
    found("static float f(float x) { return x; } static half f(half x) { return half(f(float(x))); }");
    found("template <int N> static int f() { return f<N - 1>(); }");
    found("struct A { static float lowest() { return numeric_limits<float>::lowest(); } };");
}

#[test]
fn innocent_sources_pass() {
    for source in [
        "template <void (*decode)(device const uchar*, thread float4&)> static void f() {}",
        "constant constexpr int table[2] = {1, 2};",
        "static constexpr constant float scale = 0.5;",
        "typedef void (callback_t)(int);",
        "using float4_array = float4[4];",
        "enum Mode : int { first = 1, second };",
        "struct S { int count = 0; float4 v; int get() const { return count; } };",
        "kernel void k() { threadgroup float* p = nullptr; threadgroup half& r = *q; }",
        "static void f(threadgroup float (*rows)[8]) {}",
        "static int f(thread int (&a)[4]) { return a[a[0]]; }",
        "kernel void exp(device float* x) { x[0] = exp(x[0]); }",
        ";;;",
        "",
    ] {
        found(source);
    }
}

#[test]
fn one_kernel_can_be_singled_out() {
    let source = "kernel void first() {} kernel void second() {}";
    let text = translate(source, &found(source), Some("second")).unwrap();
    assert!(text.contains("Entry<&::second>") && !text.contains("Entry<&::first>"));
}

#[test]
fn two_kernels_of_one_name_are_refused() {
    let source = "kernel void a() {} [[host_name(\"a\")]] kernel void b() {}";
    assert_eq!(translate(source, &found(source), None).unwrap_err(), "two kernels are called 'a'");
    let source = "template [[host_name(\"x\")]] kernel void missing<float>(device float*);";
    assert_eq!(
        translate(source, &found(source), None).unwrap_err(),
        "host_name \"x\": no kernel template 'missing'"
    );
}

/// Real sources to mutate.
const SOURCES: [&str; 5] = [
    include_str!("msl/language.metal"),
    include_str!("msl/matrix.metal"),
    include_str!("msl/transformer.metal"),
    include_str!("msl/simd.metal"),
    include_str!("msl/faults.metal"),
];
/// What mutations insert: brackets, and words that the scanner looks at.
const PIECES: [&str; 28] = [
    "[[",
    "]]",
    "(",
    ")",
    "{",
    "}",
    "<",
    ">",
    ";",
    ",",
    "=",
    "\"",
    "'",
    "#",
    "::",
    "*",
    "kernel",
    "template",
    "threadgroup",
    "constant",
    "host_name(\"",
    "function_constant(",
    "operator",
    "struct",
    "namespace",
    "\n# 5 \"x",
    "1e",
    "\u{e9}",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn mutated_sources_give_an_error_or_a_translation(
        source in 0..SOURCES.len(),
        start in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0..PIECES.len(), 0usize..40), 1..8),
    ) {
        // A window keeps the cases small and cuts declarations at both ends.
        let whole = SOURCES[source];
        let mut begin = start.index(whole.len());
        while !whole.is_char_boundary(begin) { begin -= 1; }
        let mut end = (begin + 2000).min(whole.len());
        while !whole.is_char_boundary(end) { end -= 1; }
        let mut text = whole[begin..end].to_owned();
        for (place, piece, removed) in edits {
            let mut from = place.index(text.len() + 1);
            while !text.is_char_boundary(from) { from -= 1; }
            let mut to = (from + removed).min(text.len());
            while !text.is_char_boundary(to) { to += 1; }
            text.replace_range(from..to, PIECES[piece]);
        }
        if let Ok(scan) = scan(&text) {
            let _ = translate(&text, &scan, None);
        }
    }

    #[test]
    fn any_text_gives_an_error_or_a_translation(text in "[\\[\\](){}<>;,=\"'#:*a-z0-9 \n.\\\\-]{0,200}") {
        if let Ok(scan) = scan(&text) {
            let _ = translate(&text, &scan, None);
        }
    }
}

#[test]
fn buffers_of_pointers_are_told() {
    let refused = "argument buffers are outside the subset that the simulator runs";
    for (source, at) in [
        ("struct A { device float* p [[id(0)]]; };", "1:30"),
        ("struct A { float s; constant float* p; };\nkernel void k(constant A& a [[buffer(0)]]) {}", "1:21"),
        ("struct A { array<device float*, 2> p; };\nkernel void k(device A* a [[buffer(0)]]) {}", "1:12"),
        ("struct A { device int& p; };\nstruct B { int n; A a; };\nkernel void k(constant B& b) {}", "2:19"),
    ] {
        let found = refusal(source);
        assert!(found.starts_with(&format!("{at}: {refused}")), "{source}: {found}");
    }
    // Pointers of structures that no buffer holds are the kernel's own.
    found(
        "struct Loader { const device float* from; threadgroup float* to; static constant int& n; };
         struct Methods { int n; device int* next(device int* p) const { return p + n; } };
         kernel void k(device float* x, constant Methods& m, threadgroup Loader* l [[threadgroup(0)]]) {
             Loader mine{x, nullptr};
         }",
    );
}

#[test]
fn overloads_on_address_spaces_with_bodies_of_their_own_are_told() {
    let source = "static float f(device float* p) { return p[0]; }\nstatic float f(threadgroup float* p) { return p[1]; }";
    let found = refusal(source);
    assert!(found.starts_with("2:1: differs from the function of line 1 in address spaces alone"), "{found}");
    // The same but for its own casts, a declaration before, and what is written twice, which is the compiler's to refuse.
    for innocent in [
        "static float f(device float* p) { return *(device float*)p; }\nstatic float f(thread float* p) { return *(thread float*)p; }",
        "static float f(device float* p);\nstatic float f(device float* p) { return p[0]; }",
        "static float f(device float* p) { return 1; }\nstatic float f(device float* p) { return 1; }",
    ] {
        found_in_lint_and_run(innocent);
    }
}

#[test]
fn constructors_in_several_address_spaces_are_one() {
    let source = "template <typename T> struct Pair {\n    T m;\n    constexpr Pair<T>() = default;\n    constexpr Pair<T>() threadgroup = default;\n};";
    for scan in [found(source), metal_sim::scan::scan_for_lint(source).unwrap().0] {
        let text = translate(source, &scan, None).unwrap();
        assert_eq!(text.matches("constexpr Pair<T>()").count(), 1, "{text}");
    }
}

fn found_in_lint_and_run(source: &str) {
    found(source);
    assert_eq!(metal_sim::scan::scan_for_lint(source).unwrap().1, [], "{source}");
}

#[test]
fn a_texture_is_refused_once() {
    let source = "kernel void k(texture2d<float> t [[texture(0)]],\n  sampler s [[sampler(0)]]) {}";
    let found: Vec<_> = scan(source).unwrap_err().iter().map(|found| (found.line, found.column)).collect();
    assert_eq!(found, [(1, 15), (2, 3)]);
}

#[test]
fn complaints_are_in_the_order_of_the_source() {
    let source = "static int f(int n) { return f(n); }\nstatic void g() { double x; }\nint counter = 0;";
    let lines: Vec<_> = scan(source).unwrap_err().iter().map(|found| found.line).collect();
    assert_eq!(lines, [1, 2, 3]);
}

#[test]
fn arrays_that_only_a_launch_knows_are_told() {
    let source = "constant int n [[function_constant(0)]];\nconstant int a[2] = {n, 1};";
    assert!(refusal(source).starts_with("2:1: arrays that are computed from function constants"));
}
