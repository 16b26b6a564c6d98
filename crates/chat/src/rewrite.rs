//! Operators of a template that the engine does not compute as Python does, turned into calls.
//!
//! The engine has no hook for operators: it refuses `%` on texts, only promises to make the sum of two lists (or
//! makes it without asking the step budget), and joins by `~` what it prints its own way. So `a + b - c` becomes
//! `__fold([a, '+', b, '-', c])`, and [`crate::operators`] does the work. One call holds a whole chain of operators of
//! equal rank, so that a long sum stays as flat as it was.

use crate::operators::FOLD;

/// Brackets in brackets that are followed; the engine refuses fewer.
const MAX_NESTING: usize = 200;

/// Operators by rank, the weakest first, and of each rank those that need a call.
const RANKS: [(&[&str], &[&str]); 3] =
    [(&["+", "-"], &["+"]), (&["~"], &["~"]), (&["*", "/", "//", "%"], &["%"])];

/// The inside of a tag with the operators turned into calls; `None` if it is not well formed, which the engine then
/// says.
pub(crate) fn operators(inside: &str) -> Option<String> {
    if !inside.contains(['+', '~', '%']) {
        return Some(inside.to_owned());
    }
    let mut rewriter = Rewriter { tokens: tokens(inside)?, at: 0 };
    let out = rewriter.all(0)?;
    (rewriter.at == rewriter.tokens.len()).then_some(out)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Space,
    /// A name, a keyword or a number.
    Word,
    Text,
    Open,
    Close,
    /// An operator or other punctuation.
    Sign,
}

#[derive(Debug, Clone, Copy)]
struct Token<'s> {
    kind: Kind,
    text: &'s str,
}

/// The tokens of a tag, `None` if a text is not closed.
fn tokens(source: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let run = |of: fn(char) -> bool| rest.find(|c| !of(c)).unwrap_or(rest.len());
        let (kind, length) = match first {
            c if c.is_whitespace() => (Kind::Space, run(char::is_whitespace)),
            c if is_word(c) => (Kind::Word, word_length(rest)),
            '"' | '\'' => (Kind::Text, text_length(rest, first)?),
            '(' | '[' | '{' => (Kind::Open, 1),
            ')' | ']' | '}' => (Kind::Close, 1),
            c => {
                let double = ["**", "//", "==", "!=", "<=", ">="].iter().any(|sign| rest.starts_with(sign));
                (Kind::Sign, if double { 2 } else { c.len_utf8() })
            }
        };
        let (text, after) = rest.split_at(length);
        tokens.push(Token { kind, text });
        rest = after;
    }
    Some(tokens)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Bytes of the name or number that the text starts with. A number may hold a point and a signed exponent.
fn word_length(text: &str) -> usize {
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    let mut last = ' ';
    for (at, c) in text.char_indices() {
        let next_is_digit = || text[at + 1..].starts_with(|c: char| c.is_ascii_digit());
        let part = is_word(c)
            || number && c == '.' && next_is_digit()
            || number && matches!(c, '+' | '-') && matches!(last, 'e' | 'E') && next_is_digit();
        if !part {
            return at;
        }
        last = c;
    }
    text.len()
}

/// Bytes of the string literal that the text starts with.
fn text_length(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

struct Rewriter<'s> {
    tokens: Vec<Token<'s>>,
    at: usize,
}

impl<'s> Rewriter<'s> {
    fn peek(&self) -> Option<Token<'s>> {
        self.tokens.get(self.at).copied()
    }

    /// Expressions and what stands between them, up to the bracket that closes them.
    fn all(&mut self, nesting: usize) -> Option<String> {
        if nesting > MAX_NESTING {
            return None;
        }
        let mut out = String::new();
        // Whether an operand may not stand before the next token, so that `*` unpacks.
        let mut fresh = true;
        while let Some(token) = self.peek() {
            let unpacks = fresh && matches!(token.text, "*" | "**");
            match token.kind {
                Kind::Close => break,
                Kind::Space => out.push_str(token.text),
                _ if unpacks || separates(token) => {
                    out.push_str(token.text);
                    fresh = true;
                }
                _ => {
                    out.push_str(&self.chain(0, nesting)?);
                    fresh = false;
                    continue;
                }
            }
            self.at += 1;
        }
        Some(out)
    }

    /// Operands joined by operators of a rank.
    fn chain(&mut self, rank: usize, nesting: usize) -> Option<String> {
        let Some((ranked, called)) = RANKS.get(rank) else { return self.operand(nesting) };
        let first = self.chain(rank + 1, nesting)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.peek().filter(|token| ranked.contains(&token.text)) {
            self.at += 1;
            rest.push((operator.text, self.chain(rank + 1, nesting)?));
        }
        let call = rest.iter().any(|(operator, _)| called.contains(operator));
        let mut out = if call { format!("{FOLD}([{first}") } else { first };
        for (operator, operand) in rest {
            out.push_str(&if call {
                format!(",'{operator}',{operand}")
            } else {
                format!("{operator}{operand}")
            });
        }
        if call {
            out.push_str("])");
        }
        Some(out)
    }

    /// What binds tighter than any operator that is rewritten: a value with its sign, powers, items, calls, filters
    /// and tests. `None` if there is none.
    fn operand(&mut self, nesting: usize) -> Option<String> {
        let mut out = String::new();
        let mut state = Operand::Missing;
        while let Some(token) = self.peek() {
            let next = match (token.kind, state) {
                (Kind::Space, _) => state,
                (Kind::Close, _) => break,
                // The name of a test, which one argument may follow.
                (Kind::Word, Operand::Test) if token.text == "not" => state,
                (Kind::Word, Operand::Test) => Operand::Tested,
                (Kind::Word, Operand::Complete | Operand::Tested) if token.text == "is" => Operand::Test,
                (_, Operand::Complete | Operand::Tested) if separates(token) => break,
                (Kind::Word, Operand::Complete) => break,
                (Kind::Word | Kind::Text, _) => Operand::Complete,
                (Kind::Open, _) => {
                    out.push_str(token.text);
                    self.at += 1;
                    out.push_str(&self.all(nesting + 1)?);
                    let close = self.peek()?;
                    out.push_str(close.text);
                    self.at += 1;
                    state = Operand::Complete;
                    continue;
                }
                (Kind::Sign, _) if matches!(token.text, "." | "|") => Operand::Missing,
                (Kind::Sign, Operand::Complete | Operand::Tested) if token.text == "**" => Operand::Missing,
                (Kind::Sign, Operand::Complete | Operand::Tested) => break,
                // A sign before the value.
                (Kind::Sign, _) if matches!(token.text, "+" | "-") => state,
                (Kind::Sign, _) => return None,
            };
            state = next;
            out.push_str(token.text);
            self.at += 1;
        }
        matches!(state, Operand::Complete | Operand::Tested).then_some(out)
    }
}

