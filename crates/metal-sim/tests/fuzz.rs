//! The scanner on sources that no one would write: an error or a correct rewrite, never a crash and never a hang.
//!
//! `tests/fuzz` holds what fuzzing and thinking came up with; every file is replayed whole, cut off at every place, and
//! without any one of its parts.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use metal_sim::scan::{rewritten, scan, scan_for_lint, translate, translate_for_lint};
use proptest::prelude::*;

/// A source that is right, as the preprocessor leaves it.
const SOURCE: &str = "
constant int SIZE [[function_constant(0)]];
constant bool HAS_SIZE = is_function_constant_defined(SIZE);
constant int COUNT = HAS_SIZE ? SIZE : 4;
namespace helpers {
struct Pair { float first; union { int i; float f; }; };
template <typename T> T twice(T x) { return x + x; }
}
template <typename T, int N>
kernel void scaled(device T* values [[buffer(0)]], constant float& scale [[buffer(1)]],
                   threadgroup T* parts [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                   uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float shared[32], *pointer;
    shared[lane] = values[i] * scale * 1.5;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float4 v = float4(shared[0], 1.0h, 2e-3, .5f);
    values[i] = helpers::twice(v.xy.x + v.wzyx.w) * (COUNT > N ? 1 : 2);
}
template [[host_name(\"scaled_float\")]] kernel void scaled<float, (2 > 1)>(device float*, constant float&, threadgroup float*, uint, uint);
[[kernel, max_total_threads_per_threadgroup(64)]] void plain(device int& out [[buffer(0), function_constant(HAS_SIZE)]]) { out = 1; }
";

/// Scans and rewrites. A rewrite keeps every line where it was, behind what is put in front of the source.
fn scan_both_ways(text: &str) -> bool {
    let result = scan(text);
    if let Ok(scan) = &result {
        let lines = |text: &str| text.matches('\n').count();
        let front = lines(&rewritten("", &scan_of(""), "h"));
        assert_eq!(lines(&rewritten(text, scan, "h")), front + lines(text), "{text}");
        // Two kernels of one name, or an instance of none, are errors that only the table finds.
        let _ = translate(text, scan, None);
    }
    if let Ok((scan, _)) = scan_for_lint(text) {
        let _ = translate_for_lint(text, &scan);
    }
    result.is_ok()
}

fn scan_of(text: &str) -> metal_sim::scan::Scan {
    scan(text).unwrap_or_else(|diagnostics| panic!("{diagnostics:?}"))
}

#[test]
fn the_corpus_crashes_nothing() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let mut count = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let text = fs::read_to_string(entry.unwrap().path()).unwrap();
        count += 1;
        scan_both_ways(&text);
        let places: Vec<usize> = text.char_indices().map(|(place, _)| place).collect();
        for (number, &place) in places.iter().enumerate() {
            scan_both_ways(&text[..place]);
            scan_both_ways(&text[place..]);
            for gap in [1, 2, 7] {
                if let Some(&next) = places.get(number + gap) {
                    scan_both_ways(&format!("{}{}", &text[..place], &text[next..]));
                }
            }
        }
    }
    assert!(count >= 17, "{count} files");
}

#[test]
fn deep_and_long_sources_end() {
    let repeated = |piece: &str| piece.repeat(5_000);
    let chain = (0..5000).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "inline int f{number}(int x) {{ return f{}(x); }}", number + 1);
        text
    });
    let sources = [
        repeated("("),
        repeated("{"),
        repeated("[["),
        repeated("template <"),
        repeated("namespace a {"),
        repeated("struct s {"),
        repeated("kernel void k("),
        repeated("threadgroup int a;"),
        repeated("constant int a [[function_constant(0)]];"),
        repeated("# 1 \"x\"\n"),
        format!("kernel void k() {{ {} }}", repeated("if (1) {")),
        format!("kernel void k() {{ int x = {}1{}; }}", repeated("("), repeated(")")),
        format!("kernel void k({}) {{}}", repeated("int a [[thread_position_in_grid]], ")),
        chain,
    ];
    for source in sources {
        let start = Instant::now();
        scan_both_ways(&source);
        let taken = start.elapsed();
        // A quadratic step over so many tokens takes minutes.
        assert!(taken < Duration::from_secs(20), "{taken:?} for {}...", &source[..40]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn blanks_between_tokens_change_nothing(
        blanks in prop::collection::vec((any::<prop::sample::Index>(), 0..4usize), 1..20),
    ) {
        let mut text = SOURCE.to_owned();
        for (place, blank) in blanks {
            // Behind these a blank is never part of a token, and the name of the kernel's instance has none of them.
            let places: Vec<usize> = text.match_indices([',', ';', '(', ')']).map(|(at, _)| at + 1).collect();
            text.insert_str(places[place.index(places.len())], [" ", "\t", "\n", " \n\n "][blank]);
        }
        let (before, after) = (scan_of(SOURCE), scan_of(&text));
        let names = |scan: &metal_sim::scan::Scan| {
            let kernels = scan.kernels.iter();
            kernels.map(|kernel| (kernel.name.clone(), kernel.parameters.clone())).collect::<Vec<_>>()
        };
        prop_assert_eq!(names(&before), names(&after));
        prop_assert_eq!(before.constants, after.constants);
        prop_assert_eq!(before.instantiations.len(), after.instantiations.len());
        prop_assert!(scan_both_ways(&text));
    }
}
