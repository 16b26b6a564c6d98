//! Methods of Python's strings, dicts and lists.
//!
//! `minijinja-contrib`'s pycompat has most of them; those here differ from it or are missing there.

use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{Error, State, Value};
use minijinja_contrib::pycompat;

use crate::objects::DictView;
use crate::python::{self, is_space, type_error, type_name};
use crate::text::check_format;

/// Calls `value.method(...)` where the template engine itself knows no such method.
pub(crate) fn call(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    if let (Some(text), "format") = (value.as_str(), method) {
        check_format(text, args)?;
    }
    let own = match value.kind() {
        ValueKind::String => string(state, value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Map => dict(value, method, args)?,
        ValueKind::Seq | ValueKind::Iterable if value.len().is_some() => list(state, value, method, args)?,
        _ => None,
    };
    match own {
        Some(result) => Ok(result),
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// What Python's immutable sandbox answers to a method that changes its object.
fn refuse_change(value: &Value, method: &str) -> Error {
    type_error(format!(
        "access to '{method}' of a {} is unsafe: templates cannot change values",
        type_name(value)
    ))
}

fn dict(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "keys" | "values" | "items" => {
            let () = from_args(args)?;
            return Ok(DictView::new(value, method).map(Value::from_object));
        }
        "copy" => {
            let () = from_args(args)?;
            value.clone()
        }
        "clear" | "pop" | "popitem" | "setdefault" | "update" if value.get_attr(method)?.is_undefined() => {
            return Err(refuse_change(value, method));
        }
        _ => return Ok(None),
    }))
}

fn list(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "append" | "clear" | "extend" | "insert" | "pop" | "remove" | "reverse" | "sort" => {
            return Err(refuse_change(value, method));
        }
        "copy" => {
            let () = from_args(args)?;
            value.clone()
        }
        "count" => {
            let (wanted,): (&Value,) = from_args(args)?;
            let mut count = 0_usize;
            for item in value.try_iter()?.checked() {
                state.consume_fuel(1)?;
                count += usize::from(item? == *wanted);
            }
            Value::from(count)
        }
        "index" => {
            let (wanted,): (&Value,) = from_args(args)?;
            for (index, item) in value.try_iter()?.checked().enumerate() {
                state.consume_fuel(1)?;
                if item? == *wanted {
                    return Ok(Some(Value::from(index)));
                }
            }
            return Err(type_error("the value is not in the list"));
        }
        _ => return Ok(None),
    }))
}

