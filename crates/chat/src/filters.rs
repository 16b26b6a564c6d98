//! Filters that differ from the engine's own.

use std::borrow::Cow;

use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, State};

use crate::methods;
use crate::objects::{Generator, is_list};
use crate::python::{self, JsonOptions, type_error, type_name};

/// The filter that [`crate::source`] puts around what a `for` loop goes through.
pub(crate) const ITERATED: &str = "__iterated";
/// The filter that [`crate::source`] puts on what is assigned to a variable.
pub(crate) const SETTLED: &str = "__settled";

pub(crate) fn add(env: &mut Environment<'_>) {
    env.add_filter(ITERATED, |value: Value| {
        if value.is_none() { Err(type_error("'NoneType' object is not iterable")) } else { Ok(value) }
    });
    env.add_filter(SETTLED, settle);
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    env.add_filter("forceescape", escape);
    env.add_filter("tojson", tojson);
    env.add_filter("trim", trim);
    env.add_filter("capitalize", |value: &Value| Ok::<_, Error>(methods::capitalize(&python::str(value)?)));
    env.add_filter("indent", indent);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("dictsort", dictsort);
    env.add_filter("map", |state: &mut State, value: Value, args: Rest<ValueOrKwargs>| {
        builtin::map(state, value, args).map(generator)
    });
    env.add_filter("select", select);
    env.add_filter("reject", reject);
    env.add_filter("selectattr", selectattr);
    env.add_filter("rejectattr", rejectattr);
    for filter in ["bool", "chain", "lines", "split", "zip"] {
        // The engine's own; Python has no such filter.
        env.remove_filter(filter);
    }
}

/// Makes the list that the engine has put together of parts or cut out of another without making it.
fn settle(state: &State, value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable || !is_list(&value) || value.is_tuple() {
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        state.consume_fuel(1)?;
        items.push(item?);
    }
    Ok(Value::from(items))
}

fn generator(items: Vec<Value>) -> Value {
    Value::from_object(Generator::new(items))
}

type Name<'n> = Cow<'n, str>;
type Args = Rest<ValueOrKwargs>;

fn select(state: &mut State, value: Value, test: Option<Name<'_>>, args: Args) -> Result<Value, Error> {
    builtin::select(state, value, test, args).map(generator)
}

fn reject(state: &mut State, value: Value, test: Option<Name<'_>>, args: Args) -> Result<Value, Error> {
    builtin::reject(state, value, test, args).map(generator)
}

fn selectattr(
    state: &mut State,
    value: Value,
    name: Name<'_>,
    test: Option<Name<'_>>,
    args: Args,
) -> Result<Value, Error> {
    builtin::selectattr(state, value, name, test, args).map(generator)
}

fn rejectattr(
    state: &mut State,
    value: Value,
    name: Name<'_>,
    test: Option<Name<'_>>,
    args: Args,
) -> Result<Value, Error> {
    builtin::rejectattr(state, value, name, test, args).map(generator)
}

/// The argument at a position or of a name, undefined if neither is given.
pub(crate) fn argument(
    positional: &[Value],
    index: usize,
    kwargs: &Kwargs,
    name: &str,
) -> Result<Value, Error> {
    let named: Option<Value> = kwargs.get(name)?;
    Ok(positional.get(index).cloned().or(named).unwrap_or(Value::UNDEFINED))
}

/// `tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False)`, which is `json.dumps`.
fn tojson(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    if args.len() > 4 {
        return Err(type_error(format!("tojson takes at most 5 arguments, found {}", args.len() + 1)));
    }
    let ensure_ascii = argument(&args, 0, &kwargs, "ensure_ascii")?.is_true();
    let indent = argument(&args, 1, &kwargs, "indent")?;
    let separators = argument(&args, 2, &kwargs, "separators")?;
    let sort_keys = argument(&args, 3, &kwargs, "sort_keys")?.is_true();
    kwargs.assert_all_used()?;
    let indent = match indent.kind() {
        ValueKind::None | ValueKind::Undefined => None,
        ValueKind::String => indent.as_str().map(str::to_owned),
        // A wider one is never meant, and this bounds the memory.
        _ => Some(" ".repeat(i64::try_from(indent)?.clamp(0, 256) as usize)),
    };
    let (item_separator, key_separator) = match separators.kind() {
        ValueKind::None | ValueKind::Undefined => {
            (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned())
        }
        _ => match &separators.try_iter()?.take(3).collect::<Vec<_>>()[..] {
            [item, key] => (python::str(item)?.into_owned(), python::str(key)?.into_owned()),
            other => return Err(type_error(format!("separators: expected 2 values, found {}", other.len()))),
        },
    };
    python::to_json(value, &JsonOptions { ensure_ascii, indent, item_separator, key_separator, sort_keys })
}

