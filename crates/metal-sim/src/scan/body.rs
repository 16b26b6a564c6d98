//! Function bodies: threadgroup variables, literals and attributes.

use super::declarations::Scanner;
use super::token::Kind;
use super::{lint, names};

/// What can be seen word by word in the whole text: refused words, swizzles, attributes, literals.
pub(super) fn scan_words(scanner: &mut Scanner<'_>) {
    let tokens = scanner.tokens;
    let has_bfloat = (0..tokens.all.len()).any(|index| tokens.get(index) == "bfloat");
    let mut at = 0;
    while at < tokens.all.len() {
        match tokens.kind(at) {
            Some(Kind::Word) => {
                let word = tokens.get(at);
                if word == "static_cast" && has_bfloat {
                    // clang converts neither way between its half and bfloat types.
                    scanner.replace(at, at, "metal_sim::static_conversion".to_owned());
                }
                if word == "struct" {
                    assignment(scanner, at);
                }
                // With a scope in parentheses it is a macro of the shim.
                if word == "coherent" && matches!(tokens.get(at + 1), "device" | "volatile" | "const") {
                    scanner.replace(at, at, String::new());
                }
                let is_member = at > 0 && matches!(tokens.get(at - 1), "." | "->");
                if is_member && names::is_swizzle(word) {
                    scanner.scan.swizzles.insert(word.to_owned());
                } else if !is_member
                    && !is_deleted_function(scanner, at)
                    && let Some(reason) = names::refusal(word)
                {
                    scanner.report(at, format!("'{word}': {reason}"));
                }
            }
            Some(Kind::Number) => {
                if let Some(text) = literal(tokens.get(at)) {
                    let token = tokens.all[at];
                    scanner.edit(token.start, token.end, text);
                }
            }
            Some(Kind::Text) if scanner.is_lint() => lint::string_literal(scanner, at),
            _ if tokens.get(at) == "["
                && tokens.get(at + 1) == "["
                && attribute_end(scanner, at).is_some() =>
            {
                at = attribute(scanner, at);
            }
            _ => {}
        }
        at += 1;
    }
}

/// Whether this is the `delete` of `= delete;`.
fn is_deleted_function(scanner: &Scanner<'_>, at: usize) -> bool {
    let tokens = scanner.tokens;
    tokens.get(at) == "delete" && at > 0 && tokens.get(at - 1) == "=" && tokens.get(at + 1) == ";"
}

/// Gives a record with an anonymous union an assignment operator: the shim's vectors have one that copies bytes,
/// and C++ would delete the union's for that. A record without a name behind a `typedef` gets a name for it.
fn assignment(scanner: &mut Scanner<'_>, keyword: usize) {
    let tokens = scanner.tokens;
    let is_named = tokens.kind(keyword + 1) == Some(Kind::Word) && tokens.get(keyword + 2) == "{";
    let open = if is_named { keyword + 2 } else { keyword + 1 };
    let follows_typedef = keyword > 0 && tokens.get(keyword - 1) == "typedef";
    if tokens.get(open) != "{" || !(is_named || follows_typedef) {
        return;
    }
    let close = tokens.closing(open);
    let mut at = open + 1;
    let mut has_union = false;
    while at < close {
        match tokens.get(at) {
            "union" if tokens.get(at + 1) == "{" => {
                at = tokens.closing(at + 1);
                has_union |= tokens.get(at + 1) == ";";
            }
            "{" | "(" => at = tokens.closing(at),
            "operator" if tokens.get(at + 1) == "=" => return,
            _ => {}
        }
        at += 1;
    }
    if has_union {
        let given = if is_named { None } else { Some(format!("metal_sim_record_{}", scanner.next_unique())) };
        let name = given.as_deref().unwrap_or_else(|| tokens.get(keyword + 1));
        let text = format!(
            "{} {{ METAL_SIM_INLINE {name}& operator=(const {name}& other) \
             {{ __builtin_memcpy((void*)this, &other, sizeof(*this)); return *this; }}",
            given.as_deref().unwrap_or("")
        );
        scanner.replace(open, open, text);
    }
}

/// Structures whose pointers the host fills in.
pub(super) const ARGUMENT_BUFFERS: &str = "argument buffers are outside the subset that the simulator runs";

/// Where the attribute that starts with `[[` ends, if it is one.
fn attribute_end(scanner: &Scanner<'_>, open: usize) -> Option<usize> {
    let tokens = scanner.tokens;
    let close = tokens.closing(open);
    (tokens.get(close.wrapping_sub(1)) == "]" && tokens.closing(open + 1) == close - 1).then_some(close)
}

/// Removes an attribute: the compiler knows none of MSL's.
fn attribute(scanner: &mut Scanner<'_>, open: usize) -> usize {
    let tokens = scanner.tokens;
    let close = tokens.closing(open);
    let text = if tokens.get(open + 2) == "kernel" { " kernel ".to_owned() } else { String::new() };
    let name = tokens.get(open + 2);
    if name == "id" {
        scanner.report(open + 2, ARGUMENT_BUFFERS);
    }
    // Of a texture the type is refused already.
    let is_told = matches!(name, "texture" | "sampler") && scanner.complains_about_line_of(open);
    if matches!(name, "stage_in" | "position" | "attribute" | "color" | "texture" | "sampler") && !is_told {
        scanner.report(open + 2, format!("attribute '{name}' is outside the subset that the simulator runs"));
    }
    scanner.replace(open, close, text);
    close
}

