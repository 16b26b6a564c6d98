//! The compiler: finding it and running it.

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::UNIX_EPOCH;

use super::Error;

/// The oldest clang with everything that the shim uses.
const OLDEST: u32 = 17;

/// A usable clang.
#[derive(Clone, Debug)]
pub struct Clang {
    program: PathBuf,
    identity: String,
    sanitizes: bool,
}

impl Clang {
    /// Finds clang: `$SMELT_SIM_CLANG`, else `clang++-19`, newer and older ones, and `clang++`.
    ///
    /// # Errors
    /// [`Error::MissingCompiler`].
    pub fn find() -> Result<Self, Error> {
        if let Some(chosen) = env::var_os("SMELT_SIM_CLANG") {
            let chosen = PathBuf::from(chosen);
            let path = if chosen.components().count() > 1 { Some(chosen.clone()) } else { in_path(&chosen) };
            return path
                .and_then(Self::at)
                .ok_or_else(|| Error::MissingCompiler { tried: vec![chosen.display().to_string()] });
        }
        let names = ["clang++-19", "clang++-20", "clang++-21", "clang++-18", "clang++-17"];
        if let Some(clang) = names.iter().find_map(|name| in_path(Path::new(name)).and_then(Self::at)) {
            return Ok(clang);
        }
        let plain = in_path(Path::new("clang++")).filter(|program| major_version(program) >= Some(OLDEST));
        plain.and_then(Self::at).ok_or_else(|| Error::MissingCompiler {
            tried: names.iter().chain(&["clang++"]).map(|&name| name.to_owned()).collect(),
        })
    }

    fn at(program: PathBuf) -> Option<Self> {
        let target = fs::canonicalize(&program).ok()?;
        let metadata = fs::metadata(&target).ok()?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
        let flags = target_flags().join(" ");
        let identity = format!("{} {} {modified} {flags}", target.display(), metadata.len());
        Some(Self { program, identity, sanitizes: false })
    }

    /// The same compiler, for the sanitizer: what it compiles calls it before every access of memory.
    #[must_use]
    pub fn with_sanitizer(mut self) -> Self {
        self.sanitizes = true;
        self
    }

    /// Whether it compiles for the sanitizer.
    pub fn sanitizes(&self) -> bool {
        self.sanitizes
    }

    /// Changes when the compiler or the processor it compiles for changes. Starting it to ask for its version
    /// would take longer than loading a cached library.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    pub(super) fn target_flags(&self) -> &'static [&'static str] {
        target_flags()
    }

    /// Runs clang on a text; returns what it writes.
    pub(super) fn run(&self, arguments: &[String], input: &str) -> Result<String, Error> {
        let io_error = |source| Error::Io { action: format!("running {}", self.program.display()), source };
        let mut child = Command::new(&self.program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(io_error)?;
        let stdin = child.stdin.take();
        let output = thread::scope(|scope| {
            // Feeding and reading at once: clang may start to write before it has read everything.
            scope.spawn(move || {
                if let Some(mut stdin) = stdin {
                    // If clang stops reading it has an error to tell, which matters more.
                    let _ = stdin.write_all(input.as_bytes());
                }
            });
            child.wait_with_output()
        })
        .map_err(io_error)?;
        if output.status.success() {
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        } else {
            let text = String::from_utf8_lossy(&output.stderr);
            let reason = if text.trim().is_empty() {
                format!("clang: {}", output.status)
            } else {
                text.trim().to_owned()
            };
            Err(Error::Clang(reason))
        }
    }
}

fn in_path(name: &Path) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?).map(|directory| directory.join(name)).find(|path| path.is_file())
}

fn major_version(program: &Path) -> Option<u32> {
    let output = Command::new(program).arg("-dumpversion").output().ok()?;
    String::from_utf8_lossy(&output.stdout).split('.').next()?.trim().parse().ok()
}

/// Code generation flags for this processor.
#[cfg(target_arch = "x86_64")]
fn target_flags() -> &'static [&'static str] {
    let modern = std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("f16c")
        && std::is_x86_feature_detected!("bmi2");
    if modern { &["-march=x86-64-v3"] } else { &["-march=x86-64-v2"] }
}

/// Code generation flags for this processor.
#[cfg(not(target_arch = "x86_64"))]
fn target_flags() -> &'static [&'static str] {
    &[]
}
