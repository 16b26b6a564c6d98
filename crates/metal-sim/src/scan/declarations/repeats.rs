//! Declarations that differ in nothing but address spaces, which C++ takes for the same.

use std::ops::Range;

use super::{Declaration, Scanner, Scope, Signature};

impl Scanner<'_> {
    /// Whether a function differs from an earlier one in nothing but address spaces, which have no effect here:
    /// it is left out then. Address spaces behind the parameters of a member function go in any case.
    pub(super) fn is_repeated(&mut self, declaration: &Declaration, name: usize, scope: Scope) -> bool {
        let tokens = self.tokens;
        let is_address_space = |word: &str| matches!(word, "device" | "thread" | "threadgroup" | "constant");
        let call_operator =
            tokens.get(name) == "operator" && tokens.get(name + 1) == "(" && tokens.get(name + 2) == ")";
        let first = if call_operator { name + 3 } else { name };
        let Some(open) = self.parameter_list(first, declaration.end) else { return false };
        let close = tokens.closing(open);
        let (text, mut has_address_space) =
            self.without_address_spaces(declaration.start..(close + 1).min(declaration.end));
        let mut signature = format!("{:?} {:?}{text}", self.namespaces, self.records.last());
        if scope == Scope::Record {
            let is_constructor = self.records.last().is_some_and(|(record, _)| record == tokens.get(name));
            let qualifiers = close + 1..declaration.end;
            let qualifiers: Vec<usize> = qualifiers
                .take_while(|&index| !matches!(tokens.get(index), "{" | ";" | "=" | ":" | "->"))
                .collect();
            let is_const = qualifiers.iter().any(|&index| matches!(tokens.get(index), "const" | "constant"));
            let mut says_const =
                qualifiers.iter().any(|&index| tokens.get(index) == "const") || is_constructor;
            for &index in qualifiers.iter().filter(|&&index| is_address_space(tokens.get(index))) {
                has_address_space = true;
                let add_const = tokens.get(index) == "constant" && !says_const;
                says_const |= add_const;
                self.replace(index, index, if add_const { "const".to_owned() } else { String::new() });
            }
            if self.is_lint() {
                // Those for the other spaces return references to these.
                let (result, _) = self.words_in_any_space(declaration.start..name);
                signature = format!(
                    "{:?} {:?}{result} {}",
                    self.namespaces,
                    self.records.last(),
                    tokens.slice(name..(close + 1).min(declaration.end))
                );
            }
            if is_const && !is_constructor {
                signature.push_str(" const");
            }
        }
        if (declaration.head..name).any(|index| tokens.get(index) == "kernel") {
            return false;
        }
        let body = declaration.body.map_or(0..0, |body| body..tokens.closing(body) + 1);
        let (body, _) = self.without_address_spaces(body);
        self.is_known(declaration, signature, body, has_address_space, scope == Scope::Record)
    }

    /// Whether a partial specialisation differs from an earlier one in nothing but address spaces.
    pub(super) fn is_repeated_record(&mut self, declaration: &Declaration, body: usize) -> bool {
        let (text, has_address_space) = self.without_address_spaces(declaration.start..body);
        let signature = format!("{:?} {:?}{text}", self.namespaces, self.records.last());
        self.is_known(declaration, signature, String::new(), has_address_space, true)
    }

    /// Notes a signature, or leaves the declaration out if it is known already.
    fn is_known(
        &mut self,
        declaration: &Declaration,
        signature: String,
        body: String,
        has_address_space: bool,
        whatever_body: bool,
    ) -> bool {
        let tokens = declaration.start..declaration.end;
        let Some(earlier) = self.signatures.get(&signature) else {
            self.signatures.insert(signature, Signature { body, has_address_space, tokens });
            return false;
        };
        if !has_address_space && !earlier.has_address_space {
            return false;
        }
        if whatever_body || earlier.body == body && !body.is_empty() {
            self.replace(declaration.start, declaration.end - 1, String::new());
            return true;
        }
        let is_written_twice = self.tokens.slice(tokens) == self.tokens.slice(earlier.tokens.clone());
        if !body.is_empty() && !earlier.body.is_empty() && !is_written_twice {
            let line = self.tokens.all.get(earlier.tokens.start).map_or(0, |token| token.line);
            let message = format!(
                "differs from the function of line {line} in address spaces alone, but not in its body: such \
                 overloads are outside the subset that the simulator runs"
            );
            self.report(declaration.head, message);
        }
        false
    }

    /// The words of a range with `constant` as `const` and without the other address spaces, and whether there
    /// were any. For lint they tell declarations apart and stay.
    fn without_address_spaces(&self, range: Range<usize>) -> (String, bool) {
        if self.is_lint() {
            return (range.map(|index| self.tokens.get(index)).collect::<Vec<_>>().join(" "), false);
        }
        self.words_in_any_space(range)
    }

    fn words_in_any_space(&self, range: Range<usize>) -> (String, bool) {
        let (mut text, mut found) = (String::new(), false);
        for index in range {
            match self.tokens.get(index) {
                "device" | "thread" | "threadgroup" => found = true,
                word => {
                    found |= word == "constant";
                    let word = if word == "constant" { "const" } else { word };
                    // `constant const int*` is `const int*` here.
                    if word != "const" || !text.ends_with(" const") {
                        text.push(' ');
                        text.push_str(word);
                    }
                }
            }
        }
        (text, found)
    }

    /// Whether an equals sign belongs to the name of an operator function.
    pub(super) fn names_operator(&self, at: usize) -> bool {
        (at.saturating_sub(3)..at).any(|index| self.tokens.get(index) == "operator")
    }
}