fn trim(value: &Value, chars: Option<&str>) -> Result<Value, Error> {
    Ok(Value::from(methods::strip(&python::str(value)?, chars, true, true)))
}

/// As MarkupSafe escapes. What is marked safe is left alone.
pub(crate) fn escape(value: &Value) -> Result<Value, Error> {
    if value.is_safe() {
        return Ok(value.clone());
    }
    let text = python::str(value)?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

/// `indent(text, width=4, first=False, blank=False)`.
fn indent(state: &State, value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let width = argument(&args, 0, &kwargs, "width")?;
    let first = argument(&args, 1, &kwargs, "first")?.is_true();
    let blank = argument(&args, 2, &kwargs, "blank")?.is_true();
    kwargs.assert_all_used()?;
    let text = format!("{}\n", python::str(value)?);
    let lines = methods::split_lines(&text, false);
    let charge = |width: usize| state.consume_fuel(width.saturating_mul(lines.len()) as u64 / 64);
    let margin = match width.as_str() {
        Some(margin) => {
            charge(margin.len())?;
            margin.to_owned()
        }
        None if width.is_undefined() => " ".repeat(4),
        None => {
            let width = usize::try_from(i64::try_from(width)?.max(0)).unwrap_or(usize::MAX);
            charge(width)?;
            " ".repeat(width)
        }
    };
    let mut out = String::with_capacity(text.len());
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if if index == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `int(value, default=0, base=10)`.
fn int(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = argument(&args, 0, &kwargs, "default")?;
    let base = argument(&args, 1, &kwargs, "base")?;
    kwargs.assert_all_used()?;
    let base = if base.is_undefined() { 10 } else { u32::try_from(base)? };
    if !matches!(base, 2..=36) {
        return Err(type_error(format!("int base: expected 2 to 36, found {base}")));
    }
    let truncated = |float: f64| (float.abs() < 1e18).then(|| Value::from(float.trunc() as i64));
    let found = match value.kind() {
        ValueKind::Bool => Some(Value::from(u8::from(value.is_true()))),
        ValueKind::Number => python::as_float(value).map_or_else(|| Some(value.clone()), truncated),
        ValueKind::String => {
            let text = value.as_str().unwrap_or_default().trim().replace('_', "");
            let lower = text.to_ascii_lowercase();
            let prefix = [(16, "0x"), (8, "0o"), (2, "0b")].into_iter().find(|(of, _)| *of == base);
            let digits = prefix.and_then(|(_, prefix)| lower.strip_prefix(prefix)).unwrap_or(&lower);
            let whole = i128::from_str_radix(digits, base).ok().map(Value::from);
            whole.or_else(|| parse_float(&text).and_then(truncated))
        }
        _ => None,
    };
    Ok(found.unwrap_or(if default.is_undefined() { Value::from(0) } else { default }))
}

/// `float(value, default=0.0)`.
fn float(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let default = argument(&args, 0, &kwargs, "default")?;
    kwargs.assert_all_used()?;
    let found = match value.kind() {
        ValueKind::Bool | ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => parse_float(value.as_str().unwrap_or_default()),
        _ => None,
    };
    Ok(found.map(Value::from).unwrap_or(if default.is_undefined() { Value::from(0.0) } else { default }))
}

fn parse_float(text: &str) -> Option<f64> {
    text.trim().replace('_', "").parse().ok()
}

/// `dictsort(dict, case_sensitive=False, by="key", reverse=False)`.
fn dictsort(value: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let case_sensitive = argument(&args, 0, &kwargs, "case_sensitive")?.is_true();
    let by = argument(&args, 1, &kwargs, "by")?;
    let reverse = argument(&args, 2, &kwargs, "reverse")?.is_true();
    kwargs.assert_all_used()?;
    let by_value = match by.as_str() {
        None | Some("key") => false,
        Some("value") => true,
        Some(other) => return Err(type_error(format!("dictsort by: expected key or value, found {other}"))),
    };
    let Some(pairs) =
        value.as_object().filter(|_| value.kind() == ValueKind::Map).and_then(|o| o.try_iter_pairs())
    else {
        return Err(type_error(format!("dictsort expects a dict, found {}", type_name(value))));
    };
    let sort_key = |pair: &(Value, Value)| {
        let by = if by_value { &pair.1 } else { &pair.0 };
        match by.as_str() {
            Some(text) if !case_sensitive => Value::from(text.to_lowercase()),
            _ => by.clone(),
        }
    };
    let mut pairs: Vec<_> = pairs.collect();
    // Stable both ways, as Python's sort.
    if reverse {
        pairs.sort_by_cached_key(|pair| std::cmp::Reverse(sort_key(pair)));
    } else {
        pairs.sort_by_cached_key(sort_key);
    }
    Ok(pairs.into_iter().map(|(key, value)| Value::from(Tuple::from([key, value]))).collect())
}
