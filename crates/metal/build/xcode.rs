//! Apple's compiler of the Metal Shading Language, ahead of time.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The language and the arithmetic of `library::compile_options`, and the least system that has this language: a library for a
/// later system than the one that it meets would be refused.
const FLAGS: [&str; 4] = ["-std=metal3.0", "-mmacosx-version-min=13.0", "-O3", "-ffast-math"];

/// A library that was compiled: its name, and the file.
pub type Compiled = (&'static str, PathBuf);

/// What `SMELT_METAL_PRECOMPILE` asks for: nothing (`0`), all or no build (`1`), or all where the tools are. Where there is nothing, the
/// line for cargo says why. Cargo does not see that tools were installed, but it sees that the variable has changed.
pub fn decide(
    precompile: &str,
    compile: impl FnOnce() -> Result<Vec<Compiled>, String>,
) -> Result<Vec<Compiled>, String> {
    match precompile {
        "0" => Ok(Vec::new()),
        "1" => compile().map_err(|reason| format!("cargo::error=kernels cannot be compiled: {reason}")),
        _ => compile().map_err(|reason| {
            let later = "with a compiler, build with SMELT_METAL_PRECOMPILE=1";
            format!("cargo::warning=kernels are compiled when the program starts ({later}): {reason}")
        }),
    }
}

/// Compiles sources to libraries in `folder`, all at once. Nothing is left out: either all of them are compiled, or the
/// reason says why there are none, with the compiler's text.
pub fn compile(
    xcrun: &Path,
    sources: &[(&'static str, String)],
    folder: &Path,
) -> Result<Vec<Compiled>, String> {
    // Without Xcode, `xcrun` is missing, or finds no compiler in the command line tools.
    for tool in ["metal", "metallib"] {
        run(xcrun, &["-f", tool], &[])?;
    }
    let path = |name: &str, extension: &str| folder.join(name).with_extension(extension);
    let mut compilers = Vec::new();
    for (name, source) in sources {
        let text = path(name, "metal");
        std::fs::write(&text, source).map_err(|error| format!("{}: {error}", text.display()))?;
        let arguments = [&["metal"][..], &FLAGS, &["-c"]].concat();
        let files = [text, "-o".into(), path(name, "air")];
        compilers.push(command(xcrun, &arguments, &files).spawn());
    }
    // All that were started are waited for, whatever became of the first.
    let ended: Vec<_> = compilers
        .into_iter()
        .map(|compiler| compiler.and_then(|compiler| compiler.wait_with_output()))
        .collect();
    for ((name, _), output) in sources.iter().zip(ended) {
        check(&format!("'{name}'"), output.map_err(|error| cannot(xcrun, error))?)?;
    }
    let link = |(name, _): &(&'static str, String)| {
        let library = path(name, "metallib");
        run(xcrun, &["metallib"], &[path(name, "air"), "-o".into(), library.clone()])?;
        Ok((*name, library))
    };
    sources.iter().map(link).collect()
}

/// Writes `embedded.rs`, the expression of a slice of names and bytes, which the crate includes.
pub fn embed(libraries: &[Compiled], folder: &Path) -> std::io::Result<()> {
    let mut list = String::from("&[\n");
    for (name, path) in libraries {
        // Writing to a `String` cannot fail.
        let _ = writeln!(list, "    ({name:?}, include_bytes!({:?}) as &[u8]),", path.display().to_string());
    }
    list.push_str("]\n");
    std::fs::write(folder.join("embedded.rs"), list)
}

fn command(xcrun: &Path, arguments: &[&str], files: &[PathBuf]) -> Command {
    let mut command = Command::new(xcrun);
    command.args(["-sdk", "macosx"]).args(arguments).args(files);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(xcrun: &Path, arguments: &[&str], files: &[PathBuf]) -> Result<(), String> {
    let output = command(xcrun, arguments, files).output().map_err(|error| cannot(xcrun, error))?;
    check(&arguments.join(" "), output)
}

fn cannot(xcrun: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", xcrun.display())
}

/// An error with what the tool wrote, in one line, as cargo takes it.
fn check(what: &str, output: Output) -> Result<(), String> {
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    Err(format!("{what}: {}: {}", output.status, lines.join(" | ")))
}
