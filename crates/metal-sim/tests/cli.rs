//! The program from the outside: its commands, its errors, its cache.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const KERNELS: &str = "\
#include <metal_stdlib>
using namespace metal;
#include \"shared.h\"
kernel void scale(device float* values [[buffer(0)]], constant Arguments& arguments [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
    if (i < arguments.count) values[i] = values[i] * arguments.factor + OFFSET;
}
";
const SHARED: &str = "struct Arguments { uint count; float factor; };\n";

struct Program {
    directory: tempfile::TempDir,
}

impl Program {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("scale.metal"), KERNELS).unwrap();
        fs::write(directory.path().join("shared.h"), SHARED).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_metal-sim"));
        command
            .args(arguments)
            .env("SMELT_CACHE", self.directory.path())
            .env_remove("SMELT_SIM_CLANG")
            .env_remove("SMELT_SIM_GPU");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The last modification of every compiled library.
fn compiled(directory: &Path) -> Vec<std::time::SystemTime> {
    let files = fs::read_dir(directory.join("metal-sim")).unwrap().map(|entry| entry.unwrap());
    files
        .filter(|file| file.path().extension().is_some_and(|extension| extension == "so"))
        .map(|file| file.metadata().unwrap().modified().unwrap())
        .collect()
}

#[test]
fn run_prints_and_saves_buffers() {
    let program = Program::new();
    let (source, saved) = (program.path("scale.metal"), program.path("out.bin"));
    let save = format!("0={saved}");
    let output = program.run(&[
        "run",
        &source,
        "--kernel",
        "scale",
        "--grid",
        "8",
        "-DOFFSET=0.5",
        "--buffer",
        "0=f32:0..5",
        "--bytes",
        "1=u32:4,1073741824",
        "--print",
        "0=f32",
        "--save",
        &save,
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // 1073741824 is the float 2; the fifth value is past the count.
    assert_eq!(text(&output.stdout), "buffer(0): 0.5 2.5 4.5 6.5 4\n");
    assert_eq!(fs::read(saved).unwrap()[..4], 0.5f32.to_ne_bytes());
}

#[test]
fn check_lists_kernels_and_uses_the_cache() {
    let program = Program::new();
    let source = program.path("scale.metal");
    let output = program.run(&["check", &source, "-D", "OFFSET=1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).ends_with("1 kernels\n  scale: values buffer(0), arguments buffer(1)\n"),
        "{}",
        text(&output.stdout)
    );
    let first = compiled(program.directory.path());
    assert_eq!(first.len(), 1);
    assert!(program.run(&["check", &source, "-D", "OFFSET=1"]).status.success());
    assert_eq!(compiled(program.directory.path()), first, "the second time comes from the cache");
    // A change behind an include is a change.
    fs::write(program.path("shared.h"), SHARED.replace("float factor", "float factor, other")).unwrap();
    assert!(program.run(&["check", &source, "-D", "OFFSET=1"]).status.success());
    assert_eq!(compiled(program.directory.path()).len(), 2);
}

#[test]
fn build_writes_a_library() {
    let program = Program::new();
    let (source, library) = (program.path("scale.metal"), program.path("scale.so"));
    let output = program.run(&["build", &source, "-DOFFSET=1", "-o", &library]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // Loads, as `tests/prebuilt.rs` shows for such a file.
    assert!(fs::metadata(&library).unwrap().len() > 1000);
    let output = program.run(&["build", &source, "-DOFFSET=1"]);
    assert!(text(&output.stderr).contains("-o LIBRARY is missing"));
}

#[test]
fn translate_prints_the_rewritten_source() {
    let program = Program::new();
    let output = program.run(&["translate", &program.path("scale.metal"), "-DOFFSET=2"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("values[i] * arguments.factor + 2;"));
}

#[test]
fn errors_have_places_and_a_failing_status() {
    let program = Program::new();
    let fails = |arguments: &[&str], expected: &str| {
        let output = program.run(arguments);
        let message = text(&output.stderr);
        assert!(!output.status.success());
        assert!(message.starts_with("metal-sim: ") && message.contains(expected), "{message}");
    };
    let source = program.path("scale.metal");
    // The compiler's: OFFSET is not defined.
    fails(&["check", &source], "scale.metal:6:73: error: use of undeclared identifier 'OFFSET'");
    // The scanner's.
    fs::write(program.path("wide.metal"), "static float f() {\n    double x = 1;\n    return x;\n}\n")
        .unwrap();
    fails(&["check", &program.path("wide.metal")], "wide.metal:2:5: 'double': MSL has no double");
    // The emitter's.
    fs::write(program.path("twice.metal"), "kernel void a() {}\n[[host_name(\"a\")]] kernel void b() {}\n")
        .unwrap();
    fails(&["check", &program.path("twice.metal")], "two kernels are called 'a'");
    // The device's.
    fails(
        &["run", &source, "-DOFFSET=1", "--kernel", "scale", "--grid", "1"],
        "nothing is bound to buffer(0) ('values')",
    );
    fails(&["run", &source, "-DOFFSET=1", "--kernel", "none", "--grid", "1"], "has no kernel 'none'");
    fails(&["check", "/nonexistent/k.metal"], "/nonexistent/k.metal");
}

#[test]
fn one_file_with_a_mistake_does_not_hide_the_others() {
    let program = Program::new();
    fs::write(program.path("wide.metal"), "kernel void wide() { double x; }\n").unwrap();
    fs::write(program.path("plain.metal"), "kernel void plain() {}\n").unwrap();
    for command in ["check", "lint"] {
        let output = program.run(&[command, &program.path("wide.metal"), &program.path("plain.metal")]);
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains("wide.metal:1:22: 'double'"), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("plain.metal: 1 kernels\n"), "{}", text(&output.stdout));
    }
}

#[test]
fn sources_of_every_origin() {
    let program = Program::new();
    // A byte order mark, line ends of two bytes, a comment in another encoding.
    let mut source =
        b"\xef\xbb\xbf// caf\xe9\r\nkernel void k(device int* out [[buffer(0)]]) {\r\n  out[0] = X;\r\n}"
            .to_vec();
    let path = program.path("windows.metal");
    fs::write(&path, &source).unwrap();
    let run = [
        "run",
        &path,
        "--kernel=k",
        "--grid=1",
        "--buffer=0=new:4",
        "--print=0=i32",
        "-DX=__METAL_VERSION__",
    ];
    for (version, expected) in [("-std=metal3.1", "310"), ("-std=macos-metal2.4", "240")] {
        let output = program.run(&[&run[..], &[version]].concat());
        assert_eq!(text(&output.stdout), format!("buffer(0): {expected}\n"), "{}", text(&output.stderr));
    }
    let place = source.len() - 5;
    source[place] = b'y';
    fs::write(&path, &source).unwrap();
    let message = program.run(&run).stderr;
    assert!(text(&message).contains("windows.metal:3:12: error: use of undeclared identifier 'y'"));
    // Behind an attribute, which is taken out.
    fs::write(&path, "kernel void k(device int* out [[buffer(0)]]) { out[0] = y; }").unwrap();
    let output = program.run(&["check", &path]);
    assert!(text(&output.stderr).contains("windows.metal:1:57: error"), "{}", text(&output.stderr));
}

#[test]
fn a_fault_is_placed_by_the_name_given_wherever_the_library_was_compiled() {
    let program = Program::new();
    for folder in ["one", "two"] {
        let folder = program.directory.path().join(folder);
        fs::create_dir(&folder).unwrap();
        fs::write(
            folder.join("wild.metal"),
            "kernel void wild(device int* out [[buffer(0)]]) {\n    out[1 << 28] = 1;\n}\n",
        )
        .unwrap();
        let arguments = ["run", "wild.metal", "--kernel", "wild", "--grid", "1", "--buffer", "0=i32:0"];
        let output = program.command(&arguments).current_dir(&folder).output().unwrap();
        let message = text(&output.stderr);
        assert!(message.contains("'wild': wild.metal:2: invalid memory access"), "{message}");
    }
    assert_eq!(compiled(program.directory.path()).len(), 1, "the second run takes what the first compiled");
}

#[test]
fn the_environment_is_checked() {
    let program = Program::new();
    let source = program.path("scale.metal");
    let run = ["run", &source, "-DOFFSET=1", "--kernel", "scale", "--grid", "1"];
    let fails = |name: &str, value: &str, expected: &str| {
        let output = program.command(&run).env(name, value).output().unwrap();
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(expected), "{}", text(&output.stderr));
    };
    fails("SMELT_SIM_CLANG", "/nonexistent/clang++", "apt install clang-19 libclang-rt-19-dev lld-19");
    fails("SMELT_SIM_GPU", "M0", "expected one of Apple M1,");
    fails("SMELT_SIM_THREADS", "none", "expected a number above 0");
    fails("SMELT_SIM_KERNEL_THREADS", "0", "expected a number above 0");
    fails("SMELT_SIM_SANITIZE", "yes", "expected 0 or 1");
    fails("SMELT_CACHE", "/dev/null/cache", "/dev/null/cache");
    for (name, value, expected) in
        [("SMELT_SIM_SEED", "x", "expected a number"), ("SMELT_SIM_STEPS", "0", "expected a number above 0")]
    {
        let output = program.command(&run).env("SMELT_SIM_SANITIZE", "1").env(name, value).output().unwrap();
        assert!(!output.status.success() && text(&output.stderr).contains(expected));
    }
    // A compiled library that is damaged is told, not run.
    assert!(program.run(&["check", &source, "-DOFFSET=1"]).status.success());
    for file in fs::read_dir(program.directory.path().join("metal-sim")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "so") {
            fs::write(path, "damaged").unwrap();
        }
    }
    let output = program.run(&["check", &source, "-DOFFSET=1"]);
    assert!(!output.status.success() && text(&output.stderr).contains(".so"), "{}", text(&output.stderr));
}

#[test]
fn the_race_that_the_readme_shows_is_found() {
    let readme = include_str!("../README.md");
    let shown = readme.split("$ SMELT_SIM_SANITIZE=1 ").nth(1).unwrap().split("\n```").next().unwrap();
    let (command, expected) = shown.split_once('\n').unwrap();
    let mut words = command.split(' ');
    let seed = words.next().unwrap().strip_prefix("SMELT_SIM_SEED=").unwrap();
    assert_eq!(words.next(), Some("metal-sim"));
    let program = Program::new();
    let mut command = program.command(&words.collect::<Vec<_>>());
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command.env("SMELT_SIM_SANITIZE", "1").env("SMELT_SIM_SEED", seed);
    let reports = program.path("reports.jsonl");
    let output = command.env("SMELT_SIM_REPORTS", &reports).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(text(&output.stderr).trim_end(), expected);
    let line = fs::read_to_string(reports).unwrap();
    assert!(
        line.starts_with("{\"kind\":\"race\",\"kernel\":\"block_sum\"") && line.ends_with("}\n"),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1);
}
