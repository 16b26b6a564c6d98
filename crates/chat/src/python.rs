//! Values as Python prints them: `str()`, `repr()` and `json.dumps()`.

use std::borrow::Cow;
use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use crate::objects::{self, Shown};

/// Containers in containers that are followed; far more than the parser of any message allows.
const MAX_DEPTH: usize = 200;

/// Bytes that one value may take in print. The engine joins and repeats lists without making them, so a short
/// template can have one that does not end in any time.
const MAX_PRINTED: usize = 32 << 20;

/// An error of kind "invalid operation", as most of Python's `TypeError`s and `ValueError`s.
pub(crate) fn type_error(message: impl Into<Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// The name of a value's type in Python.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value.kind() {
        ValueKind::Undefined => "Undefined",
        ValueKind::None => "NoneType",
        ValueKind::Bool => "bool",
        ValueKind::Number if value.is_integer() => "int",
        ValueKind::Number => "float",
        ValueKind::String => "str",
        ValueKind::Bytes => "bytes",
        ValueKind::Map => "dict",
        ValueKind::Seq | ValueKind::Iterable if value.is_tuple() => "tuple",
        ValueKind::Seq | ValueKind::Iterable if objects::is_list(value) => "list",
        ValueKind::Iterable => "generator",
        _ => "object",
    }
}

/// `str(value)`, as `{{ value }}` prints it.
pub(crate) fn str(value: &Value) -> Result<Cow<'_, str>, Error> {
    if let Some(text) = value.as_str() {
        return Ok(Cow::Borrowed(text));
    }
    if value.is_undefined() {
        return Ok(Cow::Borrowed(""));
    }
    repr(value).map(Cow::Owned)
}

/// `repr(value)`.
pub(crate) fn repr(value: &Value) -> Result<String, Error> {
    let mut out = String::new();
    write_repr(&mut out, value, 0)?;
    Ok(out)
}

/// The value if it is a float.
pub(crate) fn as_float(value: &Value) -> Option<f64> {
    if value.kind() == ValueKind::Number && !value.is_integer() {
        f64::try_from(value.clone()).ok()
    } else {
        None
    }
}

/// `repr(value)` of a float: the shortest digits that read back as the same float, with an exponent where it
/// is under -4 or over 15.
pub(crate) fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    // Rust's shortest digits, as in -1.5e-7.
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // Always with a decimal point, as in 1.0.
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

fn write_repr(out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(type_error("the value is nested too deeply to print"));
    }
    check_size(out)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => write_str_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::Number => match as_float(value) {
            Some(float) => out.push_str(&float_repr(float)),
            None => push_display(out, value),
        },
        ValueKind::Map if value.as_object().is_some() => match objects::shown_as(value) {
            Some(Shown::Text(text)) => out.push_str(&text),
            Some(Shown::Namespace) => {
                out.push_str("<Namespace ");
                write_items(out, value, depth)?;
                out.push('>');
            }
            None => write_items(out, value, depth)?,
        },
        // What has no length is a generator, whose items printing must not use up.
        ValueKind::Seq | ValueKind::Iterable if objects::is_list(value) => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            for (index, item) in value.try_iter()?.checked().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                write_repr(out, &item?, depth + 1)?;
            }
            if tuple && value.len() == Some(1) {
                out.push(',');
            }
            out.push(if tuple { ')' } else { ']' });
        }
        _ => push_display(out, value),
    }
    Ok(())
}

/// The items of a dict in braces.
fn write_items(out: &mut String, dict: &Value, depth: usize) -> Result<(), Error> {
    out.push('{');
    for (index, key) in dict.try_iter()?.checked().enumerate() {
        let key = key?;
        if index > 0 {
            out.push_str(", ");
        }
        write_repr(out, &key, depth + 1)?;
        out.push_str(": ");
        write_repr(out, &dict.get_item(&key)?, depth + 1)?;
    }
    out.push('}');
    Ok(())
}

fn check_size(out: &str) -> Result<(), Error> {
    if out.len() > MAX_PRINTED {
        return Err(type_error(format!("the value is too large to print: over {MAX_PRINTED} bytes")));
    }
    Ok(())
}

fn push_display(out: &mut String, value: &Value) {
    // Writing to a string cannot fail.
    let _ = write!(out, "{value}");
}

fn write_str_repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => {
                let code = u32::from(c);
                // Writing to a string cannot fail.
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Python's `str.isprintable` for a character: not a control, format, private-use or separator character
/// other than the space. Unassigned code points, which depend on the Unicode version, count as printable.
pub(crate) fn is_printable(c: char) -> bool {
    !matches!(c,
        '\0'..='\x1f' | '\x7f'..='\u{a0}' | '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}'
        | '\u{890}'..='\u{891}' | '\u{8e2}' | '\u{1680}' | '\u{180e}' | '\u{2000}'..='\u{200f}'
        | '\u{2028}'..='\u{202f}' | '\u{205f}'..='\u{206f}' | '\u{3000}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}'
        | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}' | '\u{f0000}'..)
}

/// Python's `str.isspace` for a character: Unicode's white space and the four ASCII separators.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\x1c'..='\x1f')
}