fn string(state: &State, text: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let no_args = || from_args::<()>(args);
    let all = |test: fn(char) -> bool| {
        no_args()?;
        Ok::<_, Error>(Value::from(!text.is_empty() && text.chars().all(test)))
    };
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let left = method != "rstrip";
            let right = method != "lstrip";
            Value::from(strip(text, chars, left, right))
        }
        "split" | "rsplit" => {
            let (separator, max, kwargs): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(kwargs.get("sep")?);
            let max = max.or(kwargs.get("maxsplit")?).unwrap_or(-1);
            kwargs.assert_all_used()?;
            let max = usize::try_from(max).unwrap_or(usize::MAX);
            let parts = match (separator, method) {
                (Some(""), _) => return Err(type_error("empty separator")),
                (Some(separator), "split") => paid(state, text.splitn(max.saturating_add(1), separator))?,
                (Some(separator), _) => {
                    let mut parts = paid(state, text.rsplitn(max.saturating_add(1), separator))?;
                    parts.reverse();
                    parts
                }
                (None, "split") => split_space(state, text, max)?,
                (None, _) => rsplit_space(state, text, max)?,
            };
            list_of(parts)
        }
        "splitlines" => {
            let (keep, kwargs): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(kwargs.get("keepends")?).unwrap_or(false);
            kwargs.assert_all_used()?;
            list_of(split_lines(text, keep))
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(type_error("empty separator"));
            }
            let found =
                if method == "partition" { text.split_once(separator) } else { text.rsplit_once(separator) };
            let parts = match found {
                Some((before, after)) => [before, separator, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "startswith" | "endswith" => {
            let (affixes, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
            let (from, to) = char_range(text, start, end);
            let part = text.get(from..to).unwrap_or_default();
            let test = |affix: &Value| match affix.as_str() {
                Some(affix) if method == "startswith" => Ok(part.starts_with(affix)),
                Some(affix) => Ok(part.ends_with(affix)),
                None => Err(type_error(format!(
                    "{method} first arg must be str or a tuple of str, not {}",
                    type_name(affix)
                ))),
            };
            if affixes.is_tuple() {
                for affix in affixes.try_iter()?.checked() {
                    if test(&affix?)? {
                        return Ok(Some(Value::from(true)));
                    }
                }
                Value::from(false)
            } else {
                Value::from(test(affixes)?)
            }
        }
        "find" | "index" | "rfind" | "rindex" | "count" => {
            let (wanted, start, end): (&str, Option<i64>, Option<i64>) = from_args(args)?;
            let (from, to) = char_range(text, start, end);
            let part = text.get(from..to);
            if method == "count" {
                return Ok(Some(Value::from(part.map_or(0, |part| part.matches(wanted).count()))));
            }
            let found =
                part.and_then(
                    |part| if method.starts_with('r') { part.rfind(wanted) } else { part.find(wanted) },
                );
            match found {
                // Positions count characters.
                Some(at) => Value::from(text[..from + at].chars().count()),
                None if method.ends_with("index") => return Err(type_error("substring not found")),
                None => Value::from(-1),
            }
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut out = String::new();
            for (index, item) in items.try_iter()?.checked().enumerate() {
                let item = item?;
                let Some(item_text) = item.as_str() else {
                    let found = type_name(&item);
                    return Err(type_error(format!(
                        "sequence item {index}: expected str instance, {found} found"
                    )));
                };
                if index > 0 {
                    out.push_str(text);
                }
                state.consume_fuel(1 + ((item_text.len() + text.len()) / 64) as u64)?;
                out.push_str(item_text);
            }
            Value::from(out)
        }
        "title" => {
            no_args()?;
            Value::from(title(text))
        }
        "capitalize" => {
            no_args()?;
            Value::from(capitalize(text))
        }
        "swapcase" => {
            no_args()?;
            let swap = |c: char| {
                if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "casefold" => {
            no_args()?;
            // The full folding differs from lower case for a few letters; the common one is ß.
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "zfill" => {
            let (width,): (usize,) = from_args(args)?;
            let missing = padding(state, text, width)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            Value::from(format!("{sign}{}{digits}", "0".repeat(missing)))
        }
        "center" | "ljust" | "rjust" => {
            let (width, fill): (usize, Option<char>) = from_args(args)?;
            let missing = padding(state, text, width)?;
            let left = match method {
                "ljust" => 0,
                "rjust" => missing,
                // Python puts the odd one left if the width is odd.
                _ => missing / 2 + (missing & width & 1),
            };
            let fill = fill.unwrap_or(' ');
            let pad = |count| std::iter::repeat_n(fill, count);
            Value::from(pad(left).chain(text.chars()).chain(pad(missing - left)).collect::<String>())
        }
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(args)?;
            let size = size.unwrap_or(8);
            padding(state, "", size.saturating_mul(text.matches('\t').count()))?;
            Value::from(expand_tabs(text, size))
        }
        "isspace" => all(is_space)?,
        "isprintable" => {
            no_args()?;
            Value::from(text.chars().all(python::is_printable))
        }
        "isdecimal" => all(is_decimal)?,
        "isdigit" => all(|c| is_decimal(c) || is_super_or_circled_digit(c))?,
        "isidentifier" => {
            no_args()?;
            let word = |c: char| c == '_' || c.is_alphanumeric();
            Value::from(text.chars().all(word) && text.starts_with(|c: char| c == '_' || c.is_alphabetic()))
        }
        "istitle" => {
            no_args()?;
            Value::from(text.chars().any(char::is_alphabetic) && title(text) == text)
        }
        _ => return Ok(None),
    }))
}

/// The parts of a text, a step of the budget for each.
fn paid<'t>(state: &State, parts: impl Iterator<Item = &'t str>) -> Result<Vec<&'t str>, Error> {
    parts.map(|part| state.consume_fuel(1).map(|()| part)).collect()
}

fn list_of(parts: Vec<&str>) -> Value {
    Value::from(parts.into_iter().map(Value::from).collect::<Vec<_>>())
}

