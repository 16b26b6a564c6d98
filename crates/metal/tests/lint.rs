//! Every kernel of the backend keeps the rules of Apple's front end.

use metal::device::MathMode;
use metal::library::{Sources, compile_options};
use metal::ops::LIBRARIES;
use metal_sim::compile::{Clang, Source};
use metal_sim::lint::lint;

#[test]
fn no_kernel_is_complained_about() {
    let clang = Clang::find().expect("the simulator needs clang");
    let mut kernels = 0;
    for library in LIBRARIES {
        let text = library.source(&Sources::default());
        let source = Source { name: library.name, text: &text, include_directories: &[], only: None };
        let report = lint(&clang, source, &compile_options(MathMode::Fast)).unwrap();
        let complaints: Vec<String> = report.diagnostics.iter().map(ToString::to_string).collect();
        assert!(complaints.is_empty(), "{}:\n{}", library.name, complaints.join("\n"));
        kernels += report.kernels;
    }
    assert!(kernels > 100, "{kernels}");
}
