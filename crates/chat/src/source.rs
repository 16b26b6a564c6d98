//! The text of a template, before the template engine reads it.
//!
//! Where the engine's language differs from Jinja's in a way that it has no setting for, the text is rewritten.

use std::borrow::Cow;

use crate::filters::{ITERATED, SETTLED};
use crate::rewrite;

/// Puts the text into the form that the engine expects:
///
/// - line ends are `\n`, as Jinja makes them first;
/// - the blocks `{% generation %}` ... `{% endgeneration %}`, with which transformers marks what the assistant
///   said, become `{% with %}` blocks: like them they write their body and open a scope;
/// - a loop checks what it goes through, because in Python none cannot be iterated over;
/// - an assignment makes the list that it names, which the engine would only promise to make: a loop could
///   otherwise double a list beyond all memory;
/// - some operators become calls: [`rewrite`] says which, and why.
pub(crate) fn prepare(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = &source[..];
    while let Some(at) = rest.find('{') {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let length = if tag.starts_with("{#") {
            tag.find("#}").map_or(tag.len(), |end| end + 2)
        } else if tag.starts_with("{{") {
            tag_length(tag, "}}")
        } else if tag.starts_with("{%") {
            let length = tag_length(tag, "%}");
            if only_word(&tag[..length]) == "raw" { end_of_raw(tag, length) } else { length }
        } else {
            1
        };
        let (tag, after) = tag.split_at(length);
        out.push_str(&rewritten(tag));
        rest = after;
    }
    out.push_str(rest);
    out
}

fn rewritten(tag: &str) -> Cow<'_, str> {
    if tag.starts_with("{{") {
        return call_operators(tag);
    }
    if !tag.starts_with("{%") {
        return Cow::Borrowed(tag);
    }
    match (only_word(tag), words(&tag[2..]).first()) {
        ("generation", _) => Cow::Owned(tag.replacen("generation", "with", 1)),
        ("endgeneration", _) => Cow::Owned(tag.replacen("endgeneration", "endwith", 1)),
        (_, Some((_, "raw"))) => Cow::Borrowed(tag),
        (_, Some((_, "for"))) => Cow::Owned(call_operators(&check_loop(tag)).into_owned()),
        (_, Some((_, "set"))) => Cow::Owned(call_operators(&settle_assignment(tag)).into_owned()),
        _ => call_operators(tag),
    }
}

/// Bytes of the tag that the text starts with, string literals skipped.
fn tag_length(tag: &str, end: &str) -> usize {
    let mut found = tag.len();
    scan(&tag[2..], |at, _, depth| {
        // A brace that closes a dict is not the end.
        if depth <= 0 && tag[2 + at..].starts_with(end) {
            found = 2 + at + end.len();
        }
        found == tag.len()
    });
    found
}

/// Calls `see` for each character outside of string literals, with its byte and the depth of the brackets that it
/// is in, for as long as it returns true. A bracket counts as outside of itself.
fn scan(text: &str, mut see: impl FnMut(usize, char, i32) -> bool) {
    let mut depth = 0;
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if let Some(open) = quote {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                c if c == open => quote = None,
                _ => {}
            }
            continue;
        }
        match c {
            '"' | '\'' => quote = Some(c),
            ')' | ']' | '}' => depth -= i32::from(depth > 0),
            _ => {}
        }
        if !see(at, c, depth) {
            return;
        }
        if matches!(c, '(' | '[' | '{') {
            depth += 1;
        }
    }
}

/// The only word of a block tag, without its white space control; empty if there are several words.
fn only_word(tag: &str) -> &str {
    let inner = tag.strip_prefix("{%").and_then(|t| t.strip_suffix("%}")).unwrap_or_default();
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let name = inner.strip_suffix(['-', '+']).unwrap_or(inner).trim();
    if name.chars().all(|c| c.is_ascii_alphabetic()) { name } else { "" }
}

/// Bytes up to the end of the `endraw` tag; `tag` starts with the `raw` tag.
fn end_of_raw(tag: &str, raw_length: usize) -> usize {
    let mut at = raw_length;
    while let Some(found) = tag[at..].find("{%") {
        at += found;
        let end = tag[at..].find("%}").map_or(tag.len(), |end| at + end + 2);
        if only_word(&tag[at..end]) == "endraw" {
            return end;
        }
        at += 2;
    }
    tag.len()
}

/// Words outside of brackets and string literals: byte and text.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut words = Vec::new();
    let mut start = None;
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut end = 0;
    scan(text, |at, c, depth| {
        match start {
            // A string literal or a bracket was skipped in between.
            Some(from) if at != end || !is_word(c) || depth > 0 => {
                words.push((from, &text[from..end]));
                start = None;
            }
            _ => {}
        }
        if is_word(c) && depth == 0 {
            start = start.or(Some(at));
            end = at + c.len_utf8();
        }
        true
    });
    words.extend(start.map(|from| (from, &text[from..end])));
    words
}

/// `{% for x in y if z %}` becomes `{% for x in (y)|__iterated if z %}`.
fn check_loop(tag: &str) -> Cow<'_, str> {
    let body = tag.strip_suffix("%}").unwrap_or(tag);
    let body = &body[2.min(body.len())..];
    let body = body.strip_suffix(['-', '+']).unwrap_or(body);
    let words = words(body);
    let Some(start) = words.iter().position(|(_, word)| *word == "in") else { return Cow::Borrowed(tag) };
    let from = words[start].0 + "in".len();
    let end = words[start + 1..].iter().find(|(_, word)| matches!(*word, "if" | "recursive"));
    let to = end.map_or(body.len(), |(at, _)| *at);
    let iterated = body[from..to].trim();
    if iterated.is_empty() {
        return Cow::Borrowed(tag);
    }
    // The tag is `{%`, the body and the rest.
    let (before, after) = (&tag[..2 + from], &tag[2 + to..]);
    Cow::Owned(format!("{before} ({iterated})|{ITERATED} {after}"))
}

