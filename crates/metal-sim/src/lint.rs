//! Lint: what Apple's compiler would refuse and a simulation would run all the same.
//!
//! Two passes over every kernel of a source. The first reads the tokens: attributes of kernel parameters, pointers without
//! an address space, what MSL has no word for. The second is clang's, with real address spaces: conversions between
//! them, constness, overloads, conversions of vectors.
//!
//! It does not know everything that Apple's compiler knows: a source without a complaint may still be refused there.

use std::path::Path;

use metal::device::CompileOptions;

use crate::compile::{self, Clang, Error, Source};
use crate::scan::{self, Diagnostic};

/// What a lint found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many entry points were looked at.
    pub kernels: usize,
    /// Complaints in the order of the source.
    pub diagnostics: Vec<Diagnostic>,
}

/// Looks at every kernel of a source.
///
/// # Errors
/// Where the source cannot be looked at: without clang, or if an include is missing. See [`Error`].
pub fn lint(clang: &Clang, source: Source<'_>, options: &CompileOptions) -> Result<Report, Error> {
    let text = compile::preprocess(clang, source, options)?;
    let (scanned, mut diagnostics) = scan::scan_for_lint(&text).map_err(Error::Unsupported)?;
    let templates = scanned.kernels.iter().filter(|kernel| kernel.is_template).count();
    let kernels = scanned.kernels.len() - templates + scanned.instantiations.len();
    if let Some(output) = compile::check(clang, &scan::translate_for_lint(&text, &scanned))? {
        let found = diagnostics_of(&output, &compile::shim_directory()?);
        if found.is_empty() {
            return Err(Error::Clang(output));
        }
        let of_tokens = diagnostics.clone();
        diagnostics.extend(found.into_iter().filter(|diagnostic| {
            let known = || {
                let here = (&diagnostic.file, diagnostic.line);
                of_tokens.iter().filter(move |known| (&known.file, known.line) == here)
            };
            let is_known = known().next().is_some();
            // Textures and the like: the compiler does not know the words around them either.
            let is_outside = known().any(|known| known.message.contains("outside the subset"));
            // Clang's words for a threadgroup variable outside a kernel.
            let repeats =
                is_known && diagnostic.message == "automatic variable qualified with an address space";
            !repeats
                && !is_outside
                && !is_choice_of_spaces(&diagnostic.message)
                && !is_consequence(&diagnostic.message)
        }));
    }
    diagnostics.sort_by(|a, b| (&a.file, a.line, a.column).cmp(&(&b.file, b.line, b.column)));
    Ok(Report { kernels, diagnostics })
}

/// Whether clang refuses `c ? a : b` with objects of one class in two address spaces. In MSL these are built-in types,
/// whose values are chosen from.
fn is_choice_of_spaces(message: &str) -> bool {
    let types = message.strip_prefix("incompatible operand types ('").and_then(|rest| rest.split_once("')"));
    let Some((first, second)) = types.and_then(|(types, _)| types.split_once("' and '")) else {
        return false;
    };
    let plain = |name: &str| {
        let words = name.split_whitespace();
        let is_space = |word: &str| matches!(word, "const" | "constant" | "device" | "threadgroup");
        words.filter(|word| !is_space(word)).collect::<Vec<_>>().join(" ")
    };
    plain(first) == plain(second)
}

/// Whether clang refuses a call since it has refused something in the body of the callee before: then it gives no reason,
/// and the reason was an error of its own.
fn is_consequence(message: &str) -> bool {
    message.starts_with("no matching function")
        && message.lines().any(|line| line.contains("ignored: substitution failure [") && line.ends_with(']'))
}

/// The errors in clang's output, each with the notes that belong to it. One in a header of the shim is placed where the
/// source led there, and its notes about the shim are left out.
fn diagnostics_of(output: &str, shim: &Path) -> Vec<Diagnostic> {
    let in_shim = |file: &str| Path::new(file).starts_with(shim);
    let mut diagnostics: Vec<Diagnostic> = Vec::new();
    for line in output.lines() {
        let note = line.split_once(": note: ");
        let Some((place, message)) = note.or_else(|| line.split_once(": error: ")) else { continue };
        let mut parts = place.rsplitn(3, ':');
        let (Some(column), Some(row), Some(file)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (Ok(column), Ok(row)) = (column.parse(), row.parse()) else { continue };
        let message = in_words_of_msl(message);
        match diagnostics.last_mut() {
            Some(last) if note.is_some() => {
                if in_shim(file) {
                    continue;
                }
                if in_shim(&last.file) {
                    (last.file, last.line, last.column) = (file.to_owned(), row, column);
                } else {
                    last.message.push_str(&format!("\n  {place}: {message}"));
                }
            }
            _ => diagnostics.push(Diagnostic { file: file.to_owned(), line: row, column, message }),
        }
    }
    // What is left inside the shim follows from an error before it.
    if diagnostics.iter().any(|diagnostic| !in_shim(&diagnostic.file)) {
        diagnostics.retain(|diagnostic| !in_shim(&diagnostic.file));
    }
    // The same place may be reached again through the same header.
    diagnostics.dedup_by(|a, b| (&a.file, a.line, a.column) == (&b.file, b.line, b.column));
    diagnostics
}

/// The names that `shim/lint.h` gives the address spaces, as they are written in MSL.
fn in_words_of_msl(message: &str) -> String {
    // Of an assertion its own words are enough.
    let asserted = message.strip_prefix("static assertion failed").and_then(|rest| rest.split_once(": "));
    asserted
        .map_or(message, |(_, words)| words)
        .replace("const __global_host", "constant")
        .replace("__global_host", "constant")
        .replace("__global_device", "device")
        .replace("__local", "threadgroup")
        .replace("_Float16", "half")
        .replace("__bf16", "bfloat")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{diagnostics_of, is_choice_of_spaces, is_consequence};

    #[test]
    fn values_of_one_type_may_come_from_two_spaces() {
        assert!(is_choice_of_spaces("incompatible operand types ('vec<...>' and 'constant vec<...>')"));
        assert!(!is_choice_of_spaces("incompatible operand types ('float *' and 'threadgroup half *')"));
        assert!(!is_choice_of_spaces("no matching function"));
    }

    #[test]
    fn a_refusal_without_a_reason_is_a_consequence() {
        let refused = "no matching function for call to 'f'\n  a:1:2: candidate template ignored: substitution failure [with T = int]";
        assert!(is_consequence(refused));
        assert!(!is_consequence(&format!("{refused}: no type named 'type'")));
    }

    #[test]
    fn notes_belong_to_their_error() {
        let output = "a.metal:3:5: error: no matching function for call to 'f'\na.metal:1:6: note: candidate\n\
                      b.h:7:1: error: unknown type name '__local x'\n2 errors generated.\n";
        let found = diagnostics_of(output, Path::new("/shim"));
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0].to_string(),
            "a.metal:3:5: no matching function for call to 'f'\n  a.metal:1:6: candidate"
        );
        assert_eq!(found[1].to_string(), "b.h:7:1: unknown type name 'threadgroup x'");
    }

    #[test]
    fn an_error_in_the_shim_is_placed_in_the_source() {
        let output = "/shim/vector.h:9:1: error: vectors of different sizes\n/shim/vector.h:8:1: note: macro\n\
                      k.metal:4:7: note: requested here\nk.metal:2:1: note: in kernel\n";
        let found = diagnostics_of(output, Path::new("/shim"));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "k.metal:4:7: vectors of different sizes\n  k.metal:2:1: in kernel");
    }
}
