//! Which functions call which, to refuse recursion.

use std::collections::{BTreeMap, BTreeSet};

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
        let candidates = self.callers_of_callers();
        for (&name, function) in &candidates {
            if Self::reaches_itself(name, &candidates) {
                diagnostics.push(
                    tokens.diagnostic(function.place, format!("'{name}' calls itself: MSL has no recursion")),
                );
            }
        }
        diagnostics.sort_by_key(|diagnostic| (diagnostic.line, diagnostic.column));
        diagnostics
    }

    /// The functions that are left when those that call none of the others are taken away, one after the other: all that
    /// recurse are among them, and mostly there are none.
    fn callers_of_callers(&self) -> BTreeMap<&str, &Function> {
        let mut callers: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut calls: BTreeMap<&str, usize> = BTreeMap::new();
        for name in self.functions.keys() {
            let Some(function) = self.countable(name) else { continue };
            let called: BTreeSet<&str> = function.calls.iter().map(String::as_str).collect();
            let called: Vec<&str> =
                called.into_iter().filter(|called| self.countable(called).is_some()).collect();
            calls.insert(name, called.len());
            called.into_iter().for_each(|called| callers.entry(called).or_default().push(name));
        }
        let mut leaves: Vec<&str> =
            calls.iter().filter(|&(_, &count)| count == 0).map(|(&name, _)| name).collect();
        while let Some(leaf) = leaves.pop() {
            calls.remove(leaf);
            for caller in callers.get(leaf).into_iter().flatten() {
                if let Some(count) = calls.get_mut(caller) {
                    *count -= 1;
                    if *count == 0 {
                        leaves.push(caller);
                    }
                }
            }
        }
        calls.into_keys().filter_map(|name| Some((name, self.functions.get(name)?))).collect()
    }

    fn countable(&self, name: &str) -> Option<&Function> {
        self.functions.get(name).filter(|function| function.definitions == 1 && !function.is_template)
    }

    fn reaches_itself(start: &str, functions: &BTreeMap<&str, &Function>) -> bool {
        let calls = |name: &str| functions.get(name).into_iter().flat_map(|function| &function.calls);
        let mut pending: Vec<&str> = calls(start).map(String::as_str).collect();
        let mut seen = BTreeSet::new();
        while let Some(name) = pending.pop() {
            if name == start {
                return true;
            }
            if seen.insert(name) {
                pending.extend(calls(name).map(String::as_str));
            }
        }
        false
    }
}