/// `{% set x = y %}` becomes `{% set x = (y)|__settled %}`.
fn settle_assignment(tag: &str) -> Cow<'_, str> {
    let Some(body) = tag.strip_suffix("%}") else { return Cow::Borrowed(tag) };
    let body = body.strip_suffix(['-', '+']).unwrap_or(body);
    let mut equals = None;
    scan(&body[2..], |at, c, depth| {
        equals = (c == '=' && depth == 0).then_some(2 + at);
        equals.is_none()
    });
    let Some(equals) = equals else { return Cow::Borrowed(tag) };
    let value = body[equals + 1..].trim();
    if value.is_empty() {
        return Cow::Borrowed(tag);
    }
    Cow::Owned(format!("{} ({value})|{SETTLED} {}", &body[..=equals], &tag[body.len()..]))
}

/// The tag with its operators turned into calls; see [`rewrite`].
fn call_operators(tag: &str) -> Cow<'_, str> {
    let Some(body) = tag.strip_suffix(['}']).and_then(|tag| tag.strip_suffix(['}', '%'])) else {
        return Cow::Borrowed(tag);
    };
    let Some(inside) = body.get(2..) else { return Cow::Borrowed(tag) };
    let inside = inside.strip_suffix(['-', '+']).unwrap_or(inside);
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside);
    let mut start = inside.as_ptr() as usize - tag.as_ptr() as usize;
    let end = start + inside.len();
    if tag.starts_with("{%") {
        // The keyword is no operand.
        let name = inside.trim_start().trim_start_matches(|c: char| c.is_alphanumeric() || c == '_');
        start = end - name.len();
    }
    match rewrite::operators(&tag[start..end]) {
        Some(calls) => Cow::Owned(format!("{}{calls}{}", &tag[..start], &tag[end..])),
        None => Cow::Borrowed(tag),
    }
}

#[cfg(test)]
mod tests {
    use super::prepare;

    fn check(cases: &[(&str, &str)]) {
        for (source, expected) in cases {
            assert_eq!(prepare(source), *expected);
        }
    }

    #[test]
    fn generation_blocks_become_with_blocks() {
        check(&[
            ("a{% generation %}b{%endgeneration%}", "a{% with %}b{%endwith%}"),
            ("{%- generation -%}\n{%+ endgeneration +%}", "{%- with -%}\n{%+ endwith +%}"),
            ("a\r\nb\rc", "a\nb\nc"),
            // Only where it is a tag.
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{% raw %}{% generation %}{%- endraw %}", "{% raw %}{% generation %}{%- endraw %}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{{ '\\'{% generation %}' }}", "{{ '\\'{% generation %}' }}"),
            ("{%- set generation = 1 -%}", "{%- set generation = (1)|__settled -%}"),
            ("{{ {'a': {'b': 1}} }}{% generation %}", "{{ {'a': {'b': 1}} }}{% with %}"),
        ]);
    }

    #[test]
    fn broken_tags_are_left_to_the_engine() {
        for source in
            ["{ {", "{{ 'open", "{# open", "{% raw %}{% open", "{%", "{% for", "{% for x in %}", "{{ a + }}"]
        {
            assert_eq!(prepare(source), source);
        }
    }

    #[test]
    fn loops_check_what_they_go_through() {
        check(&[
            ("{% for x in y %}", "{% for x in (y)|__iterated %}"),
            ("{%- for a, b in y.items() -%}", "{%- for a, b in (y.items())|__iterated -%}"),
            (
                "{% for x in [a if b else c] if x in d %}",
                "{% for x in ([a if b else c])|__iterated if x in d %}",
            ),
            ("{% for x in y recursive %}", "{% for x in (y)|__iterated recursive %}"),
            ("{%for x in '%} in if'%}", "{%for x in ('%} in if')|__iterated %}"),
            ("{% if x in y %}", "{% if x in y %}"),
        ]);
    }

    #[test]
    fn assignments_are_settled() {
        check(&[
            ("{% set a, b = 1, '=' == x %}", "{% set a, b = (1, '=' == x)|__settled %}"),
            ("{%- set ns.l = ns.l + [x]%}", "{%- set ns.l = (__fold([ns.l ,'+', [x]]))|__settled %}"),
            ("{% set x %}{% set y | trim(chars='=') %}", "{% set x %}{% set y | trim(chars='=') %}"),
        ]);
    }

    #[test]
    fn operators_become_calls_in_tags_alone() {
        check(&[
            (
                "a + b {# a + b #}{% raw %}{{ a + b }}{% endraw %}",
                "a + b {# a + b #}{% raw %}{{ a + b }}{% endraw %}",
            ),
            ("{{- a + b -}}", "{{- __fold([a ,'+', b ])-}}"),
            ("{% elif -a % b %}", "{% elif __fold([-a ,'%', b ])%}"),
            ("{%- set x = a ~ b -%}", "{%- set x = (__fold([a ,'~', b]))|__settled -%}"),
            ("{% for x in a + b %}", "{% for x in (__fold([a ,'+', b]))|__iterated %}"),
            ("{{ a + }}{{ b }}", "{{ a + }}{{ b }}"),
        ]);
    }
}
