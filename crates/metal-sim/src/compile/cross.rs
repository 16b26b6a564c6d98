//! The same kernels for another kind of processor.

use std::fs;

use metal::device::{CompileOptions, MathMode};

use super::{Clang, Error, Source, cache, preprocess, shim};
use crate::scan;

/// What a kernel is compiled for instead of the simulator.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// A name for the cache.
    pub name: &'a str,
    /// Headers that take the place of the simulator's of the same name.
    pub headers: &'a [(&'a str, &'a str)],
    /// Flags of clang; it is to write text.
    pub flags: &'a [&'a str],
    /// The text of an entry point: its number, and the type whose `run` calls the kernel.
    pub entry_point: fn(usize, &str) -> String,
}

/// Compiles a source for a target, or finds it in the cache. Entry points are numbered in the order of
/// [`Module::kernels`](crate::runtime::Module::kernels).
///
/// # Errors
/// As for [`build`](super::build).
pub fn cross_compile(
    clang: &Clang,
    source: Source<'_>,
    options: &CompileOptions,
    target: Target<'_>,
) -> Result<String, Error> {
    let text = preprocess(clang, source, options)?;
    let scanned = scan::scan(&text).map_err(Error::Unsupported)?;
    let mut translated = scan::rewritten(&text, &scanned, "kernel.h");
    translated.push_str("\n# 1 \"<kernel table>\"\n");
    let entry_points = scan::entry_points(&scanned).map_err(Error::Kernels)?;
    for (number, entry) in
        entry_points.iter().filter(|entry| source.only.is_none_or(|only| only == entry.host_name)).enumerate()
    {
        translated.push_str(&(target.entry_point)(number, &entry.entry));
        translated.push('\n');
    }
    let directory = cache::directory();
    let headers = shim::install_for(&directory, target.headers)?;
    let mut arguments: Vec<String> = target.flags.iter().map(|&flag| flag.to_owned()).collect();
    match options.math {
        MathMode::Fast => arguments.extend(["-ffast-math", "-fno-finite-math-only"].map(str::to_owned)),
        MathMode::Safe => arguments.push("-ffp-contract=off".to_owned()),
    }
    let path = directory.join(format!(
        "{}.{}",
        cache::key(&[&translated, &headers.display().to_string(), &arguments.join(" "), clang.identity()]),
        target.name
    ));
    if let Ok(compiled) = fs::read_to_string(&path) {
        return Ok(compiled);
    }
    arguments.extend(["-I", &headers.display().to_string(), "-o", "-", "-"].map(str::to_owned));
    let compiled = clang.run(&arguments, &translated)?;
    let part = cache::temporary(&path);
    let written = fs::write(&part, &compiled).and_then(|()| fs::rename(&part, &path));
    written.map_err(|source| Error::Io { action: format!("writing {}", path.display()), source })?;
    Ok(compiled)
}
