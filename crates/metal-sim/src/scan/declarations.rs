//! Namespace scope: kernels, function constants, explicit instantiations, and what must not be there.

use std::collections::BTreeMap;

use super::body::{scan_body, scan_words};
use super::calls::CallGraph;
use super::required::Uses;
use super::token::{Kind, Tokens};
use super::{Binding, Constant, Diagnostic, Edit, Instantiation, Kernel, Parameter, Scan};
use super::{lint, names};

/// The most complaints that are collected about one source.
const DIAGNOSTIC_LIMIT: usize = 50;

/// Scans preprocessed MSL.
///
/// # Errors
/// Everything in the source that the simulator cannot run, in the order of the text.
pub fn scan(text: &str) -> Result<Scan, Vec<Diagnostic>> {
    let (scan, mut diagnostics) = run(text, Purpose::Execution)?;
    if diagnostics.is_empty() {
        Ok(scan)
    } else {
        diagnostics.truncate(DIAGNOSTIC_LIMIT);
        Err(diagnostics)
    }
}

/// Scans preprocessed MSL for [`lint`](crate::lint): address spaces stay, and the rules of MSL apply that a simulation
/// does without. The scan holds even where there are complaints.
///
/// # Errors
/// Text that cannot be split into tokens.
pub fn scan_for_lint(text: &str) -> Result<(Scan, Vec<Diagnostic>), Vec<Diagnostic>> {
    run(text, Purpose::Lint)
}

/// What a scan is made for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Execution,
    Lint,
}

fn run(text: &str, purpose: Purpose) -> Result<(Scan, Vec<Diagnostic>), Vec<Diagnostic>> {
    let tokens = Tokens::new(text).map_err(|diagnostic| vec![diagnostic])?;
    let mut scanner = Scanner {
        tokens: &tokens,
        purpose,
        scan: Scan::default(),
        diagnostics: Vec::new(),
        calls: CallGraph::default(),
        uses: Uses::default(),
        namespaces: Vec::new(),
        records: Vec::new(),
        signatures: BTreeMap::new(),
        dynamic_constants: Vec::new(),
        unique: 0,
    };
    scan_words(&mut scanner);
    scanner.scope(0, tokens.all.len(), Scope::Namespace);
    let recursion = scanner.calls.recursive_functions(&tokens);
    scanner.diagnostics.extend(recursion);
    for &(start, end) in &tokens.pragmas {
        scanner.edit(start, end, String::new());
    }
    let Scanner { mut scan, diagnostics, uses, .. } = scanner;
    let constants: Vec<&str> = scan.constants.iter().map(|constant| constant.name.as_str()).collect();
    for kernel in &mut scan.kernels {
        let name = kernel.name.rsplit("::").next().unwrap_or(&kernel.name);
        kernel.required_constants = uses.required(&tokens, name, &constants).into_iter().collect();
    }
    scan.edits = apart(scan.edits);
    Ok((scan, diagnostics))
}

/// Sorts edits; one inside another goes, since the outer one replaces it.
fn apart(mut edits: Vec<Edit>) -> Vec<Edit> {
    edits.sort_by_key(|edit| (edit.start, std::cmp::Reverse(edit.end)));
    let mut kept: Vec<Edit> = Vec::with_capacity(edits.len());
    for edit in edits {
        if kept.last().is_none_or(|last| edit.start >= last.end) {
            kept.push(edit);
        }
    }
    kept
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Namespace,
    Record,
}

pub(super) struct Scanner<'t> {
    pub tokens: &'t Tokens<'t>,
    purpose: Purpose,
    pub scan: Scan,
    pub diagnostics: Vec<Diagnostic>,
    calls: CallGraph,
    uses: Uses,
    namespaces: Vec<String>,
    /// The records around the current place: their names and the tokens at which their bodies start.
    records: Vec<(String, usize)>,
    /// Declarations so far without their address spaces: their bodies, and whether they had any.
    signatures: BTreeMap<String, (String, bool)>,
    /// Function constants and constants computed from them: values that only a launch knows.
    dynamic_constants: Vec<String>,
    unique: u32,
}

