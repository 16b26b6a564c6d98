//! Which function constants a kernel needs a value for.
//!
//! Metal refuses to specialise a kernel that uses a constant without a value, unless the source asks whether it has one.
//! Uses are followed through plain functions; what only member functions use is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::token::{Kind, Tokens};

/// The functions and constants of a source.
#[derive(Default)]
pub(super) struct Uses {
    /// Parameters and bodies by name; overloads together.
    functions: BTreeMap<String, Vec<Range<usize>>>,
    /// Constants computed from others: the tokens of their expressions.
    derived: BTreeMap<String, Range<usize>>,
}

impl Uses {
    /// Adds a function at namespace scope.
    pub fn function(&mut self, name: &str, tokens: Range<usize>) {
        self.functions.entry(name.to_owned()).or_default().push(tokens);
    }

    /// Adds a constant that is computed from others.
    pub fn derived(&mut self, name: &str, tokens: Range<usize>) {
        self.derived.insert(name.to_owned(), tokens);
    }

    /// The names of the constants, of those given, that the kernel needs.
    pub fn required(&self, tokens: &Tokens<'_>, kernel: &str, constants: &[&str]) -> BTreeSet<String> {
        let is_asked_for = |name: &str| {
            (0..tokens.all.len()).any(|index| {
                tokens.get(index) == "is_function_constant_defined" && tokens.get(index + 2) == name
            })
        };
        let mut found = BTreeSet::new();
        let mut seen = BTreeSet::from([kernel]);
        let mut pending: Vec<Range<usize>> = self.functions.get(kernel).cloned().unwrap_or_default();
        while let Some(range) = pending.pop() {
            for index in range {
                let word = tokens.get(index);
                let is_member = index > 0 && matches!(tokens.get(index - 1), "." | "->");
                if tokens.kind(index) != Some(Kind::Word) || is_member {
                    continue;
                }
                if constants.contains(&word) {
                    found.insert(word.to_owned());
                } else if seen.insert(word) {
                    pending.extend(self.derived.get(word).cloned());
                    if matches!(tokens.get(index + 1), "(" | "<") {
                        pending.extend(self.functions.get(word).into_iter().flatten().cloned());
                    }
                }
            }
        }
        found.retain(|name| !is_asked_for(name));
        found
    }
}
