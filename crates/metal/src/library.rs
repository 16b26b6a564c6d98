//! Where the texts of kernels are taken from.

use crate::device::{CompileOptions, LanguageVersion, MathMode};
pub use crate::families::{LIBRARIES, Library, Sources};
use crate::{Error, Switches};
use std::collections::HashMap;
use std::path::Path;

/// Libraries that were compiled ahead of time: name and bytes.
pub type Compiled = &'static [(&'static str, &'static [u8])];

/// What the build script compiled for Apple's GPUs, with fast arithmetic: every library, or none where Xcode's tools were
/// not at hand.
pub const EMBEDDED: Compiled = include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// How the kernels are compiled: as the language of macOS 13, with that arithmetic.
pub fn compile_options(math: MathMode) -> CompileOptions {
    CompileOptions { version: LanguageVersion::V3_0, math, ..CompileOptions::default() }
}

impl Sources {
    /// What the switches ask for: with `SMELT_METAL_SOURCES`, the files of that folder.
    ///
    /// # Errors
    /// [`Error::Environment`] for a folder that cannot be read, and for one without any file of `libraries`.
    pub fn new(switches: &Switches, libraries: &[Library]) -> Result<Sources, Error> {
        let Some(folder) = &switches.sources else { return Ok(Sources::default()) };
        let names = libraries.iter().flat_map(|library| library.files).map(|(name, _)| *name);
        let sources = Sources::read(folder, names)?;
        if sources.0.is_empty() {
            return Err(wrong(folder.display().to_string()));
        }
        Ok(sources)
    }

    fn read<'n>(folder: &Path, names: impl Iterator<Item = &'n str>) -> Result<Sources, Error> {
        let mut files = HashMap::new();
        for name in names {
            let path = folder.join(name);
            match std::fs::read_to_string(&path) {
                Ok(text) => drop(files.insert(name.to_owned(), text)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(wrong(format!("{}: {error}", path.display()))),
            }
        }
        Ok(Sources(files))
    }
}

fn wrong(found: String) -> Error {
    let expected = "a folder with files of the kernels, as in crates/metal/kernels";
    Error::Environment { variable: "SMELT_METAL_SOURCES", expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_follow_layouts_and_constants_under_their_own_names() {
        let library = Library {
            name: "x",
            files: &[("a.h", "int a;"), ("b.metal", "int b;")],
            constants: &[("ROWS", 4)],
        };
        let text = library.source(&Sources::default());
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("'{part}' is missing"));
        let order = [
            "#include <metal_stdlib>",
            "} BlockQ4_0;",
            "#define ROWS 4\n",
            "#line 1 \"a.h\"\nint a;\n",
            "#line 1 \"b.metal\"\nint b;\n",
        ];
        assert!(order.map(at).is_sorted());
        assert!(!text.contains("#pragma once"));
    }

    #[test]
    fn a_file_of_the_folder_takes_the_place_of_its_namesake_alone() {
        let library =
            Library { name: "x", files: &[("a.h", "int a;"), ("b.metal", "int b;")], constants: &[] };
        let folder = tempfile::tempdir().unwrap();
        let switches = Switches { sources: Some(folder.path().into()), ..Switches::default() };
        let error = Sources::new(&switches, &[library]).unwrap_err().to_string();
        assert!(error.starts_with("SMELT_METAL_SOURCES: expected a folder with files"), "{error}");
        std::fs::write(folder.path().join("a.h"), "int c;").unwrap();
        std::fs::write(folder.path().join("other.h"), "int d;").unwrap();
        let text = library.source(&Sources::new(&switches, &[library]).unwrap());
        assert!(text.ends_with("#line 1 \"a.h\"\nint c;\n#line 1 \"b.metal\"\nint b;\n"), "{text}");
        std::fs::write(folder.path().join("b.metal"), [0xff]).unwrap();
        let error = Sources::new(&switches, &[library]).unwrap_err().to_string();
        assert!(error.contains("b.metal"), "{error}");
    }
}
