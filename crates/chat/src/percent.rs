//! `text % values`: Python's printf-style formatting.
//!
//! The rules are those of <https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting>.

use std::borrow::Cow;

use minijinja::value::ValueKind;
use minijinja::{Error, State, Value};

use crate::filters::escape;
use crate::python::{self, type_error, type_name};

/// Widest field and highest precision. Rust's own formatting knows no higher precision.
pub(crate) const MAX_WIDTH: usize = 65_535;

/// Formats `text % values`. The values for a text marked `safe` are escaped.
pub(crate) fn format(state: &State, text: &str, safe: bool, values: &Value) -> Result<Value, Error> {
    let mut values = Values::new(values)?;
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let mut chars = rest[at + 1..].chars();
        let spec = Spec::parse(&mut chars, &mut values)?;
        rest = chars.as_str();
        if spec.kind == '%' {
            out.push('%');
            continue;
        }
        let field = spec.field(&values.next()?, safe)?;
        // One step for the field, and the bytes before they are written.
        state.consume_fuel(1 + (field.text.len().max(spec.width) / 64) as u64)?;
        spec.pad(&mut out, &field);
    }
    out.push_str(rest);
    values.check_all_used()?;
    Ok(if safe { Value::from_safe_string(out) } else { Value::from(out) })
}

/// The values to format: those of a tuple, or a single one.
struct Values {
    all: Value,
    items: std::vec::IntoIter<Value>,
    /// Whether fields may name the keys of `all`.
    mapping: bool,
    /// Whether Python counts unused values: not for what has items by key or number, a tuple aside.
    counted: bool,
    /// The value of the key that the field names.
    named: Option<Value>,
}

impl Values {
    fn new(all: &Value) -> Result<Self, Error> {
        let items = if all.is_tuple() {
            all.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?
        } else {
            vec![all.clone()]
        };
        let has_items = matches!(
            all.kind(),
            ValueKind::Map | ValueKind::Seq | ValueKind::Iterable | ValueKind::Undefined
        );
        Ok(Self {
            all: all.clone(),
            items: items.into_iter(),
            mapping: all.kind() == ValueKind::Map,
            counted: all.is_tuple() || !has_items,
            named: None,
        })
    }

    fn name(&mut self, key: &str) -> Result<(), Error> {
        if !self.mapping {
            return Err(type_error("format requires a mapping"));
        }
        let value = self.all.get_item(&Value::from(key))?;
        if value.is_undefined() {
            return Err(type_error(format!("format: the mapping has no key '{key}'")));
        }
        self.named = Some(value);
        Ok(())
    }

    fn next(&mut self) -> Result<Value, Error> {
        let value = self.named.take().or_else(|| self.items.next());
        value.ok_or_else(|| type_error("not enough arguments for format string"))
    }

    fn check_all_used(mut self) -> Result<(), Error> {
        if self.counted && self.items.next().is_some() {
            return Err(type_error("not all arguments converted during string formatting"));
        }
        Ok(())
    }
}

/// A conversion specifier, such as `%-05.2f`.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    blank: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    kind: char,
}

/// A formatted value before it is padded.
struct Field {
    sign: &'static str,
    /// `0x` and the like.
    prefix: &'static str,
    text: String,
    number: bool,
}

impl Spec {
    /// Reads what follows the `%`.
    fn parse(chars: &mut std::str::Chars<'_>, values: &mut Values) -> Result<Self, Error> {
        let mut spec = Self::default();
        if chars.as_str().starts_with('(') {
            let text = chars.as_str();
            let end = key_end(text).ok_or_else(|| type_error("incomplete format key"))?;
            values.name(&text[1..end])?;
            *chars = text[end + 1..].chars();
        }
        let mut c = chars.next().ok_or_else(incomplete)?;
        loop {
            match c {
                '-' => spec.left = true,
                '+' => spec.plus = true,
                ' ' => spec.blank = true,
                '#' => spec.alternate = true,
                '0' => spec.zero = true,
                _ => break,
            }
            c = chars.next().ok_or_else(incomplete)?;
        }
        let width = size(&mut c, chars, values)?;
        spec.left |= width < 0;
        spec.width = width.unsigned_abs() as usize;
        if c == '.' {
            c = chars.next().ok_or_else(incomplete)?;
            spec.precision = Some(size(&mut c, chars, values)?.max(0) as usize);
        }
        if matches!(c, 'h' | 'l' | 'L') {
            c = chars.next().ok_or_else(incomplete)?;
        }
        spec.kind = c;
        Ok(spec)
    }

