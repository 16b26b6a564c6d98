//! Lint: what Apple's compiler would refuse, and no more.

use std::fs;
use std::path::Path;

use metal::device::CompileOptions;
use metal_sim::compile::{Clang, Source};
use metal_sim::lint::{Report, lint};

fn look(name: &str, text: &str) -> Report {
    let clang = Clang::find().unwrap();
    let source = Source { name, text, include_directories: &[], only: None };
    lint(&clang, source, &CompileOptions::default()).unwrap()
}

const HEAD: &str = "#include <metal_stdlib>\nusing namespace metal;\n";

/// Every complaint about a text that follows two lines of head, as `line:column: message`.
fn complaints(text: &str) -> Vec<String> {
    let report = look("k.metal", &format!("{HEAD}{text}"));
    report
        .diagnostics
        .iter()
        .map(|found| {
            let first = found.message.lines().next().unwrap_or_default();
            format!("{}:{}: {first}", found.line, found.column)
        })
        .collect()
}

/// Complains exactly at the given places, each time in words that contain the given ones.
fn complains(text: &str, expected: &[(&str, &str)]) {
    let found = complaints(text);
    let fits = found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(found, (place, words))| found.starts_with(place) && found.contains(words));
    assert!(fits, "expected {expected:#?}, found {found:#?}");
}

/// A kernel with device, constant, threadgroup and thread memory around the given statements, from line 6 on.
fn statements(text: &str) -> String {
    format!(
        "static void to_device(device float* p) {{ p[0] = 1; }} static void to_thread(thread float* p) {{ p[0] = 1; }}\n\
         kernel void k(device float* d [[buffer(0)]], constant float* c [[buffer(1)]], device half4* h [[buffer(2)]]) {{\n\
         threadgroup float t[32]; float p[2] = {{1, 2}}; float4 v = float4(1);\n\
         {text}\n\
         d[0] = c[0] + t[0] + p[0] + v.x + float(h[0].x);\n}}"
    )
}

#[test]
fn our_kernels_are_clean() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut kernels = 0;
    for entry in fs::read_dir(here.join("tests/msl")).unwrap() {
        let path = entry.unwrap().path();
        let report = look(&path.display().to_string(), &fs::read_to_string(&path).unwrap());
        assert!(report.diagnostics.is_empty(), "{}: {:?}", path.display(), report.diagnostics);
        kernels += report.kernels;
    }
    assert!(kernels > 90, "{kernels}");
}

#[test]
fn address_spaces_do_not_mix() {
    complains(
        &statements(
            "to_device(d); to_thread(p); float4 w = v + float4(h[1]);
to_device(t);
threadgroup float* a = d;
device float* b = p;
device float* e = (device float*)t;
constant float* f = d;
const device float* g = c;
thread float* q = d;",
        ),
        &[
            ("7:1:", "no matching function for call to 'to_device'"),
            ("8:20:", "type 'threadgroup float *' with an lvalue of type 'device float *'"),
            ("9:15:", "'device float *'"),
            ("10:", "'threadgroup float *' to 'device float *'"),
            ("11:17:", "'device float *'"),
            ("12:21:", "'constant float *'"),
            ("13:15:", "'q' points to the thread address space, 'd' to device"),
        ],
    );
}

#[test]
fn constant_memory_is_read_only_and_initialised() {
    complains(
        "constant bool FLAG [[function_constant(0)]];
constant float table[2] = {1, 2};
float global = 1;
kernel void k(constant float* c [[buffer(0)]]) {
    table[0] = 3;
    *c = 1;
    static int n = 0;
}",
        &[
            ("5:1:", "must be in the constant address space"),
            ("7:14:", "const-qualified type 'constant float[2]'"),
            ("8:8:", "read-only variable is not assignable"),
            ("9:5:", "a static variable in a function"),
        ],
    );
    let found = complaints("constant float nothing;\nkernel void k() {}");
    assert_eq!(found[0], "3:1: a variable in the constant address space must be initialised");
}

#[test]
fn pointers_name_their_address_space() {
    complains(
        "static float f(const float& x) { return x; }
static int* g() { return 0; }
kernel void k() {
    float4* q;
}",
        &[
            ("3:16:", "a reference needs an address space"),
            ("4:1:", "a pointer needs an address space"),
            ("6:5:", "a pointer needs an address space"),
        ],
    );
}

