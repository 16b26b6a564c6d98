//! Integers that the source gives a name: enumerators and constants, as attributes use them for slots and sizes.

use std::collections::BTreeMap;
use std::ops::Range;

use super::token::{Kind, Tokens};

/// How deep parentheses may lie in each other in an expression that is evaluated.
const DEPTH_LIMIT: usize = 32;

/// Names and values so far.
#[derive(Default)]
pub(super) struct Integers {
    /// Names that stand for two values have none.
    values: BTreeMap<String, Option<i64>>,
}

impl Integers {
    /// Notes a name, if the tokens of `expression` have a value.
    pub fn define(&mut self, tokens: &Tokens<'_>, name: &str, expression: Range<usize>) {
        if let Some(value) = self.evaluate(tokens, expression) {
            self.insert(name, value);
        }
    }

    fn insert(&mut self, name: &str, value: i64) {
        let known = self.values.entry(name.to_owned()).or_insert(Some(value));
        *known = known.filter(|&known| known == value);
    }

    /// Notes the enumerators between the brackets at `open` and `close`.
    pub fn enumerators(&mut self, tokens: &Tokens<'_>, open: usize, close: usize) {
        let mut next = Some(0i64);
        let mut at = open + 1;
        while at < close {
            let mut end = at;
            while end < close && tokens.get(end) != "," {
                end = if matches!(tokens.get(end), "(" | "[" | "{") { tokens.closing(end) } else { end };
                end += 1;
            }
            let end = end.min(close);
            if tokens.kind(at) == Some(Kind::Word) {
                if let Some(equals) = (at..end).find(|&index| tokens.get(index) == "=") {
                    next = self.evaluate(tokens, equals + 1..end);
                }
                if let Some(value) = next {
                    self.insert(tokens.get(at), value);
                    next = value.checked_add(1);
                }
            }
            at = end + 1;
        }
    }

    /// The value of an expression of numbers, known names, parentheses and the operators of integers.
    pub fn evaluate(&self, tokens: &Tokens<'_>, range: Range<usize>) -> Option<i64> {
        let mut expression = Expression { integers: self, tokens, at: range.start, end: range.end };
        let value = expression.binary(0, 0)?;
        (expression.at == expression.end).then_some(value)
    }
}

struct Expression<'a> {
    integers: &'a Integers,
    tokens: &'a Tokens<'a>,
    at: usize,
    end: usize,
}

impl<'a> Expression<'a> {
    fn peek(&self) -> &'a str {
        if self.at < self.end { self.tokens.get(self.at) } else { "" }
    }

    /// The operator at the current place, how tightly it binds, and its length in tokens.
    fn operator(&self) -> Option<(&'a str, u32, usize)> {
        let doubled = self.at + 1 < self.end && self.tokens.get(self.at + 1) == self.peek();
        Some(match self.peek() {
            "|" if !doubled => ("|", 1, 1),
            "^" => ("^", 2, 1),
            "&" if !doubled => ("&", 3, 1),
            "<" if doubled => ("<", 4, 2),
            ">" if doubled => (">", 4, 2),
            operator @ ("+" | "-") => (operator, 5, 1),
            operator @ ("*" | "/" | "%") => (operator, 6, 1),
            _ => return None,
        })
    }

    fn binary(&mut self, weakest: u32, depth: usize) -> Option<i64> {
        let mut left = self.unary(depth)?;
        while let Some((operator, strength, length)) = self.operator() {
            if strength <= weakest {
                break;
            }
            self.at += length;
            let right = self.binary(strength, depth + 1)?;
            let shift = || u32::try_from(right).ok();
            left = match operator {
                "|" => left | right,
                "^" => left ^ right,
                "&" => left & right,
                "<" => left.checked_shl(shift()?)?,
                ">" => left.checked_shr(shift()?)?,
                "+" => left.checked_add(right)?,
                "-" => left.checked_sub(right)?,
                "*" => left.checked_mul(right)?,
                "/" => left.checked_div(right)?,
                _ => left.checked_rem(right)?,
            };
        }
        Some(left)
    }

    fn unary(&mut self, depth: usize) -> Option<i64> {
        if depth > DEPTH_LIMIT {
            return None;
        }
        let word = self.peek();
        match (word, self.tokens.kind(self.at)?) {
            ("-", _) => {
                self.at += 1;
                self.unary(depth + 1)?.checked_neg()
            }
            ("(", _) => {
                self.at += 1;
                let value = self.binary(0, depth + 1)?;
                (self.peek() == ")").then(|| self.at += 1)?;
                Some(value)
            }
            (_, Kind::Number) => {
                self.at += 1;
                number(word)
            }
            // `int(...)`
            ("int" | "uint" | "short" | "ushort" | "size_t", _) if self.tokens.get(self.at + 1) == "(" => {
                self.at += 1;
                self.unary(depth + 1)
            }
            (_, Kind::Word) => {
                while self.at + 2 < self.end && self.tokens.get(self.at + 1) == "::" {
                    self.at += 2;
                }
                let value = self.integers.values.get(self.peek()).copied().flatten();
                self.at += 1;
                value
            }
            _ => None,
        }
    }
}

/// The value of an integer literal.
fn number(text: &str) -> Option<i64> {
    let lower = text.to_ascii_lowercase().replace('\'', "");
    let digits = lower.trim_end_matches(['u', 'l']);
    let (digits, radix) = match digits.split_at_checked(2) {
        Some(("0x", digits)) => (digits, 16),
        Some(("0b", digits)) => (digits, 2),
        _ if digits.len() > 1 && digits.starts_with('0') => (digits, 8),
        _ => (digits, 10),
    };
    i64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::super::token::Tokens;
    use super::Integers;

    fn value(text: &str) -> Option<i64> {
        let source = Tokens::new("enum { A, B = 5, C, D = 1 << B, E = F, G, H = 1, H = 2 }").ok()?;
        let mut integers = Integers::default();
        integers.enumerators(&source, 1, source.closing(1));
        let tokens = Tokens::new(text).ok()?;
        integers.evaluate(&tokens, 0..tokens.all.len())
    }

    #[test]
    fn expressions_have_values() {
        for (text, expected) in [
            ("7", 7),
            ("0x1Fu", 31),
            ("010", 8),
            ("A", 0),
            ("n::C * 2 + 1", 13),
            ("D - (B + -1) % 3", 31),
            ("uint(C) | 1 << 4 & 31", 22),
            ("100 / 7 / 2", 7),
        ] {
            assert_eq!(value(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_integer_has_none() {
        let deep = format!("{}1{}", "(".repeat(1000), ")".repeat(1000));
        for text in
            ["", "E", "G", "H", "x", "1.5", "1 +", "(1", "1 / 0", "1 << 70", "1 2", "B ? 1 : 2", &deep]
        {
            assert_eq!(value(text), None, "{text}");
        }
    }
}
