//! Kernels that were compiled ahead of time: how Xcode's tools are called, with a stand-in for them, what becomes of what
//! they make, and what is done without them.

mod common;
#[path = "../build/xcode.rs"]
mod xcode;

use metal::device::MathMode;
use metal::library::{EMBEDDED, LIBRARIES, Sources, compile_options};
use metal::pipelines::Loader;
use metal::{MetalBackend, MetalOptions, Switches};
use metal_sim::compile::{self, Clang, Source};
use metal_sim::device::SimDevice;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A stand-in for `xcrun`: writes down how it is called, copies the source to the library, and fails at a call that has
/// `failing` in it.
fn stand_in(folder: &Path, failing: &str) -> PathBuf {
    let log = folder.join("calls");
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> '{}'\ncase \"$*\" in *'{failing}'*) echo 'it does\n  not work' >&2; exit 3 ;; esac\n\
         from= to=\nwhile [ $# -gt 0 ]; do case $1 in -o) to=$2; shift ;; -f) exit 0 ;; *) from=$1 ;; esac; shift; done\n\
         cp \"$from\" \"$to\"\n",
        log.display()
    );
    let path = folder.join("xcrun");
    fs::write(&path, script).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn calls(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("calls")).unwrap_or_default();
    let mut calls: Vec<_> =
        text.lines().map(|line| line.replace(&format!("{}/", folder.display()), "")).collect();
    // Compilers run side by side.
    calls.sort();
    calls
}

fn sources() -> Vec<(&'static str, String)> {
    vec![("one", "int one;".into()), ("two", "int two;".into())]
}

#[test]
fn every_source_is_compiled_and_linked_with_the_options_of_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let xcrun = stand_in(folder.path(), "nothing fails");
    let libraries = xcode::compile(&xcrun, &sources(), folder.path()).unwrap();
    let compile = "-sdk macosx metal -std=metal3.0 -mmacosx-version-min=13.0 -O3 -ffast-math -c";
    let mut expected = vec!["-sdk macosx -f metal".to_owned(), "-sdk macosx -f metallib".into()];
    for name in ["one", "two"] {
        expected.push(format!("{compile} {name}.metal -o {name}.air"));
        expected.push(format!("-sdk macosx metallib {name}.air -o {name}.metallib"));
    }
    expected.sort();
    assert_eq!(calls(folder.path()), expected);
    let texts = |(name, path): &xcode::Compiled| (*name, fs::read_to_string(path).unwrap());
    assert_eq!(libraries.iter().map(texts).collect::<Vec<_>>(), sources());
    // The flags say what `compile_options` says.
    let options = compile_options(MathMode::Fast);
    assert_eq!((options.version.macro_value(), options.math), (300, MathMode::Fast));

    xcode::embed(&libraries, folder.path()).unwrap();
    let list = fs::read_to_string(folder.path().join("embedded.rs")).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let expected = format!(
        "&[\n    (\"one\", include_bytes!({:?}) as &[u8]),\n    (\"two\", include_bytes!({:?}) as &[u8]),\n]\n",
        path("one.metallib"),
        path("two.metallib")
    );
    assert_eq!(list, expected);
}

#[test]
fn without_the_tools_nothing_is_compiled_and_the_reason_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("xcrun");
    let reason = xcode::compile(&missing, &sources(), folder.path()).unwrap_err();
    assert!(reason.starts_with(&missing.display().to_string()), "{reason}");
    for (failing, calls_made, expected) in [
        ("-f metal", 1, "-f metal: exit status: 3: it does | not work"),
        ("-f metallib", 2, "-f metallib: exit status: 3: it does | not work"),
        ("two.metal ", 4, "'two': exit status: 3: it does | not work"),
        ("two.metallib", 6, "metallib: exit status: 3: it does | not work"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let xcrun = stand_in(folder.path(), failing);
        // `-f metallib` has `-f metal` in it, too.
        let found = xcode::compile(&xcrun, &sources(), folder.path());
        assert_eq!(found.unwrap_err(), expected);
        assert_eq!(calls(folder.path()).len(), calls_made, "{failing}");
    }
    xcode::embed(&[], folder.path()).unwrap();
    assert_eq!(fs::read_to_string(folder.path().join("embedded.rs")).unwrap(), "&[\n]\n");
}

