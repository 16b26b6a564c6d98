//! Filters and methods that make texts, with what they read printed as Python prints it.
//!
//! The engine's own print values without any bound, and a short template can build a list whose print no memory holds.

use minijinja::filters as builtin;
use minijinja::value::{Kwargs, Rest, Tuple, Value, ValueKind};
use minijinja::{Environment, Error, State};

use crate::filters::argument;
use crate::operators::{afford, plus};
use crate::percent::{self, MAX_WIDTH};
use crate::python::{self, type_error};

pub(crate) fn add(env: &mut Environment<'_>) {
    env.add_filter("string", |value: &Value| python::str(value).map(|text| Value::from(&*text)));
    env.add_filter("upper", |value: &Value| Ok::<_, Error>(python::str(value)?.to_uppercase()));
    env.add_filter("lower", |value: &Value| Ok::<_, Error>(python::str(value)?.to_lowercase()));
    env.add_filter("title", |value: &Value| Ok::<_, Error>(builtin::title(python::str(value)?)));
    env.add_filter("pprint", python::repr);
    env.add_filter("format", format);
    env.add_filter("replace", replace);
    env.add_filter("join", join);
    env.add_filter("sum", sum);
}

/// `format(text, *args, **kwargs)`, which is `text % args`.
fn format(state: &State, text: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let named: Vec<(Value, Value)> = kwargs
        .args()
        .map(|name| Ok::<_, Error>((Value::from(name), kwargs.get::<Value>(name)?)))
        .collect::<Result<_, _>>()?;
    let values = match (args.is_empty(), named.is_empty()) {
        (_, true) => Value::from(Tuple::from(args.0)),
        (true, false) => Value::from_pairs(named),
        _ => return Err(type_error("can't handle positional and keyword arguments at the same time")),
    };
    percent::format(state, &python::str(text)?, text.is_safe(), &values)
}

/// `replace(text, old, new, count=None)`.
fn replace(state: &State, text: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let old = argument(&args, 0, &kwargs, "old")?;
    let new = argument(&args, 1, &kwargs, "new")?;
    let count = argument(&args, 2, &kwargs, "count")?;
    kwargs.assert_all_used()?;
    let count = match count.kind() {
        ValueKind::Undefined | ValueKind::None => None,
        // A negative one is no limit.
        _ => usize::try_from(i64::try_from(count)?).ok(),
    };
    let (text, old, new) = (python::str(text)?, python::str(&old)?, python::str(&new)?);
    let count = count.unwrap_or(usize::MAX);
    let found = text.matches(&*old).take(count).count();
    afford(state, text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(&*old, &new, count))
}

/// `join(items, d="", attribute=None)`.
fn join(state: &State, items: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let delimiter = argument(&args, 0, &kwargs, "d")?;
    let attribute = argument(&args, 1, &kwargs, "attribute")?;
    kwargs.assert_all_used()?;
    let delimiter = python::str(&delimiter)?;
    let mut out = String::new();
    for (index, item) in items.try_iter()?.checked().enumerate() {
        let item = attribute_of(item?, &attribute)?;
        let text = python::str(&item)?;
        let delimiter = if index > 0 { &*delimiter } else { "" };
        state.consume_fuel(1)?;
        afford(state, out.len() + delimiter.len() + text.len())?;
        out.push_str(delimiter);
        out.push_str(&text);
    }
    Ok(out)
}

/// `sum(items, attribute=None, start=0)`.
fn sum(state: &State, items: &Value, args: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let attribute = argument(&args, 0, &kwargs, "attribute")?;
    let start = argument(&args, 1, &kwargs, "start")?;
    kwargs.assert_all_used()?;
    let mut total = if start.is_undefined() { Value::from(0) } else { start };
    for item in items.try_iter()?.checked() {
        total = plus(state, &total, &attribute_of(item?, &attribute)?)?;
        // What the sum holds was made for this item.
        let bytes = total.as_str().map_or_else(|| 32 * total.len().unwrap_or(0), str::len);
        state.consume_fuel(1 + bytes as u64 / 64)?;
    }
    Ok(total)
}

/// An attribute such as `function.name` of a value; the value itself if none is asked for.
fn attribute_of(value: Value, attribute: &Value) -> Result<Value, Error> {
    match attribute.as_str() {
        Some(path) => path.split('.').try_fold(value, |value, name| match name.parse::<usize>() {
            Ok(index) => value.get_item(&Value::from(index)),
            Err(_) => value.get_attr(name),
        }),
        None if attribute.is_undefined() || attribute.is_none() => Ok(value),
        None => value.get_item(attribute),
    }
}

/// Refuses a call of `str.format` that the engine would answer with more text than is allowed: it pads to any width,
/// and prints its arguments without a bound.
pub(crate) fn check_format(text: &str, args: &[Value]) -> Result<(), Error> {
    for spec in field_specs(text) {
        let digits = spec.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.trim_start_matches('0'));
        for digits in digits.filter(|digits| !digits.is_empty()) {
            if digits.parse::<usize>().ok().is_none_or(|width| width > MAX_WIDTH) {
                return Err(type_error(format!(
                    "format: expected a width of at most {MAX_WIDTH}, found {digits}"
                )));
            }
        }
    }
    for arg in args.iter().filter(|arg| !matches!(arg.kind(), ValueKind::String)) {
        python::str(arg)?;
    }
    Ok(())
}

/// What stands behind the colons of the fields of a format such as `{name:>8}`; doubled braces are no fields.
fn field_specs(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        loop {
            rest = &rest[rest.find('{')? + 1..];
            if let Some(after) = rest.strip_prefix('{') {
                rest = after;
                continue;
            }
            let field = &rest[..rest.find('}').unwrap_or(rest.len())];
            rest = &rest[field.len()..];
            if let Some((_, spec)) = field.split_once(':') {
                return Some(spec);
            }
        }
    })
}