    fn field(&self, value: &Value, safe: bool) -> Result<Field, Error> {
        match self.kind {
            's' | 'r' | 'a' => {
                let text = match self.kind {
                    's' => python::str(value)?,
                    'r' => Cow::Owned(python::repr(value)?),
                    _ => Cow::Owned(ascii(&python::repr(value)?)),
                };
                let text = match (safe, self.kind == 's' && value.is_safe()) {
                    (true, false) => escape(&Value::from(&*text))?.to_string(),
                    _ => text.into_owned(),
                };
                Ok(Field::of_text(match self.precision {
                    Some(precision) => text.chars().take(precision).collect(),
                    None => text,
                }))
            }
            'c' => character(value).map(|c| Field::of_text(c.to_string())),
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => self.integer(value),
            'e' | 'E' | 'f' | 'F' | 'g' | 'G' => {
                let float = float(value)
                    .ok_or_else(|| type_error(format!("must be real number, not {}", type_name(value))))?;
                Ok(self.number(float.is_sign_negative() && !float.is_nan(), "", self.float(float.abs())))
            }
            other => Err(type_error(format!("unsupported format character '{other}'"))),
        }
    }

    fn integer(&self, value: &Value) -> Result<Field, Error> {
        let hexadecimal_or_octal = matches!(self.kind, 'x' | 'X' | 'o');
        let (negative, magnitude) = match (integer(value), float(value)) {
            (Some(number), _) => (number < 0, number.unsigned_abs()),
            (None, Some(float)) if !hexadecimal_or_octal && !value.is_integer() => {
                let whole = float.trunc();
                if !whole.is_finite() {
                    return Err(type_error(format!(
                        "cannot convert float {} to integer",
                        python::float_repr(float)
                    )));
                }
                // Digits of any length, exact.
                return Ok(self.number(whole < 0.0, "", self.long_enough(format!("{:.0}", whole.abs()))));
            }
            _ => match u128::try_from(value.clone()) {
                Ok(magnitude) if value.is_integer() => (false, magnitude),
                _ => {
                    let expected = if hexadecimal_or_octal { "an integer" } else { "a real number" };
                    let found = type_name(value);
                    return Err(type_error(format!(
                        "%{} format: {expected} is required, not {found}",
                        self.kind
                    )));
                }
            },
        };
        let (prefix, digits) = match self.kind {
            'x' => ("0x", format!("{magnitude:x}")),
            'X' => ("0X", format!("{magnitude:X}")),
            'o' => ("0o", format!("{magnitude:o}")),
            _ => ("", magnitude.to_string()),
        };
        Ok(self.number(negative, if self.alternate { prefix } else { "" }, self.long_enough(digits)))
    }

    /// The digits with zeros in front up to the precision.
    fn long_enough(&self, digits: String) -> String {
        let missing = self.precision.unwrap_or(0).saturating_sub(digits.len());
        format!("{}{digits}", "0".repeat(missing))
    }

    fn number(&self, negative: bool, prefix: &'static str, text: String) -> Field {
        let sign = match (negative, self.plus, self.blank) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        Field { sign, prefix, text, number: true }
    }

    /// Digits of a float that is not negative.
    fn float(&self, value: f64) -> String {
        let precision = self.precision.unwrap_or(6);
        let text = if value.is_nan() {
            "nan".to_owned()
        } else if value.is_infinite() {
            "inf".to_owned()
        } else {
            match self.kind.to_ascii_lowercase() {
                'f' => self.with_point(format!("{value:.precision$}")),
                'e' => self.with_exponent(&format!("{value:.precision$e}")),
                _ => self.general(value, precision.max(1)),
            }
        };
        if self.kind.is_ascii_uppercase() { text.to_ascii_uppercase() } else { text }
    }

