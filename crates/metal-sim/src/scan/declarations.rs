//! Namespace scope: kernels, function constants, explicit instantiations, and what must not be there.

mod kernels;
mod repeats;
mod variables;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::body::{scan_body, scan_words};
use super::calls::CallGraph;
use super::integers::Integers;
use super::required::Uses;
use super::token::{Kind, Tokens};
use super::{Diagnostic, Edit, Scan, lint};

/// The most complaints that are collected about one source.
const DIAGNOSTIC_LIMIT: usize = 50;
/// How deep namespaces and records may lie in each other.
const DEPTH_LIMIT: usize = 100;

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
        pointers: BTreeMap::new(),
        record_names: BTreeSet::new(),
        integers: Integers::default(),
        function_names: BTreeSet::new(),
        kernel_names: Vec::new(),
        signatures: BTreeMap::new(),
        dynamic_constants: Vec::new(),
        unique: 0,
        depth: 0,
    };
    scan_words(&mut scanner);
    scanner.scope(0, tokens.all.len(), Scope::Namespace);
    let recursion = scanner.calls.recursive_functions(&tokens);
    scanner.diagnostics.extend(recursion);
    for &(start, end) in &tokens.pragmas {
        scanner.edit(start, end, loop_directive(&text[start..end]));
    }
    let Scanner { mut scan, diagnostics, uses, function_names, kernel_names, .. } = scanner;
    let constants: Vec<&str> = scan.constants.iter().map(|constant| constant.name.as_str()).collect();
    for kernel in &mut scan.kernels {
        let name = kernel.name.rsplit("::").next().unwrap_or(&kernel.name);
        kernel.required_constants = uses.required(&tokens, name, &constants).into_iter().collect();
    }
    for (kernel, &name) in scan.kernels.iter_mut().zip(&kernel_names) {
        // Of a kernel with the name of a function nobody could take the address.
        if !kernel.is_template && function_names.contains(tokens.get(name)) {
            let original = tokens.get(name);
            kernel.host_name.get_or_insert_with(|| original.to_owned());
            kernel.name.push_str("_metal_sim_kernel");
            let (start, end) = (tokens.all[name].start, tokens.all[name].end);
            scan.edits.push(Edit { start, end, text: format!("{original}_metal_sim_kernel") });
        }
    }
    scan.edits = apart(scan.edits);
    Ok((scan, in_order(&tokens, diagnostics)))
}

/// What becomes of a directive: nothing, or the shim's macro for one that tells how the loop behind it is compiled. Clang
/// takes the words of Apple's compiler.
fn loop_directive(directive: &str) -> String {
    let Some(words) = directive.trim_start_matches('#').trim_start().strip_prefix("pragma") else {
        return String::new();
    };
    let words = words.trim();
    let mut names =
        words.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let is_about_loops = match names.next() {
        Some("unroll" | "nounroll") => true,
        Some("clang") => names.next() == Some("loop"),
        _ => false,
    };
    if is_about_loops && !words.contains(['"', '\\']) {
        format!("METAL_SIM_LOOP(\"{words}\")")
    } else {
        String::new()
    }
}

/// Sorts complaints by place. Of two about one place the first says it all.
fn in_order(tokens: &Tokens<'_>, mut diagnostics: Vec<Diagnostic>) -> Vec<Diagnostic> {
    let file = |diagnostic: &Diagnostic| tokens.files.iter().position(|file| *file == diagnostic.file);
    diagnostics.sort_by_key(|diagnostic| (file(diagnostic), diagnostic.line, diagnostic.column));
    diagnostics.dedup_by(|a, b| (&a.file, a.line, a.column) == (&b.file, b.line, b.column));
    diagnostics
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
    /// Records with pointers in them, and the first of these: what no kernel can take from a buffer.
    pointers: BTreeMap<String, usize>,
    /// The names of all records.
    record_names: BTreeSet<String>,
    pub integers: Integers,
    /// The names of all functions with a body that are no kernels and no members.
    function_names: BTreeSet<String>,
    /// The token that names each kernel.
    kernel_names: Vec<usize>,
    /// Declarations so far, by their text without address spaces.
    signatures: BTreeMap<String, Signature>,
    /// Function constants and constants computed from them: values that only a launch knows.
    dynamic_constants: Vec<String>,
    unique: u32,
    depth: usize,
}

/// What is known of an earlier declaration.
struct Signature {
    /// Its body without address spaces, empty if it has none.
    body: String,
    has_address_space: bool,
    /// Its first token and the one behind its last.
    tokens: Range<usize>,
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

    /// Whether there is a complaint about the line of a token.
    pub fn complains_about_line_of(&self, index: usize) -> bool {
        let here = self.tokens.diagnostic(index, "");
        self.diagnostics.iter().any(|known| (&known.file, known.line) == (&here.file, here.line))
    }