/// A declaration at namespace or record scope, as ranges of tokens.
struct Declaration {
    /// The whole declaration, its template header included.
    start: usize,
    /// The first token after the template header.
    head: usize,
    /// The `{` of its body, if it has one.
    body: Option<usize>,
    /// One past its last token.
    end: usize,
    is_template: bool,
}

impl Scanner<'_> {
    pub fn is_lint(&self) -> bool {
        self.purpose == Purpose::Lint
    }

    pub fn report(&mut self, index: usize, message: impl Into<String>) {
        let diagnostic = self.tokens.diagnostic(index, message);
        self.diagnostics.push(diagnostic);
    }

    pub fn edit(&mut self, start: usize, end: usize, text: String) {
        self.scan.edits.push(Edit { start, end, text });
    }

    /// Replaces tokens `first..=last`, keeping the number of lines.
    pub fn replace(&mut self, first: usize, last: usize, mut text: String) {
        // A range that runs past the end belongs to a text that is cut off: clang will say so.
        let last = last.min(self.tokens.all.len().saturating_sub(1));
        let Some((start, end)) =
            self.tokens.all.get(first).map(|token| (token.start, self.tokens.all[last].end))
        else {
            return;
        };
        if start > end {
            return;
        }
        let removed = &self.tokens.text[start..end];
        // Line markers inside the range go with it; the ones after it put the count right again.
        text.extend(removed.bytes().filter(|&byte| byte == b'\n').map(|_| '\n'));
        self.edit(start, end, text);
    }

    pub fn next_unique(&mut self) -> u32 {
        self.unique += 1;
        self.unique
    }

    fn scope(&mut self, mut at: usize, end: usize, scope: Scope) {
        while at < end {
            if matches!(self.tokens.get(at), ";" | "}" | ")" | "]" | ":" | ",") {
                at += 1;
                continue;
            }
            if scope == Scope::Record
                && matches!(self.tokens.get(at), "public" | "private" | "protected")
                && self.tokens.get(at + 1) == ":"
            {
                at += 2;
                continue;
            }
            at = self.declaration(at, end, scope).max(at + 1);
        }
    }

    /// Handles the declaration that starts at `start`; returns one past its end.
    fn declaration(&mut self, start: usize, limit: usize, scope: Scope) -> usize {
        let tokens = self.tokens;
        let mut head = start;
        let mut is_template = false;
        while tokens.get(head) == "template" && tokens.get(head + 1) == "<" {
            is_template = true;
            head = tokens.closing_angle(head + 1).map_or(limit, |close| close + 1);
        }
        if tokens.get(head) == "namespace"
            || (tokens.get(head) == "extern" && tokens.kind(head + 1) == Some(Kind::Text))
        {
            return self.namespace(head, limit);
        }
        let declaration = self.extent(start, head, is_template, limit);
        let head_end = declaration.body.unwrap_or(declaration.end);
        let words = || (head..head_end).map(|index| tokens.get(index));
        if matches!(tokens.get(head), "using" | "typedef" | "static_assert" | "friend") {
            return declaration.end;
        }
        let function = if tokens.get(head) == "template" { None } else { self.function_name(head, head_end) };
        if let Some(name) = function
            && self.is_repeated(&declaration, name, scope)
        {
            return declaration.end;
        }
        if let Some(body) = declaration.body {
            if let Some(name) = function {
                self.function(&declaration, name, body);
            } else if words().any(|word| matches!(word, "struct" | "class" | "union")) {
                if is_template && self.is_repeated_record(&declaration, body) {
                    return declaration.end;
                }
                let close = tokens.closing(body);
                let keyword =
                    (head..body).find(|&index| matches!(tokens.get(index), "struct" | "class" | "union"));
                let name = keyword.map_or("", |keyword| tokens.get(keyword + 1)).to_owned();
                self.records.push((name, body));
                self.scope(body + 1, close.min(limit), Scope::Record);
                self.records.pop();
                if scope == Scope::Namespace {
                    self.variable_after_record(close + 1, declaration.end);
                }
            }
            return declaration.end;
        }
        if tokens.get(head) == "template" {
            self.instantiation(&declaration);
        } else if scope == Scope::Namespace {
            self.variable(&declaration);
        }
        declaration.end
    }

    /// Whether a function differs from an earlier one in nothing but address spaces, which have no effect here:
    /// it is left out then. Address spaces behind the parameters of a member function go in any case.
    fn is_repeated(&mut self, declaration: &Declaration, name: usize, scope: Scope) -> bool {
        let tokens = self.tokens;
        let is_address_space = |word: &str| matches!(word, "device" | "thread" | "threadgroup" | "constant");
        let call_operator =
            tokens.get(name) == "operator" && tokens.get(name + 1) == "(" && tokens.get(name + 2) == ")";
        let first = if call_operator { name + 3 } else { name };
        let Some(open) = (first..declaration.end).find(|&index| tokens.get(index) == "(") else {
            return false;
        };
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
    fn is_repeated_record(&mut self, declaration: &Declaration, body: usize) -> bool {
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
        match self.signatures.get(&signature) {
            Some((earlier, earlier_has))
                if (has_address_space || *earlier_has)
                    && (whatever_body || *earlier == body && !body.is_empty()) =>
            {
                self.replace(declaration.start, declaration.end - 1, String::new());
                true
            }
            Some(_) => false,
            None => {
                self.signatures.insert(signature, (body, has_address_space));
                false
            }
        }
    }

    /// The words of a range with `constant` as `const` and without the other address spaces, and whether there
    /// were any. For lint they tell declarations apart and stay.
    fn without_address_spaces(&self, range: std::ops::Range<usize>) -> (String, bool) {
        let (mut text, mut found) = (String::new(), false);
        if self.is_lint() {
            return (range.map(|index| self.tokens.get(index)).collect::<Vec<_>>().join(" "), false);
        }
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
    fn names_operator(&self, at: usize) -> bool {
        (at.saturating_sub(3)..at).any(|index| self.tokens.get(index) == "operator")
    }

    fn namespace(&mut self, head: usize, limit: usize) -> usize {
        let tokens = self.tokens;
        let Some(open) = (head..limit).find(|&index| matches!(tokens.get(index), "{" | ";")) else {
            return limit;
        };
        if tokens.get(open) == ";" {
            return open + 1;
        }
        let close = tokens.closing(open);
        let name = if tokens.get(head) == "namespace" { tokens.slice(head + 1..open) } else { "" };
        let is_named = !name.is_empty() && tokens.kind(head + 1) == Some(Kind::Word);
        if is_named {
            self.namespaces.push(name.to_owned());
        }
        self.scope(open + 1, close.min(limit), Scope::Namespace);
        if is_named {
            self.namespaces.pop();
        }
        close + 1
    }

    /// Finds where a declaration ends: at its `;`, or with the body of a function.
    fn extent(&self, start: usize, head: usize, is_template: bool, limit: usize) -> Declaration {
        let tokens = self.tokens;
        let is_using = matches!(tokens.get(head), "using" | "typedef" | "static_assert");
        let mut body = None;
        let mut initialised = false;
        let mut at = head;
        while at < limit {
            match tokens.get(at) {
                ";" => return Declaration { start, head, body, end: at + 1, is_template },
                // What follows an equals sign of an operator's name or of `= default` is no initialiser.
                "=" if !self.names_operator(at) => initialised = true,
                "(" | "[" => at = tokens.closing(at),
                "{" => {
                    let close = tokens.closing(at);
                    if !initialised && !is_using && body.is_none() {
                        body = Some(at);
                        if self.function_name(head, at).is_some() {
                            return Declaration {
                                start,
                                head,
                                body,
                                end: (close + 1).min(limit),
                                is_template,
                            };
                        }
                    }
                    at = close;
                }
                "}" => return Declaration { start, head, body, end: at, is_template },
                _ => {}
            }
            at += 1;
        }
        Declaration { start, head, body, end: limit, is_template }
    }

    /// The token that names a function whose declaration spans `head..body`.
    fn function_name(&self, head: usize, body: usize) -> Option<usize> {
        let tokens = self.tokens;
        let mut at = head;
        let mut name = None;
        while at < body {
            match tokens.get(at) {
                "[" => at = tokens.closing(at),
                "<" => at = tokens.closing_angle(at).unwrap_or(at),
                "=" if !self.names_operator(at) => return name,
                "(" => {
                    let before = at.checked_sub(1).filter(|&index| index >= head);
                    let is_keyword = before.is_some_and(|index| {
                        matches!(
                            tokens.get(index),
                            "alignas" | "decltype" | "__attribute__" | "noexcept" | "__declspec"
                        )
                    });
                    if !is_keyword && name.is_none() {
                        // The name may carry template arguments: `f<int>(`.
                        name = before
                            .filter(|&index| tokens.kind(index) == Some(Kind::Word))
                            .or_else(|| (head..at).rev().find(|&index| tokens.get(index) == "operator"));
                        if name.is_none() && before.is_some_and(|index| tokens.get(index) == ">") {
                            name = (head..at).rev().find(|&index| {
                                tokens.get(index + 1) == "<" && tokens.closing_angle(index + 1) == before
                            });
                        }
                    }
                    at = tokens.closing(at);
                }
                _ => {}
            }
            at += 1;
        }
        name
    }

    fn function(&mut self, declaration: &Declaration, name: usize, body: usize) {
        let tokens = self.tokens;
        let close = tokens.closing(body);
        let words: Vec<&str> = (declaration.head..name).map(|index| tokens.get(index)).collect();
        for stage in ["vertex", "fragment", "object", "mesh"] {
            if words.contains(&stage) && tokens.get(declaration.head) == stage {
                self.report(
                    declaration.head,
                    format!("{stage} functions are outside the subset that the simulator runs"),
                );
            }
        }
        let is_kernel = words.contains(&"kernel");
        if is_kernel {
            self.kernel(declaration, name);
        } else {
            self.parameters_of_function(name);
        }
        if self.is_lint() {
            lint::function(self, declaration.head, name, body);
        }
        if self.records.is_empty() {
            self.uses.function(tokens.get(name), name + 1..close.min(tokens.all.len()));
        }
        self.calls.define(tokens, name, body, close, declaration.is_template);
        scan_body(self, body, close, is_kernel);
    }

    /// Function pointers are fine as template arguments, not as parameters.
    fn parameters_of_function(&mut self, name: usize) {
        let Some(open) = (name..self.tokens.all.len()).find(|&index| self.tokens.get(index) == "(") else {
            return;
        };
        let close = self.tokens.closing(open);
        self.function_pointers(open + 1, close);
    }

    /// Reports declarators such as `(*name)(`.
    pub fn function_pointers(&mut self, from: usize, to: usize) {
        let tokens = self.tokens;
        for index in from..to {
            let declares = tokens.get(index) == "("
                && tokens.get(index + 1) == "*"
                && tokens.kind(index + 2) == Some(Kind::Word)
                && tokens.get(index + 3) == ")"
                && tokens.get(index + 4) == "("
                && index > 0
                && tokens.kind(index - 1) == Some(Kind::Word)
                && !matches!(
                    tokens.get(index - 1),
                    "return" | "if" | "while" | "for" | "switch" | "case" | "else" | "do"
                );
            if declares {
                self.report(index + 2, "MSL has no function pointers");
            }
        }
    }

    fn kernel(&mut self, declaration: &Declaration, name: usize) {
        let tokens = self.tokens;
        let Some(open) = (name..tokens.all.len()).find(|&index| tokens.get(index) == "(") else { return };
        let close = tokens.closing(open);
        let mut parameters: Vec<(usize, String, Option<Binding>, bool)> = Vec::new();
        for range in self.split_parameters(open + 1, close) {
            let (name, binding, optional) = self.parameter(range.clone());
            parameters.push((range.start, name, binding, optional));
        }
        let mut taken: Vec<u32> = parameters
            .iter()
            .filter_map(|(_, _, binding, _)| match binding {
                Some(Binding::Buffer(slot)) => Some(*slot),
                _ => None,
            })
            .collect();
        let parameters = parameters
            .into_iter()
            .map(|(_, name, binding, optional)| {
                // Without an attribute a pointer gets the next free buffer slot.
                let binding = binding.unwrap_or_else(|| {
                    let slot = (0..).find(|slot| !taken.contains(slot)).unwrap_or(0);
                    taken.push(slot);
                    Binding::Buffer(slot)
                });
                Parameter { name, binding, optional }
            })
            .collect();
        let attributes = |wanted: &str| {
            (declaration.start..name)
                .find(|&index| tokens.get(index) == wanted && tokens.get(index + 1) == "(")
        };
        let host_name = attributes("host_name").map(|index| self.string_literal(index + 2));
        let max_threads = attributes("max_total_threads_per_threadgroup")
            .and_then(|index| tokens.get(index + 2).parse().ok())
            .unwrap_or(0);
        let mut qualified = self.namespaces.join("::");
        if !qualified.is_empty() {
            qualified.push_str("::");
        }
        qualified.push_str(tokens.get(name));
        self.scan.kernels.push(Kernel {
            name: qualified,
            host_name,
            parameters,
            is_template: declaration.is_template,
            max_threads,
            required_constants: Vec::new(),
            line: tokens.all[name].line,
        });
    }

    pub(super) fn split_parameters(&self, from: usize, to: usize) -> Vec<std::ops::Range<usize>> {
        let tokens = self.tokens;
        let (mut ranges, mut start, mut at) = (Vec::new(), from, from);
        while at < to {
            match tokens.get(at) {
                "(" | "[" | "{" => at = tokens.closing(at),
                "<" => at = tokens.closing_angle(at).unwrap_or(at),
                "," => {
                    ranges.push(start..at);
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        if start < to && !(ranges.is_empty() && tokens.slice(start..to) == "void") {
            ranges.push(start..to);
        }
        ranges
    }

    /// Name, binding and optionality of one kernel parameter.
    fn parameter(&mut self, range: std::ops::Range<usize>) -> (String, Option<Binding>, bool) {
        let tokens = self.tokens;
        let (mut name, mut binding, mut optional) = (String::new(), None, false);
        let mut at = range.start;
        while at < range.end {
            if tokens.get(at) == "[" && tokens.get(at + 1) == "[" {
                let close = tokens.closing(at);
                for inner in at + 2..close.saturating_sub(1) {
                    let argument =
                        || tokens.get(inner + 2).parse::<u32>().ok().filter(|_| tokens.get(inner + 1) == "(");
                    match tokens.get(inner) {
                        "buffer" | "threadgroup" => {
                            let Some(slot) =
                                argument().filter(|&slot| slot < 31 && tokens.get(inner + 3) == ")")
                            else {
                                self.report(inner, "expected a slot from 0 to 30");
                                continue;
                            };
                            binding = Some(if tokens.get(inner) == "buffer" {
                                Binding::Buffer(slot)
                            } else {
                                Binding::Threadgroup(slot)
                            });
                        }
                        "function_constant" => optional = true,
                        word => {
                            if let Some(builtin) = names::builtin(word) {
                                binding = Some(Binding::Builtin(builtin));
                            } else if tokens.kind(inner) == Some(Kind::Word)
                                && matches!(tokens.get(inner - 1), "[" | ",")
                                && binding.is_none()
                                && word != "maybe_unused"
                            {
                                self.report(inner, format!("parameter attribute '{word}' is outside the subset that the simulator runs"));
                                binding = Some(Binding::Builtin("thread_position_in_grid"));
                            }
                        }
                    }
                }
                at = close;
            } else if tokens.kind(at) == Some(Kind::Word) && binding.is_none() {
                tokens.get(at).clone_into(&mut name);
            }
            at += 1;
        }
        (name, binding, optional)
    }

    /// `template [[host_name("...")]] kernel ... name<arguments>(...);`
    fn instantiation(&mut self, declaration: &Declaration) {
        let tokens = self.tokens;
        let mut host_name = None;
        let mut kernel = None;
        let mut at = declaration.head + 1;
        let mut is_kernel = false;
        while at + 1 < declaration.end {
            match tokens.get(at) {
                "[" => {
                    let close = tokens.closing(at);
                    for inner in at..close {
                        match tokens.get(inner) {
                            "host_name" => host_name = Some(self.string_literal(inner + 2)),
                            "kernel" => is_kernel = true,
                            _ => {}
                        }
                    }
                    at = close;
                }
                "kernel" => is_kernel = true,
                "<" => {
                    let Some(close) = tokens.closing_angle(at) else { break };
                    if tokens.kind(at - 1) == Some(Kind::Word) {
                        let mut first = at - 1;
                        while first >= 2
                            && tokens.get(first - 1) == "::"
                            && tokens.kind(first - 2) == Some(Kind::Word)
                        {
                            first -= 2;
                        }
                        kernel = Some((
                            tokens.slice(first..at).to_owned(),
                            tokens.slice(at..close + 1).to_owned(),
                        ));
                    }
                    at = close;
                }
                "(" => {
                    if kernel.is_some() {
                        break;
                    }
                    let close = tokens.closing(at);
                    if tokens.kind(at - 1) == Some(Kind::Word) && tokens.get(at - 1) != "decltype" {
                        // Without template arguments the types of the parameters select the instance.
                        kernel =
                            Some((tokens.get(at - 1).to_owned(), self.without_attributes(at..close + 1)));
                        break;
                    }
                    at = close;
                }
                _ => {}
            }
            at += 1;
        }
        match (host_name, kernel) {
            (Some(host_name), Some((kernel, arguments))) => {
                self.scan.instantiations.push(Instantiation { host_name, kernel, arguments });
            }
            (Some(_), None) => {
                self.report(declaration.head, "instantiation with a host name but without a kernel")
            }
            (None, _) if !is_kernel => return,
            (None, _) => {}
        }
        self.replace(declaration.start, declaration.end - 1, String::new());
    }

    /// A variable, function declaration or anything else that ends with `;` at namespace scope.
    fn variable(&mut self, declaration: &Declaration) {
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
            Some(equals) => self.derived_constant(declaration, equals),
            None if self.is_lint() && is_constant => lint::uninitialised(self, head, last),
            None => {}
        }
    }

    /// `struct S { ... } name;` at namespace scope.
    fn variable_after_record(&mut self, from: usize, end: usize) {
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
        let name = tokens.get(equals - 1).to_owned();
        let type_name = self.type_words(declaration.head, equals - 1);
        let expression = tokens.slice(equals + 1..last).to_owned();
        let unique = self.next_unique();
        self.dynamic_constants.push(name.clone());
        self.uses.derived(&name, equals + 1..last);
        self.replace(
            declaration.start,
            last,
            format!(
                "struct metal_sim_constant_{unique} {{ METAL_SIM_INLINE operator {type_name}() const {{ return {expression}; }} }}; \
                 static const metal_sim_constant_{unique} {name};"
            ),
        );
    }

    /// The text of some tokens without their attributes.
    fn without_attributes(&self, range: std::ops::Range<usize>) -> String {
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
    fn string_literal(&self, first: usize) -> String {
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