#[test]
fn kernels_keep_their_rules() {
    complains(
        "constant bool A [[function_constant(0)]]; constant bool B = !A;
kernel int returns() { return 1; }
kernel void twice(device float* a [[buffer(0)]], device float* b [[buffer(0)]]) { a[0] = b[0]; }
kernel void chosen(device float* a [[buffer(0), function_constant(A)]], device half* b [[buffer(0), function_constant(B)]]) {}
kernel void c(threadgroup float* a [[buffer(0)]]) {}
kernel void d(device float* a [[threadgroup(0)]]) {}
kernel void e(thread float* a [[buffer(0)]]) {}
kernel void f(device uint& i [[thread_position_in_grid]]) {}
kernel void g(uint i) {}
static void h() { threadgroup float x[4]; x[0] = 1; }",
        &[
            ("4:8:", "a kernel returns void, not 'int'"),
            ("5:68:", "buffer(0) is taken"),
            ("7:15:", "its attribute is for device or constant"),
            ("8:15:", "its attribute is for threadgroup"),
            ("9:15:", "cannot be in the thread address space"),
            ("10:15:", "passed by value"),
            ("11:15:", "a kernel parameter needs an attribute"),
            ("12:19:", "must be declared in a kernel"),
        ],
    );
}

#[test]
fn what_msl_has_no_word_for() {
    complains(
        "struct S { virtual void f() {} };
static int recursive(int n) { return n ? recursive(n - 1) : 0; }
kernel void k() {
    double x = 1;
    goto end; end:;
    auto q = new float;
    void (*f)(int);
}",
        &[
            ("3:12:", "no virtual functions"),
            ("4:12:", "MSL has no recursion"),
            ("6:5:", "MSL has no double"),
            ("7:5:", "MSL has no goto"),
            ("8:14:", "MSL has no dynamic memory"),
            ("9:12:", "MSL has no function pointers"),
        ],
    );
}

#[test]
fn vectors_and_halves_convert_when_they_are_told_to() {
    complains(
        &statements(
            "packed_float3 a = packed_float3(v.xyz); float3 b = a; b += float3(h[0].xyz);
half m = max(h[0].x, 0.5h); float n = max(float(h[0].x), 0.5);
float4 w = h[0];
float4 x = v * h[0];
half y = max(h[0].x, 0.5);",
        ),
        &[
            ("8:8:", "no viable conversion from 'device vec<half, [...]>'"),
            ("9:14:", "vectors of different element types need an explicit conversion"),
            ("10:10:", "call to 'max' is ambiguous"),
        ],
    );
}

#[test]
fn what_runs_on_a_mac_is_left_alone() {
    // Overloads on address spaces, arrays as parameters, members for several spaces, values chosen from two spaces.
    let innocent = "
        static float first(device const float* p) { return p[0]; }
        static float first(threadgroup const float* p) { return p[0] + 1; }
        template <typename T> static T sum(threadgroup T values[4]) { return values[0] + values[1]; }
        struct Pair { float a, b; float total() const thread { return a + b; } float total() const device { return a - b; } };
        constant Pair FALLBACK = {1, 2};
        kernel void k(device Pair* pairs [[buffer(0)]], constant Pair& one [[buffer(1)]], uint i [[thread_position_in_grid]]) {
            threadgroup float t[4];
            threadgroup Pair shared[2];
            Pair copy = pairs[i];
            shared[0] = one;
            Pair chosen = i > 1 ? shared[0] : FALLBACK;
            pairs[i] = copy;
            device auto& last = pairs[i];
            last.a = first(t) + first(&pairs->a) + sum(t) + copy.total() + chosen.b;
        }";
    assert_eq!(complaints(innocent), Vec::<String>::new());
}

#[test]
fn a_missing_include_is_an_error_of_its_own() {
    let clang = Clang::find().unwrap();
    let source =
        Source { name: "k.metal", text: "#include \"nowhere.h\"\n", include_directories: &[], only: None };
    let error = lint(&clang, source, &CompileOptions::default()).unwrap_err();
    assert!(error.to_string().contains("'nowhere.h' file not found"), "{error}");
}

#[test]
fn there_is_no_complaint_about_what_projects_write() {
    assert_eq!(look("projects.metal", include_str!("msl/projects.metal")).diagnostics, []);
}
