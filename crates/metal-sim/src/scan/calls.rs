//! Which functions call which, to refuse recursion.

use std::collections::BTreeMap;

use super::Diagnostic;
use super::token::{Kind, Tokens};

/// Calls by name. Overloads and templates may call their namesakes without recursion, so that only functions
/// with one definition and no template parameters count.
#[derive(Default)]
pub(super) struct CallGraph {
    functions: BTreeMap<String, Function>,
}

struct Function {
    place: usize,
    definitions: u32,
    is_template: bool,
    calls: Vec<String>,
}

impl CallGraph {
    /// Adds the function named by the token `name` with the body `open..close`.
    pub fn define(&mut self, tokens: &Tokens<'_>, name: usize, open: usize, close: usize, is_template: bool) {
        let mut calls = Vec::new();
        for index in open + 1..close.min(tokens.all.len()) {
            let is_call = tokens.kind(index) == Some(Kind::Word)
                && tokens.get(index + 1) == "("
                && !matches!(tokens.get(index - 1), "." | "->" | "::");
            if is_call {
                calls.push(tokens.get(index).to_owned());
            }
        }
        let function = self.functions.entry(tokens.get(name).to_owned()).or_insert(Function {
            place: name,
            definitions: 0,
            is_template: false,
            calls: Vec::new(),
        });
        function.definitions += 1;
        function.is_template |= is_template;
        function.calls.extend(calls);
    }

    /// One complaint for each function that can reach itself.
    pub fn recursive_functions(&self, tokens: &Tokens<'_>) -> Vec<Diagnostic> {
        let mut diagnostics = Vec::new();
        for (name, function) in &self.functions {
            if self.reaches_itself(name) {
                diagnostics.push(
                    tokens.diagnostic(function.place, format!("'{name}' calls itself: MSL has no recursion")),
                );
            }
        }
        diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        diagnostics
    }

    fn countable(&self, name: &str) -> Option<&Function> {
        self.functions.get(name).filter(|function| function.definitions == 1 && !function.is_template)
    }

    fn reaches_itself(&self, start: &str) -> bool {
        let Some(function) = self.countable(start) else { return false };
        let mut pending: Vec<&str> = function.calls.iter().map(String::as_str).collect();
        let mut seen: Vec<&str> = Vec::new();
        while let Some(name) = pending.pop() {
            if name == start {
                return true;
            }
            if seen.contains(&name) {
                continue;
            }
            seen.push(name);
            if let Some(function) = self.countable(name) {
                pending.extend(function.calls.iter().map(String::as_str));
            }
        }
        false
    }
}
