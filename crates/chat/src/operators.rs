//! The operators that [`crate::rewrite`] turns into calls, as Python computes them and within the step budget.

use minijinja::value::{Tuple, ValueKind};
use minijinja::{Environment, Error, State, Value};

use crate::filters::escape;
use crate::objects::is_list;
use crate::percent;
use crate::python::{self, type_error, type_name};

/// The function that [`crate::rewrite`] calls: `__fold([a, '+', b, '-', c])` is `a + b - c`.
pub(crate) const FOLD: &str = "__fold";

/// Bytes of a list per item, as the engine counts them.
const SLOT: usize = 32;

/// Bytes that a step of the budget pays for.
const BYTES_PER_STEP: usize = 64;

pub(crate) fn add(env: &mut Environment<'_>) {
    env.add_function(FOLD, fold);
}

fn fold(state: &State, chain: Vec<Value>) -> Result<Value, Error> {
    let Some((first, rest)) = chain.split_first() else { return Ok(Value::UNDEFINED) };
    let (chain, _) = rest.as_chunks::<2>();
    if chain.iter().all(|[operator, _]| operator.as_str() == Some("~")) {
        return join(state, std::iter::once(first).chain(chain.iter().map(|[_, operand]| operand)));
    }
    chain.iter().try_fold(first.clone(), |left, [operator, right]| {
        apply(state, &left, operator.as_str().unwrap_or_default(), right)
    })
}

fn apply(state: &State, left: &Value, operator: &str, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (small_integer(left), small_integer(right)) {
        let result = match operator {
            "+" => a.checked_add(b),
            "-" => a.checked_sub(b),
            "*" => a.checked_mul(b),
            "%" if b > 0 => Some(a.rem_euclid(b)),
            _ => None,
        };
        if let Some(result) = result {
            return Ok(Value::from(result));
        }
    }
    match (operator, left.as_str(), right.as_str()) {
        ("%", Some(format), _) => percent::format(state, format, left.is_safe(), right),
        ("+", Some(a), Some(b)) => add_texts(state, (left, a), (right, b)),
        ("+", None, None) if is_iterable(left) || is_iterable(right) => add_lists(state, left, right),
        _ => by_engine(state, left, operator, right),
    }
}

/// `left + right`.
pub(crate) fn plus(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    apply(state, left, "+", right)
}

fn small_integer(value: &Value) -> Option<i64> {
    value.is_integer().then(|| value.as_i64()).flatten()
}

fn is_iterable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable)
}

/// Fails if the budget does not pay for this many bytes. The engine takes the fee when it gets the value.
pub(crate) fn afford(state: &State, bytes: usize) -> Result<(), Error> {
    let steps = (bytes / BYTES_PER_STEP) as u64;
    match state.fuel_levels() {
        Some((_, left)) if steps > left => state.consume_fuel(steps),
        _ => Ok(()),
    }
}

/// As MarkupSafe does it, what is added to a text marked `safe` is escaped.
fn add_texts(state: &State, (left, a): (&Value, &str), (right, b): (&Value, &str)) -> Result<Value, Error> {
    if left.is_safe() != right.is_safe() {
        let (left, right) = (escape(left)?, escape(right)?);
        return Ok(Value::from_safe_string(format!("{left}{right}")));
    }
    afford(state, a.len() + b.len())?;
    let sum = [a, b].concat();
    Ok(if left.is_safe() { Value::from_safe_string(sum) } else { Value::from(sum) })
}

/// The sum of two lists or of two tuples, made at once.
fn add_lists(state: &State, left: &Value, right: &Value) -> Result<Value, Error> {
    let tuple = left.is_tuple();
    let (Some(a), Some(b)) = (left.len(), right.len()) else { return Err(not_added(left, right)) };
    let lists = is_iterable(left) && is_iterable(right) && is_list(left) && is_list(right);
    if !lists || tuple != right.is_tuple() {
        return Err(not_added(left, right));
    }
    afford(state, a.saturating_add(b).saturating_mul(SLOT))?;
    let mut items = Vec::new();
    for item in left.try_iter()?.checked().chain(right.try_iter()?.checked()) {
        items.push(item?);
    }
    Ok(if tuple { Value::from(Tuple::from(items)) } else { Value::from(items) })
}

fn not_added(left: &Value, right: &Value) -> Error {
    type_error(format!("unsupported operand types for +: '{}' and '{}'", type_name(left), type_name(right)))
}

/// The texts of all operands in one.
fn join<'v>(state: &State, operands: impl Iterator<Item = &'v Value>) -> Result<Value, Error> {
    let mut out = String::new();
    for operand in operands {
        let text = python::str(operand)?;
        afford(state, out.len() + text.len())?;
        out.push_str(&text);
    }
    Ok(Value::from(out))
}

/// Numbers, and what cannot be computed: the engine's own operator on the two values.
fn by_engine(state: &State, left: &Value, operator: &str, right: &Value) -> Result<Value, Error> {
    let source = match operator {
        "+" => "left + right",
        "-" => "left - right",
        "*" => "left * right",
        "/" => "left / right",
        "//" => "left // right",
        "%" => "left % right",
        _ => return Err(type_error(format!("unknown operator {operator}"))),
    };
    let operands = Value::from_pairs([("left", left.clone()), ("right", right.clone())]);
    let computed = state.env().compile_expression(source).and_then(|expression| expression.eval(operands));
    computed.map_err(|error| match error.detail() {
        // Without the place, which is that in the expression above.
        Some(detail) => Error::new(error.kind(), detail.to_owned()),
        None => Error::from(error.kind()),
    })
}