/// A floating-point literal is a float in MSL, and `h` makes a half.
fn literal(number: &str) -> Option<String> {
    let lower = number.to_ascii_lowercase();
    let is_hexadecimal = lower.starts_with("0x");
    let is_floating =
        if is_hexadecimal { lower.contains('p') } else { lower.contains('.') || lower.contains('e') };
    if let Some(digits) = lower.strip_suffix("bf").filter(|_| !is_hexadecimal) {
        return Some(format!("bfloat({}f)", as_floating(digits)));
    }
    if let Some(digits) = lower.strip_suffix('h').filter(|_| !is_hexadecimal) {
        return Some(format!("half({}f)", as_floating(digits)));
    }
    if is_floating && !lower.ends_with('f') {
        return Some(format!("{lower}f"));
    }
    // `1f` is a float in MSL, an error in C++.
    if let Some(digits) = lower.strip_suffix('f').filter(|_| !is_hexadecimal && !is_floating) {
        return Some(format!("{digits}.0f"));
    }
    None
}

fn as_floating(digits: &str) -> String {
    if digits.contains('.') || digits.contains('e') { digits.to_owned() } else { format!("{digits}.0") }
}

/// Rewrites the threadgroup variables of a function body.
pub(super) fn scan_body(scanner: &mut Scanner<'_>, body: usize, close: usize, is_kernel: bool) {
    let tokens = scanner.tokens;
    scanner.function_pointers(body, close);
    for at in body + 1..close.min(tokens.all.len()) {
        if tokens.get(at) == "threadgroup" {
            let mut start = at;
            while matches!(tokens.get(start - 1), "const" | "static" | "volatile") {
                start -= 1;
            }
            if tokens.get(start - 1) == ")"
                && let Some(open) = (body..start - 1)
                    .rev()
                    .find(|&index| tokens.closing(index) == start - 1 && tokens.get(index) == "(")
                && tokens.get(open - 1) == "alignas"
            {
                start = open - 1;
            }
            if matches!(tokens.get(start - 1), ";" | "{" | "}") {
                threadgroup_variable(scanner, start, at, close, is_kernel);
            }
        }
    }
}

/// `threadgroup T name[...], ...;`
fn threadgroup_variable(
    scanner: &mut Scanner<'_>,
    start: usize,
    keyword: usize,
    close: usize,
    is_kernel: bool,
) {
    let tokens = scanner.tokens;
    let Some(end) = (keyword..close).find(|&index| tokens.get(index) == ";") else { return };
    let mut first = keyword + 1;
    while matches!(tokens.get(first), "const" | "volatile" | "alignas") {
        first = if tokens.get(first) == "alignas" { tokens.closing(first + 1) + 1 } else { first + 1 };
    }
    // A pointer or reference to threadgroup memory is an ordinary variable.
    let mut at = first;
    let mut declared = end;
    while at < end {
        match tokens.get(at) {
            "<" => at = tokens.closing_angle(at).unwrap_or(at),
            "[" => at = tokens.closing(at),
            "*" | "&" | "(" => return,
            // Apple's compiler takes `= {...}`. What it makes of it is not specified: here it has no effect.
            "=" if tokens.get(at + 1) == "{" && tokens.closing(at + 1) == end - 1 => {
                declared = at;
                break;
            }
            "=" | "{" => {
                scanner.report(at, "threadgroup variables cannot be initialised");
                return;
            }
            _ => {}
        }
        at += 1;
    }
    if !is_kernel {
        scanner.report(keyword, "threadgroup variables must be declared in a kernel function");
        return;
    }
    let declarators = scanner.split_parameters(first, declared);
    let Some(one) = declarators.first() else { return };
    // The first declarator starts with the type: its name is the last word before the dimensions.
    let Some(name) = (one.start..one.end)
        .take_while(|&index| tokens.get(index) != "[" || index == one.start)
        .filter(|&index| tokens.kind(index) == Some(Kind::Word))
        .last()
    else {
        return;
    };
    if name == one.start {
        scanner.report(name, "threadgroup variable without a type");
        return;
    }
    let type_name = tokens.slice(one.start..name).to_owned();
    let mut text = String::new();
    for (number, range) in declarators.iter().enumerate() {
        let name = if number == 0 { name } else { range.start };
        let dimensions = tokens.slice(name + 1..range.end);
        let unique = scanner.next_unique();
        let variable = tokens.get(name);
        if number > 0 {
            text.push_str("; ");
        }
        text.push_str(&format!(
            "typedef {type_name} metal_sim_local_{unique} {dimensions}; \
             METAL_SIM_THREADGROUP metal_sim_local_{unique}& {variable} = metal_sim::local_memory<{unique}, metal_sim_local_{unique}>()"
        ));
    }
    scanner.replace(start, end - 1, text);
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn literals_are_floats() {
        assert_eq!(literal("1.5").as_deref(), Some("1.5f"));
        assert_eq!(literal("1e-3").as_deref(), Some("1e-3f"));
        assert_eq!(literal("2.f"), None);
        assert_eq!(literal("0x1p-3").as_deref(), Some("0x1p-3f"));
        assert_eq!(literal("0x1f"), None);
        assert_eq!(literal("12u"), None);
        assert_eq!(literal("1f").as_deref(), Some("1.0f"));
    }

    #[test]
    fn suffixes_of_narrow_types() {
        assert_eq!(literal("1.5h").as_deref(), Some("half(1.5f)"));
        assert_eq!(literal("2H").as_deref(), Some("half(2.0f)"));
        assert_eq!(literal("1.0bf").as_deref(), Some("bfloat(1.0f)"));
    }
}