/// How far an operand has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    /// A value must follow.
    Missing,
    /// It may end here.
    Complete,
    /// The name of a test must follow.
    Test,
    /// It may end here, or the argument of the test follows.
    Tested,
}

/// Whether a token stands between expressions and binds weaker than the operators that are rewritten.
fn separates(token: Token<'_>) -> bool {
    match token.kind {
        Kind::Word => matches!(token.text, "and" | "or" | "not" | "in" | "if" | "else"),
        Kind::Sign => matches!(token.text, "," | ":" | "=" | "==" | "!=" | "<" | "<=" | ">" | ">="),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::operators;

    #[test]
    fn chains_become_calls() {
        for (source, expected) in [
            (" a + b ", " __fold([a ,'+', b ])"),
            ("a+b-c+d", "__fold([a,'+',b,'-',c,'+',d])"),
            ("a-b*c", "a-b*c"),
            ("a * b % c + d", "__fold([__fold([a ,'*', b ,'%', c ]),'+', d])"),
            ("a ~ b + c ~ -1", "__fold([__fold([a ,'~', b ]),'+',__fold([ c ,'~', -1])])"),
            ("a % b ** c", "__fold([a ,'%', b ** c])"),
            ("-a % +b", "__fold([-a ,'%', +b])"),
            ("not a + b in c + d", "not __fold([a ,'+', b ])in __fold([c ,'+', d])"),
            ("x + y if a % 2 == 0 else z", "__fold([x ,'+', y ])if __fold([a ,'%', 2 ])== 0 else z"),
            (
                "a|f(b + c)[d + 1:e] + 'x+y'",
                "__fold([a|f(__fold([b ,'+', c]))[__fold([d ,'+', 1]):e] ,'+', 'x+y'])",
            ),
            ("f(*a, k=b + c, **d)", "f(*a, k=__fold([b ,'+', c]), **d)"),
            ("{'a': b ~ c}.d.0 + 1.5e+3", "__fold([{'a': __fold([b ,'~', c])}.d.0 ,'+', 1.5e+3])"),
            ("a is not divisibleby 3 + b", "__fold([a is not divisibleby 3 ,'+', b])"),
            ("a is sameas b + c is defined and d", "__fold([a is sameas b ,'+', c is defined ])and d"),
            ("set x, y = a + b, c", "set x, y = __fold([a ,'+', b]), c"),
            (
                "for x in a + b if x % 2 recursive",
                "for x in __fold([a ,'+', b ])if __fold([x ,'%', 2 ])recursive",
            ),
            ("call(a) f(b + c)", "call(a) f(__fold([b ,'+', c]))"),
            ("filter indent(a + b)", "filter indent(__fold([a ,'+', b]))"),
            ("(a,) + () + [*b]", "__fold([(a,) ,'+', () ,'+', [*b]])"),
        ] {
            assert_eq!(operators(source).as_deref(), Some(expected), "{source}");
        }
    }

    #[test]
    fn what_is_broken_is_left_to_the_engine() {
        let deep = format!("{}a + b{}", "(".repeat(100_000), ")".repeat(100_000));
        for source in ["a +", "a + )", "'a + b", "a + (b", "% a", "a + * b", "a + ;", &deep] {
            assert_eq!(operators(source), None, "{source}");
        }
    }

    #[test]
    fn the_text_grows_with_the_chain_and_no_faster() {
        let long = format!("a{}", " + b % c".repeat(100_000));
        assert!(operators(&long).is_some_and(|out| out.len() < 4 * long.len()));
    }
}