    pub fn edit(&mut self, start: usize, end: usize, text: String) {
        self.scan.edits.push(Edit { start, end, text });
    }

    /// Replaces tokens `first..=last`, keeping the number of lines and, if the text is no longer, of columns.
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
        let lines = |text: &str| text.bytes().filter(|&byte| byte == b'\n').count();
        // The text may hold parts of what it replaces, line ends and all.
        let missing = lines(removed).saturating_sub(lines(&text));
        text.extend(std::iter::repeat_n('\n', missing));
        // What follows in the line keeps its column where it can.
        if lines(removed) == 0 {
            text.extend(std::iter::repeat_n(' ', removed.len().saturating_sub(text.len())));
        }
        self.edit(start, end, text);
    }

    pub fn next_unique(&mut self) -> u32 {
        self.unique += 1;
        self.unique
    }

    fn scope(&mut self, mut at: usize, end: usize, scope: Scope) {
        if self.depth == DEPTH_LIMIT {
            self.report(at, format!("more than {DEPTH_LIMIT} namespaces and records in each other"));
            return;
        }
        self.depth += 1;
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
        self.depth -= 1;
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
        let is_linkage = tokens.get(head) == "extern" && tokens.kind(head + 1) == Some(Kind::Text);
        if tokens.get(head) == "namespace" || (is_linkage && tokens.get(head + 2) == "{") {
            return self.namespace(head, limit);
        }
        if is_linkage {
            // Of one declaration: it has no effect, and C++ would not have it in front of a kernel.
            self.replace(head, head + 1, String::new());
            head += 2;
        }
        let declaration = self.extent(start, head, is_template, limit);
        let head_end = declaration.body.unwrap_or(declaration.end);
        let words = || (head..head_end).map(|index| tokens.get(index));
        let is_typedef = tokens.get(head) == "typedef";
        if tokens.get(head + usize::from(is_typedef)) == "enum"
            && let Some(open) = (head..declaration.end).find(|&index| tokens.get(index) == "{")
        {
            self.integers.enumerators(tokens, open, tokens.closing(open).min(declaration.end));
            return declaration.end;
        }
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
                self.record_names.insert(name.clone());
                self.records.push((name, body));
                self.scope(body + 1, close.min(limit), Scope::Record);
                self.records.pop();
                if scope == Scope::Namespace {
                    self.variable_after_record(close + 1, declaration.end);
                }
            }
            return declaration.end;
        }
        if function.is_none() && scope == Scope::Record {
            self.member(head..declaration.end);
        }
        if tokens.get(head) == "template" {
            self.instantiation(&declaration);
        } else if scope == Scope::Namespace {
            self.variable(&declaration);
        }
        declaration.end
    }

    /// Notes a member variable that is, or has in it, a pointer to memory of the device.
    fn member(&mut self, declaration: Range<usize>) {
        let words = || declaration.clone().map(|index| self.tokens.get(index));
        let is_pointer = words().any(|word| matches!(word, "*" | "&"))
            && words().any(|word| matches!(word, "device" | "constant"));
        let is_static = words().any(|word| matches!(word, "static" | "constexpr"));
        if !is_static
            && (is_pointer || words().any(|word| self.pointers.contains_key(word)))
            && let Some((record, _)) = self.records.last()
        {
            self.pointers.entry(record.clone()).or_insert(declaration.start);
        }
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
        // The last token that is no attribute: these may stand behind the name.
        let mut last = None;
        while at < body {
            match tokens.get(at) {
                "[" if tokens.get(at + 1) == "[" => {
                    at = tokens.closing(at) + 1;
                    continue;
                }
                "[" => at = tokens.closing(at),
                "<" => at = tokens.closing_angle(at).unwrap_or(at),
                "=" if !self.names_operator(at) => return name,
                "(" => {
                    let before: Option<usize> = last;
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
            last = Some(at);
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
        // What a kernel calls by its own name is a function of the library: kernels cannot be called.
        if !is_kernel {
            if self.records.is_empty() {
                self.function_names.insert(tokens.get(name).to_owned());
            }
            self.calls.define(tokens, name, body, close, declaration.is_template);
        }
        scan_body(self, body, close, is_kernel);
    }

    /// The bracket that opens the parameters of a function: attributes with brackets of their own may stand before it.
    pub fn parameter_list(&self, name: usize, end: usize) -> Option<usize> {
        let mut at = name;
        while at < end {
            match self.tokens.get(at) {
                "(" => return Some(at),
                "[" => at = self.tokens.closing(at),
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Function pointers are fine as template arguments, not as parameters.
    fn parameters_of_function(&mut self, name: usize) {
        let Some(open) = self.parameter_list(name, self.tokens.all.len()) else { return };
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
}
