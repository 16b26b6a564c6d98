//! Rules of MSL that a simulation does without, read off the tokens. What needs types is left to the compiler, which
//! sees the same text with real address spaces (`shim/lint.h`).

use std::collections::BTreeMap;
use std::ops::Range;

use super::declarations::Scanner;
use super::names;
use super::token::Kind;

/// The address space that a word names.
fn address_space(word: &str) -> Option<&'static str> {
    ["device", "constant", "threadgroup", "thread"].into_iter().find(|&space| space == word)
}

/// A string literal is in the constant address space. Those in attributes and assertions must stay as they are.
pub(super) fn string_literal(scanner: &mut Scanner<'_>, at: usize) {
    let tokens = scanner.tokens;
    let is_text = |index: usize| tokens.kind(index) == Some(Kind::Text) && tokens.get(index).starts_with('"');
    let before = at.checked_sub(1).map_or("", |index| tokens.get(index));
    if !is_text(at) || !matches!(before, "(" | "," | "=" | "return") {
        return;
    }
    let mut depth = 0usize;
    for index in (0..at).rev() {
        match tokens.get(index) {
            ")" => depth += 1,
            "(" if depth > 0 => depth -= 1,
            "(" => {
                let name = index.checked_sub(1).map_or("", |index| tokens.get(index));
                if matches!(name, "static_assert" | "host_name" | "asm" | "volatile" | "deprecated") {
                    return;
                }
                break;
            }
            ";" | "{" | "}" => break,
            _ => {}
        }
    }
    let mut last = at;
    while is_text(last + 1) {
        last += 1;
    }
    let text = format!("((constant char*){})", tokens.slice(at..last + 1));
    scanner.replace(at, last, text);
}

/// `constant T name;`, but for the definition of a member that its class initialises.
pub(super) fn uninitialised(scanner: &mut Scanner<'_>, head: usize, last: usize) {
    let tokens = scanner.tokens;
    let is_initialised = (head..last).any(|index| matches!(tokens.get(index), "{" | "extern" | "(" | "::"));
    if !is_initialised {
        scanner.report(head, "a variable in the constant address space must be initialised");
    }
}

/// The rules of one function with a body.
pub(super) fn function(scanner: &mut Scanner<'_>, head: usize, name: usize, body: usize) {
    let tokens = scanner.tokens;
    let Some(open) = scanner.parameter_list(name, body) else { return };
    let (close, end) = (tokens.closing(open).min(body), tokens.closing(body).min(tokens.all.len()));
    let parameters = scanner.split_parameters(open + 1, close);
    if (head..name).any(|index| tokens.get(index) == "kernel") {
        kernel(scanner, head, name, &parameters);
    }
    for range in &parameters {
        array_parameter(scanner, range.clone());
    }
    pointers_without_address_space(scanner, head..end);
    static_variables(scanner, body..end);
    addresses_in_thread_pointers(scanner, &parameters, body..end);
}

