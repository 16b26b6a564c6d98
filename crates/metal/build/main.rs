//! Compiles the kernels ahead of time where Xcode's tools are, so that a program for macOS starts without compiling them.
//! Elsewhere it leaves an empty list, and the program compiles its kernels when it starts.

#[allow(dead_code, reason = "the library uses all of it")]
#[path = "../src/families/mod.rs"]
mod families;
mod xcode;

use std::path::Path;

fn main() {
    for path in ["build", "kernels", "src/families"] {
        println!("cargo::rerun-if-changed={path}");
    }
    for variable in ["DEVELOPER_DIR", "SMELT_METAL_PRECOMPILE"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let variable = |name| std::env::var(name).unwrap_or_default();
    let folder = variable("OUT_DIR");
    let folder = Path::new(&folder);
    let is_wanted = variable("CARGO_CFG_TARGET_OS") == "macos";
    let precompile = if is_wanted { variable("SMELT_METAL_PRECOMPILE") } else { "0".to_owned() };
    let sources: Vec<_> = families::LIBRARIES
        .iter()
        .map(|library| (library.name, library.source(&families::Sources::default())))
        .collect();
    let compile = || xcode::compile(Path::new("xcrun"), &sources, folder);
    let libraries = xcode::decide(&precompile, compile).unwrap_or_else(|line| {
        println!("{line}");
        Vec::new()
    });
    if let Err(error) = xcode::embed(&libraries, folder) {
        println!("cargo::error=the list of compiled kernels cannot be written: {error}");
    }
}