/// How `json.dumps` lays its text out.
pub(crate) struct JsonOptions {
    pub(crate) ensure_ascii: bool,
    /// What a level is indented by; `None` is one line.
    pub(crate) indent: Option<String>,
    pub(crate) item_separator: String,
    pub(crate) key_separator: String,
    pub(crate) sort_keys: bool,
}

/// `json.dumps(value)`.
pub(crate) fn to_json(value: &Value, options: &JsonOptions) -> Result<String, Error> {
    let mut out = String::new();
    write_json(&mut out, value, options, 0)?;
    Ok(out)
}

fn write_json(out: &mut String, value: &Value, options: &JsonOptions, depth: usize) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(type_error("the value is nested too deeply to be written as JSON"));
    }
    check_size(out)?;
    let refuse = || Err(type_error(format!("Object of type {} is not JSON serializable", type_name(value))));
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => match as_float(value) {
            Some(float) => out.push_str(&json_float(float)),
            None => push_display(out, value),
        },
        ValueKind::String => write_json_str(out, value.as_str().unwrap_or_default(), options.ensure_ascii),
        ValueKind::Seq | ValueKind::Iterable if objects::is_list(value) => {
            write_container(out, ['[', ']'], options, depth, value.try_iter()?.checked(), |out, item| {
                write_json(out, &item?, options, depth + 1)
            })?;
        }
        ValueKind::Map => {
            let mut keys = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
            if options.sort_keys {
                keys.sort();
            }
            write_container(out, ['{', '}'], options, depth, keys.into_iter(), |out, key| {
                let text = json_key(&key)?;
                write_json_str(out, &text, options.ensure_ascii);
                out.push_str(&options.key_separator);
                write_json(out, &value.get_item(&key)?, options, depth + 1)
            })?;
        }
        _ => return refuse(),
    }
    Ok(())
}

fn write_container<T>(
    out: &mut String,
    [open, close]: [char; 2],
    options: &JsonOptions,
    depth: usize,
    items: impl Iterator<Item = T>,
    mut write: impl FnMut(&mut String, T) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |out: &mut String, depth| {
        if let Some(indent) = &options.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    };
    out.push(open);
    let mut empty = true;
    for item in items {
        if !empty {
            out.push_str(&options.item_separator);
        }
        empty = false;
        new_line(out, depth + 1);
        write(out, item)?;
    }
    if !empty {
        new_line(out, depth);
    }
    out.push(close);
    Ok(())
}

fn json_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        float_repr(value)
    }
}

fn json_key(key: &Value) -> Result<Cow<'_, str>, Error> {
    Ok(match key.kind() {
        ValueKind::String => Cow::Borrowed(key.as_str().unwrap_or_default()),
        ValueKind::None => Cow::Borrowed("null"),
        ValueKind::Bool => Cow::Borrowed(if key.is_true() { "true" } else { "false" }),
        ValueKind::Number => Cow::Owned(as_float(key).map_or_else(|| key.to_string(), json_float)),
        _ => {
            return Err(type_error(format!(
                "keys must be str, int, float, bool or None, not {}",
                type_name(key)
            )));
        }
    })
}

fn write_json_str(out: &mut String, text: &str, ensure_ascii: bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\0'..='\x1f' => push_escape(out, u16::try_from(u32::from(c)).unwrap_or_default()),
            c if ensure_ascii && !(' '..='~').contains(&c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    push_escape(out, *unit);
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn push_escape(out: &mut String, unit: u16) {
    // Writing to a string cannot fail.
    let _ = write!(out, "\\u{unit:04x}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_printed_as_python_does() {
        for (value, expected) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (123_456_789.125, "123456789.125"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float_repr(value), expected);
        }
        assert_eq!(json_float(f64::NEG_INFINITY), "-Infinity");
        assert_eq!(json_float(f64::NAN), "NaN");
    }

    #[test]
    fn nesting_is_bounded() {
        let mut value = Value::from(1);
        for _ in 0..=MAX_DEPTH {
            value = Value::from(vec![value]);
        }
        assert!(str(&value).is_err());
        let options = JsonOptions {
            ensure_ascii: false,
            indent: None,
            item_separator: ", ".to_owned(),
            key_separator: ": ".to_owned(),
            sort_keys: false,
        };
        assert!(to_json(&value, &options).is_err());
    }
}