fn kernel(scanner: &mut Scanner<'_>, head: usize, name: usize, parameters: &[Range<usize>]) {
    let tokens = scanner.tokens;
    let before_name = name.saturating_sub(1);
    if before_name >= head && tokens.get(before_name) != "void" {
        let found = tokens.get(before_name).to_owned();
        scanner.report(before_name, format!("a kernel returns void, not '{found}'"));
    }
    let mut slots: BTreeMap<(String, String), bool> = BTreeMap::new();
    for range in parameters {
        let attribute = range.clone().find(|&index| tokens.get(index) == "[" && tokens.get(index + 1) == "[");
        let declarator = range.start..attribute.unwrap_or(range.end);
        let space = declarator.clone().find_map(|index| address_space(tokens.get(index)));
        let is_indirect = declarator.clone().any(|index| matches!(tokens.get(index), "*" | "&" | "["));
        let attributes = attribute.unwrap_or(range.end)..range.end;
        let optional = attributes.clone().any(|index| tokens.get(index) == "function_constant");
        let is_builtin = attributes.clone().any(|index| names::builtin(tokens.get(index)).is_some());
        if is_builtin {
            if is_indirect || space.is_some() {
                scanner.report(range.start, "a parameter that the launch fills in is passed by value");
            }
            continue;
        }
        let expected: &[&str] =
            match attributes.clone().find(|&index| matches!(tokens.get(index), "buffer" | "threadgroup")) {
                Some(index) if tokens.get(index) == "threadgroup" => &["threadgroup"],
                _ => &["device", "constant"],
            };
        match space {
            // The type may be an alias of a pointer.
            _ if !is_indirect && attribute.is_some() => {}
            _ if !is_indirect => scanner.report(range.start, "a kernel parameter needs an attribute"),
            Some("thread") => {
                scanner.report(range.start, "a kernel parameter cannot be in the thread address space");
            }
            // Without an attribute threadgroup memory gets a slot of its own.
            Some(space) if attribute.is_some() && !expected.contains(&space) => {
                let message = format!(
                    "parameter in the {space} address space, its attribute is for {}",
                    expected.join(" or ")
                );
                scanner.report(range.start, message);
            }
            _ => {}
        }
        for index in attributes {
            if matches!(tokens.get(index), "buffer" | "threadgroup") && tokens.get(index + 1) == "(" {
                let argument = index + 2..tokens.closing(index + 1);
                let slot = scanner.integers.evaluate(tokens, argument.clone());
                let slot = slot.map_or_else(|| tokens.slice(argument).to_owned(), |slot| slot.to_string());
                let key = (tokens.get(index).to_owned(), slot);
                let was_optional = slots.insert(key.clone(), optional);
                // Parameters that function constants choose between may share a slot.
                if was_optional.is_some_and(|was| !was || !optional) {
                    scanner.report(index, format!("{}({}) is taken by an earlier parameter", key.0, key.1));
                }
            }
        }
    }
}

/// `threadgroup T name[N]` is a pointer; clang would have the address space apply to the parameter itself.
fn array_parameter(scanner: &mut Scanner<'_>, range: Range<usize>) {
    let tokens = scanner.tokens;
    let Some(bracket) = range.clone().find(|&index| tokens.get(index) == "[") else { return };
    let has_space = range.clone().any(|index| address_space(tokens.get(index)).is_some());
    let name = bracket.saturating_sub(1);
    let is_plain = (range.start..bracket).all(|index| !matches!(tokens.get(index), "*" | "&" | "("));
    if tokens.get(bracket + 1) != "[" && has_space && is_plain && tokens.kind(name) == Some(Kind::Word) {
        scanner.replace(name, tokens.closing(bracket), format!("(*{})", tokens.get(name)));
    }
}

/// Built-in types that pointers are made of.
pub(super) fn is_builtin_type(word: &str) -> bool {
    let scalar = word.trim_end_matches(|letter: char| ('2'..='4').contains(&letter));
    let scalar = scalar.strip_prefix("packed_").unwrap_or(scalar);
    matches!(
        scalar,
        "void"
            | "bool"
            | "char"
            | "uchar"
            | "short"
            | "ushort"
            | "int"
            | "uint"
            | "long"
            | "ulong"
            | "float"
            | "half"
            | "bfloat"
            | "int8_t"
            | "uint8_t"
            | "int16_t"
            | "uint16_t"
            | "int32_t"
            | "uint32_t"
            | "int64_t"
            | "uint64_t"
            | "size_t"
            | "unsigned"
    )
}