    /// `%g`: as many significant digits as the precision says, with an exponent where it is under -4 or over that.
    fn general(&self, value: f64, precision: usize) -> String {
        let scientific = format!("{value:.*e}", precision - 1);
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i64 = exponent.parse().unwrap_or(0);
        let stripped = |digits: &str| match digits.contains('.') && !self.alternate {
            true => digits.trim_end_matches('0').trim_end_matches('.').to_owned(),
            false => digits.to_owned(),
        };
        match usize::try_from(precision as i64 - 1 - exponent) {
            Ok(decimals) if exponent >= -4 => self.with_point(stripped(&format!("{value:.decimals$}"))),
            _ => self.with_exponent(&format!("{}e{exponent}", stripped(digits))),
        }
    }

    /// The alternate form always has a decimal point.
    fn with_point(&self, digits: String) -> String {
        if self.alternate && !digits.contains('.') { digits + "." } else { digits }
    }

    /// Rust's `1.5e-7` as `1.5e-07`.
    fn with_exponent(&self, scientific: &str) -> String {
        let (digits, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(exponent) => ('-', exponent),
            None => ('+', exponent),
        };
        format!("{}e{sign}{exponent:0>2}", self.with_point(digits.to_owned()))
    }

    fn pad(&self, out: &mut String, field: &Field) {
        let length = field.sign.len() + field.prefix.len() + field.text.chars().count();
        let missing = self.width.saturating_sub(length);
        let zeros = if self.zero && field.number && !self.left { missing } else { 0 };
        let before = if self.left { 0 } else { missing - zeros };
        out.extend(std::iter::repeat_n(' ', before));
        out.push_str(field.sign);
        out.push_str(field.prefix);
        out.extend(std::iter::repeat_n('0', zeros));
        out.push_str(&field.text);
        out.extend(std::iter::repeat_n(' ', missing - zeros - before));
    }
}

impl Field {
    fn of_text(text: String) -> Self {
        Self { sign: "", prefix: "", text, number: false }
    }
}

fn incomplete() -> Error {
    type_error("incomplete format")
}

/// The width or precision that starts at `c`, which becomes the character behind it; 0 if there is none.
fn size(c: &mut char, chars: &mut std::str::Chars<'_>, values: &mut Values) -> Result<i64, Error> {
    let mut size = 0_i64;
    if *c == '*' {
        let value = integer(&values.next()?);
        size = value.and_then(|n| n.try_into().ok()).ok_or_else(|| type_error("* wants int"))?;
        *c = chars.next().ok_or_else(incomplete)?;
    } else {
        while let Some(digit) = c.to_digit(10) {
            size = size.saturating_mul(10).saturating_add(i64::from(digit));
            *c = chars.next().ok_or_else(incomplete)?;
        }
    }
    if size.unsigned_abs() > MAX_WIDTH as u64 {
        return Err(type_error(format!("format: expected a width of at most {MAX_WIDTH}, found {size}")));
    }
    Ok(size)
}

/// The byte of the bracket that closes the key at the start; keys may hold brackets.
fn key_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    text.char_indices().find_map(|(at, c)| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

fn integer(value: &Value) -> Option<i128> {
    let whole = value.kind() == ValueKind::Bool || value.is_integer();
    whole.then(|| i128::try_from(value.clone()).ok()).flatten()
}

fn float(value: &Value) -> Option<f64> {
    let number = matches!(value.kind(), ValueKind::Bool | ValueKind::Number);
    number.then(|| python::as_float(value).or_else(|| f64::try_from(value.clone()).ok())).flatten()
}

/// The character of `%c`: a text of one, or the number of one.
fn character(value: &Value) -> Result<char, Error> {
    let mut chars = value.as_str().unwrap_or_default().chars();
    let found = match (chars.next(), chars.next(), integer(value)) {
        (Some(c), None, _) => Some(c),
        (_, _, Some(code)) => u32::try_from(code).ok().and_then(char::from_u32),
        _ => None,
    };
    found.ok_or_else(|| type_error("%c requires an int that is a character's number, or one character"))
}

/// Python's `ascii()` of what `repr()` gave.
fn ascii(repr: &str) -> String {
    let mut out = String::with_capacity(repr.len());
    for c in repr.chars() {
        match u32::from(c) {
            0..=0x7f => out.push(c),
            code @ 0x80..=0xff => out.push_str(&format!("\\x{code:02x}")),
            code @ 0x100..=0xffff => out.push_str(&format!("\\u{code:04x}")),
            code => out.push_str(&format!("\\U{code:08x}")),
        }
    }
    out
}