#[test]
fn without_the_tools_the_build_goes_on_unless_it_was_asked_for_them() {
    let nothing = || Err("no compiler".to_owned());
    let one = || Ok(vec![("one", PathBuf::from("one.metallib"))]);
    for (precompile, prefix) in [("", "cargo::warning="), ("1", "cargo::error=")] {
        let line = xcode::decide(precompile, nothing).unwrap_err();
        assert!(line.starts_with(prefix) && line.ends_with(": no compiler"), "{line}");
        assert_eq!(xcode::decide(precompile, one), one());
    }
    assert_eq!(xcode::decide("0", || panic!("nothing is to be compiled")), Ok(Vec::new()));
}

#[test]
fn what_is_embedded_is_all_libraries_or_none() {
    let names: Vec<_> = EMBEDDED.iter().map(|(name, _)| *name).collect();
    let all: Vec<_> = LIBRARIES.iter().map(|library| library.name).collect();
    assert!(names.is_empty() || names == all, "{names:?}");
}

/// A kernel library of the simulator.
fn build(name: &'static str, text: &str) -> &'static [u8] {
    let source = Source { name, text, include_directories: &[], only: None };
    let path = compile::build(&Clang::find().unwrap(), source, &compile_options(MathMode::Fast)).unwrap();
    Vec::leak(fs::read(path).unwrap())
}

#[test]
fn embedded_libraries_take_the_place_of_sources_unless_something_else_is_asked_for() {
    let device = SimDevice::from_environment().expect("clang is installed");
    let library = LIBRARIES.iter().find(|library| library.name == "copy").unwrap();
    let text = library.source(&Sources::default());
    let without = build("copy", &text.replace("kernel void copy(", "kernel void other("));
    let with_more = build("copy", &format!("{text}\nkernel void one_more() {{}}\n"));
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("copy.metal"), library.files.last().unwrap().1).unwrap();
    let elsewhere = Switches { sources: Some(folder.path().into()), ..Switches::default() };
    let elsewhere = Sources::new(&elsewhere, LIBRARIES).unwrap();
    for (what, math, sources, data, kernel, found) in [
        ("the library", MathMode::Fast, Sources::default(), with_more, "one_more", true),
        ("the library", MathMode::Fast, Sources::default(), without, "copy", false),
        ("of another arithmetic", MathMode::Safe, Sources::default(), without, "copy", true),
        ("from other sources", MathMode::Fast, elsewhere, without, "copy", true),
        (
            "that the device refuses",
            MathMode::Fast,
            Sources::default(),
            b"MTLB for a later system",
            "copy",
            true,
        ),
    ] {
        let embedded = [("copy", data)];
        let mut loader = Loader::new(&device, math, sources, None).with_embedded(Vec::leak(embedded.into()));
        loader.compile(std::slice::from_ref(library)).unwrap();
        loader.library(library).unwrap().kernel(kernel);
        assert_eq!(loader.finish().is_ok(), found, "{what}, {kernel}");
    }
}

#[test]
fn a_start_takes_the_embedded_libraries() {
    let device = SimDevice::from_environment().expect("clang is installed");
    let empty = build("copy", "kernel void other() {}");
    let options = MetalOptions { name: common::NAME, timeout: Duration::ZERO, switches: Switches::default() };
    let error = MetalBackend::with_embedded(device, options, Vec::leak(vec![("copy", empty)])).err().unwrap();
    assert!(error.to_string().contains("'copy'"), "{error}");
}