/// `float* p` and `const int& x`: MSL has no default address space for what is pointed to.
fn pointers_without_address_space(scanner: &mut Scanner<'_>, range: Range<usize>) {
    let tokens = scanner.tokens;
    for index in range {
        if !is_builtin_type(tokens.get(index)) || tokens.kind(index) != Some(Kind::Word) {
            continue;
        }
        let is_qualifier = |at: usize| {
            matches!(
                tokens.get(at),
                "const" | "volatile" | "unsigned" | "signed" | "static" | "constexpr" | "coherent"
            )
        };
        let mut star = index + 1;
        while is_qualifier(star) {
            star += 1;
        }
        if !matches!(tokens.get(star), "*" | "&") {
            continue;
        }
        let mut first = index;
        while first > 0 && is_qualifier(first - 1) {
            first -= 1;
        }
        // `coherent(device)` and the like end with a parenthesis: leave those alone.
        let before = first.checked_sub(1).map_or("", |at| tokens.get(at));
        let follows = matches!(before, "(" | "," | ";" | "{" | "}" | "<");
        // `threadgroup_barrier(int & mask)` is no declaration, but neither does a type stand there.
        let declares =
            tokens.kind(star + 1) == Some(Kind::Word) || matches!(tokens.get(star + 1), ")" | "," | ">");
        if follows && declares && address_space(tokens.get(star + 1)).is_none() {
            let what = if tokens.get(star) == "*" { "pointer" } else { "reference" };
            scanner.report(
                first,
                format!("a {what} needs an address space: device, constant, threadgroup or thread"),
            );
        }
    }
}

/// `static int n;` in a function.
fn static_variables(scanner: &mut Scanner<'_>, body: Range<usize>) {
    let tokens = scanner.tokens;
    for index in body {
        if tokens.get(index) == "static" && matches!(tokens.get(index - 1), ";" | "{" | "}") {
            let constant = (index..index + 4)
                .any(|at| matches!(tokens.get(at), "constant" | "constexpr" | "const" | "threadgroup"));
            if !constant {
                scanner
                    .report(index, "a static variable in a function must be in the constant address space");
            }
        }
    }
}

/// Where a `thread` pointer takes an address of another space. The compiler takes such a pointer for one to any space,
/// so that the classes of the shim work on objects in all of them.
fn addresses_in_thread_pointers(scanner: &mut Scanner<'_>, parameters: &[Range<usize>], body: Range<usize>) {
    let tokens = scanner.tokens;
    let mut spaces: BTreeMap<&str, &'static str> = BTreeMap::new();
    let pointer = |range: Range<usize>| {
        let end = range.clone().find(|&index| matches!(tokens.get(index), "[" | "=")).unwrap_or(range.end);
        let declarator = range.start..end;
        let stars = declarator.clone().filter(|&index| tokens.get(index) == "*").count();
        let space = declarator.clone().find_map(|index| address_space(tokens.get(index)));
        let name = end.checked_sub(1).filter(|&last| tokens.kind(last) == Some(Kind::Word));
        (stars == 1).then_some(()).and(name).zip(space)
    };
    for range in parameters {
        if let Some((name, space)) = pointer(range.clone()) {
            spaces.insert(tokens.get(name), space);
        }
    }
    let mut at = body.start;
    while at < body.end {
        if address_space(tokens.get(at)).is_some() {
            let end = (at..body.end)
                .find(|&index| matches!(tokens.get(index), ";" | ")" | "{" | ","))
                .unwrap_or(at);
            if tokens.get(end) == ";"
                && let Some((name, space)) = pointer(at..end)
            {
                let variable = tokens.get(name);
                if space == "thread"
                    && tokens.get(name + 1) == "="
                    && tokens.kind(name + 2) == Some(Kind::Word)
                    && matches!(tokens.get(name + 3), ";" | "+" | "-")
                    && let Some(other) = spaces.get(tokens.get(name + 2)).filter(|&&other| other != "thread")
                {
                    let source = tokens.get(name + 2);
                    scanner.report(
                        name,
                        format!("'{variable}' points to the thread address space, '{source}' to {other}"),
                    );
                }
                spaces.insert(variable, space);
                at = end;
            }
        }
        at += 1;
    }
}
