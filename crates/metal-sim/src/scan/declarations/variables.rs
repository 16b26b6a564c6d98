//! Variables at namespace scope: function constants and those computed from them.

use super::super::token::Kind;
use super::super::{Constant, lint};
use super::{Declaration, Scanner};

impl Scanner<'_> {
    /// A variable, function declaration or anything else that ends with `;` at namespace scope.
    pub(super) fn variable(&mut self, declaration: &Declaration) {
        let tokens = self.tokens;
        let (head, last) = (declaration.head, declaration.end - 1);
        if declaration.end <= head || tokens.get(last) != ";" {
            return;
        }
        let word_at = |wanted: &str, to: usize| (head..to).find(|&index| tokens.get(index) == wanted);
        if word_at("function_constant", last).is_some() {
            self.function_constant(declaration);
            return;
        }
        let equals = (head..last).find(|&index| tokens.get(index) == "=");
        let names_end = equals.unwrap_or(last);
        if self.function_name(head, names_end).is_some() && equals.is_none() {
            self.function_pointers(head, last);
            return;
        }
        if word_at("threadgroup", names_end).is_some() {
            self.report(head, "threadgroup variables must be declared in a kernel function");
            return;
        }
        if declaration.is_template
            || matches!(tokens.get(head), "struct" | "class" | "union" | "enum") && names_end == head + 2
        {
            return;
        }
        let is_constant = word_at("constant", names_end).is_some();
        if !is_constant && word_at("constexpr", names_end).is_none() && word_at("const", names_end).is_none()
        {
            let is_declaration =
                tokens.kind(head) == Some(Kind::Word) && last > head + 1 && tokens.get(head) != "enum";
            if is_declaration {
                self.report(head, "variables at namespace scope must be in the constant address space");
            }
            return;
        }
        match equals {
            Some(equals) => {
                let name = tokens.get(equals - 1).to_owned();
                self.integers.define(tokens, &name, equals + 1..last);
                self.derived_constant(declaration, equals);
            }
            None if self.is_lint() && is_constant => lint::uninitialised(self, head, last),
            None => {}
        }
    }

    /// `struct S { ... } name;` at namespace scope.
    pub(super) fn variable_after_record(&mut self, from: usize, end: usize) {
        if from + 1 < end && self.tokens.kind(from) == Some(Kind::Word) {
            self.report(from, "variables at namespace scope must be in the constant address space");
        }
    }

    /// `constant T name [[function_constant(index)]];`
    fn function_constant(&mut self, declaration: &Declaration) {
        let tokens = self.tokens;
        let last = declaration.end - 1;
        let open =
            (declaration.head..last).find(|&index| tokens.get(index) == "[" && tokens.get(index + 1) == "[");
        let Some(open) = open.filter(|&open| open > declaration.head + 1) else {
            self.report(declaration.head, "function constant without a name");
            return;
        };
        let close = tokens.closing(open);
        let call = (open..close).find(|&index| tokens.get(index) == "(");
        let index = call.map_or("", |paren| tokens.slice(paren + 1..tokens.closing(paren)));
        if index.is_empty() {
            self.report(open, "function constant without an index");
            return;
        }
        let name = tokens.get(open - 1).to_owned();
        let type_name = self.type_words(declaration.head, open - 1);
        self.dynamic_constants.push(name.clone());
        self.replace(
            declaration.start,
            last,
            format!("static const metal_sim::FunctionConstant<{type_name}, ({index})> {name};"),
        );
        self.scan.constants.push(Constant { name, type_name, index: index.to_owned() });
    }

    /// `constant T name = expression;` with a function constant in the expression: computed on each use.
    fn derived_constant(&mut self, declaration: &Declaration, equals: usize) {
        let tokens = self.tokens;
        let last = declaration.end - 1;
        let depends = (equals + 1..last)
            .any(|index| self.dynamic_constants.iter().any(|name| name == tokens.get(index)));
        if !depends || equals <= declaration.head + 1 {
            return;
        }
        // Attributes may stand behind the name.
        let end = (declaration.head..equals).find(|&index| tokens.get(index) == "[").unwrap_or(equals);
        let attributes = end < equals && tokens.get(end + 1) == "[";
        if end <= declaration.head + 1 || (end < equals && !attributes) {
            let message = "arrays that are computed from function constants are outside the subset that the \
                           simulator runs";
            self.report(declaration.head, message);
            return;
        }
        let name = tokens.get(end - 1).to_owned();
        let type_name = self.type_words(declaration.head, end - 1);
        // Components of vectors are members of the constant, too.
        let base = match type_name.as_str() {
            "auto" => String::new(),
            name => format!(" : metal_sim::Components<{name}, metal_sim_constant_{}>", self.unique + 1),
        };
        let unique = self.next_unique();
        self.dynamic_constants.push(name.clone());
        self.uses.derived(&name, equals + 1..last);
        // What is between stays: it has edits of its own.
        self.replace(
            declaration.start,
            equals,
            format!("struct metal_sim_constant_{unique}{base} {{ METAL_SIM_INLINE operator {type_name}() const {{ return "),
        );
        self.replace(last, last, format!("; }} }}; static const metal_sim_constant_{unique} {name};"));
    }

    /// The text of some tokens without their attributes.
    pub(super) fn without_attributes(&self, range: std::ops::Range<usize>) -> String {
        let tokens = self.tokens;
        let (mut text, mut at) = (String::new(), range.start);
        while at < range.end {
            if tokens.get(at) == "[" && tokens.get(at + 1) == "[" {
                at = tokens.closing(at);
            } else {
                text.push_str(tokens.get(at));
                text.push(' ');
            }
            at += 1;
        }
        text
    }

    /// The value of adjacent string literals.
    pub(super) fn string_literal(&self, first: usize) -> String {
        let parts = (first..).take_while(|&index| self.tokens.kind(index) == Some(Kind::Text));
        parts.map(|index| self.tokens.get(index).trim_matches('"')).collect()
    }

    /// The words of a type, without storage classes and address spaces.
    fn type_words(&self, from: usize, to: usize) -> String {
        let words: Vec<&str> = (from..to)
            .map(|index| self.tokens.get(index))
            .filter(|word| {
                !matches!(*word, "constant" | "const" | "static" | "constexpr" | "inline" | "extern")
            })
            .collect();
        words.join(" ")
    }
}