/// `str.strip` and its two halves; `None` strips white space.
pub(crate) fn strip<'t>(text: &'t str, chars: Option<&str>, left: bool, right: bool) -> &'t str {
    let matches = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
    let text = if left { text.trim_start_matches(matches) } else { text };
    if right { text.trim_end_matches(matches) } else { text }
}

/// `text.split(None, max)`.
fn split_space<'t>(state: &State, text: &'t str, max: usize) -> Result<Vec<&'t str>, Error> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        state.consume_fuel(1)?;
        let end = rest.find(is_space).unwrap_or(rest.len());
        if parts.len() == max || end == rest.len() {
            // The last part of a limited split keeps the space within it and after it.
            parts.push(rest);
            break;
        }
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    Ok(parts)
}

/// `text.rsplit(None, max)`.
fn rsplit_space<'t>(state: &State, text: &'t str, max: usize) -> Result<Vec<&'t str>, Error> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        state.consume_fuel(1)?;
        let start = rest.char_indices().rfind(|(_, c)| is_space(*c)).map_or(0, |(at, c)| at + c.len_utf8());
        if parts.len() == max || start == 0 {
            parts.push(rest);
            break;
        }
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    parts.reverse();
    Ok(parts)
}

/// `text.splitlines(keep)`.
pub(crate) fn split_lines(text: &str, keep: bool) -> Vec<&str> {
    let is_end = |c: char| {
        matches!(c, '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}')
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let after = &rest[end..];
        let break_length =
            if after.starts_with("\r\n") { 2 } else { after.chars().next().map_or(0, char::len_utf8) };
        lines.push(&rest[..if keep { end + break_length } else { end }]);
        rest = &rest[end + break_length..];
    }
    lines
}

/// Bytes of the characters `start..end`, as Python clamps them. Empty ranges may be reversed.
fn char_range(text: &str, start: Option<i64>, end: Option<i64>) -> (usize, usize) {
    if start.is_none() && end.is_none() {
        return (0, text.len());
    }
    let count = text.chars().count();
    let byte_of = |position: i64| {
        let distance = usize::try_from(position.unsigned_abs()).unwrap_or(usize::MAX);
        let index = if position < 0 { count.saturating_sub(distance) } else { distance };
        // A start behind the end finds nothing, not even the empty string.
        text.char_indices().nth(index).map_or(text.len() + usize::from(index > count), |(at, _)| at)
    };
    (start.map_or(0, byte_of), end.map_or(text.len(), byte_of).min(text.len()))
}

/// How many characters are missing to the width.
fn padding(state: &State, text: &str, width: usize) -> Result<usize, Error> {
    let missing = width.saturating_sub(text.chars().count());
    state.consume_fuel(missing as u64 / 64)?;
    Ok(missing)
}

/// `str.title`: a letter after a letter is lower case, any other is a capital.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        if in_word {
            out.extend(c.to_lowercase());
        } else {
            push_title(&mut out, c);
        }
        in_word = c.is_alphabetic();
    }
    out
}

/// `str.capitalize`.
pub(crate) fn capitalize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    if let Some(first) = chars.next() {
        push_title(&mut out, first);
    }
    out.push_str(&chars.as_str().to_lowercase());
    out
}

/// The title case of a letter: its upper case, of which only the first letter if it becomes several.
fn push_title(out: &mut String, c: char) {
    let mut upper = c.to_uppercase();
    out.extend(upper.next());
    out.extend(upper.flat_map(char::to_lowercase));
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::with_capacity(text.len());
    let mut column = 0_usize;
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                out.extend(std::iter::repeat_n(' ', spaces));
                column += spaces;
            }
            c => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

/// A decimal digit of any script. Scripts encode theirs in a row of ten, so `char::is_numeric` and the ASCII
/// test do not tell them; the rows of the scripts in wide use are listed.
fn is_decimal(c: char) -> bool {
    const ZEROS: [u32; 16] = [
        0x30, 0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xe50,
        0xed0, 0xff10,
    ];
    let code = u32::from(c);
    ZEROS.iter().any(|zero| (*zero..zero + 10).contains(&code))
}

/// What counts as a digit to Python beside the decimal digits.
fn is_super_or_circled_digit(c: char) -> bool {
    matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}'
        | '\u{2460}'..='\u{2468}' | '\u{2474}'..='\u{247c}' | '\u{2488}'..='\u{2490}')
}
