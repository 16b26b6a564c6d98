//! The tokeniser: preprocessed text to tokens that know where they come from.

use super::Diagnostic;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Identifier or keyword.
    Word,
    /// Preprocessing number.
    Number,
    /// String or character literal.
    Text,
    /// One punctuation character; `::` and `->` are two characters long.
    Punctuation,
}

/// One token: a range of the text and its place in the source.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
    /// Index into [`Tokens::files`].
    pub file: u32,
    pub line: u32,
    pub column: u32,
}

/// All tokens of a text, and the ranges of its `#pragma` lines.
pub(super) struct Tokens<'a> {
    pub text: &'a str,
    pub all: Vec<Token>,
    pub files: Vec<String>,
    pub pragmas: Vec<(usize, usize)>,
    /// By opening bracket: the token that closes it.
    closing: Vec<usize>,
}

impl<'a> Tokens<'a> {
    /// Splits preprocessed text into tokens.
    ///
    /// # Errors
    /// A literal that does not end.
    pub fn new(text: &'a str) -> Result<Self, Diagnostic> {
        let mut tokens = Self {
            text,
            all: Vec::new(),
            files: vec!["<source>".to_owned()],
            pragmas: Vec::new(),
            closing: Vec::new(),
        };
        let bytes = text.as_bytes();
        let (mut file, mut line, mut line_start, mut at) = (0u32, 1u32, 0usize, 0usize);
        let mut fresh_line = true;
        while at < bytes.len() {
            let byte = bytes[at];
            if byte == b'\n' {
                at += 1;
                line = line.saturating_add(1);
                line_start = at;
                fresh_line = true;
                continue;
            }
            if byte.is_ascii_whitespace() || byte >= 0x80 {
                // Bytes past ASCII only occur in literals and comments; elsewhere clang reports them.
                at += 1;
                continue;
            }
            if byte == b'#' && fresh_line {
                let end = text[at..].find('\n').map_or(text.len(), |length| at + length);
                if let Some((marked_line, name)) = line_marker(&text[at..end]) {
                    file = tokens.file_index(name);
                    line = marked_line;
                    at = (end + 1).min(text.len());
                    line_start = at;
                } else {
                    tokens.pragmas.push((at, end));
                    at = end;
                }
                continue;
            }
            fresh_line = false;
            let start = at;
            let kind = if byte.is_ascii_alphabetic() || byte == b'_' {
                at = skip(bytes, at, |b| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80);
                if at < bytes.len() && bytes[at] == b'"' && &bytes[start..at] == b"R" {
                    return Err(tokens.diagnostic_at(file, line, start - line_start, "raw string literal"));
                }
                Kind::Word
            } else if byte.is_ascii_digit()
                || (byte == b'.' && bytes.get(at + 1).is_some_and(u8::is_ascii_digit))
            {
                at = number_end(bytes, at);
                Kind::Number
            } else if byte == b'"' || byte == b'\'' {
                at = match literal_end(bytes, at) {
                    Some(end) => end,
                    None => {
                        let message = "literal without an end";
                        return Err(tokens.diagnostic_at(file, line, start - line_start, message));
                    }
                };
                Kind::Text
            } else {
                at += if matches!(bytes.get(at..at + 2), Some(b"::" | b"->")) { 2 } else { 1 };
                Kind::Punctuation
            };
            let column = u32::try_from(start - line_start).unwrap_or(u32::MAX - 1) + 1;
            tokens.all.push(Token { kind, start, end: at, file, line, column });
        }
        tokens.match_brackets();
        Ok(tokens)
    }

    /// Brackets of every kind close each other: a text where they do not fit is clang's to refuse.
    fn match_brackets(&mut self) {
        self.closing = vec![self.all.len(); self.all.len()];
        let mut open = Vec::new();
        for index in 0..self.all.len() {
            match self.get(index) {
                "(" | "[" | "{" => open.push(index),
                ")" | "]" | "}" => {
                    self.closing[index] = index;
                    if let Some(open) = open.pop() {
                        self.closing[open] = index;
                    }
                }
                _ => {}
            }
        }
    }

    /// The token's text; empty past the end.
    pub fn get(&self, index: usize) -> &'a str {
        self.all.get(index).map_or("", |token| &self.text[token.start..token.end])
    }

    /// The kind of a token, if there is one.
    pub fn kind(&self, index: usize) -> Option<Kind> {
        self.all.get(index).map(|token| token.kind)
    }

    /// The text from the first to the last token of a range.
    pub fn slice(&self, range: std::ops::Range<usize>) -> &'a str {
        match (self.all.get(range.start), range.end.checked_sub(1).and_then(|last| self.all.get(last))) {
            (Some(first), Some(last)) if first.start <= last.end => &self.text[first.start..last.end],
            _ => "",
        }
    }

    /// The index of the bracket that closes the one at `open`, or the number of tokens.
    pub fn closing(&self, open: usize) -> usize {
        self.closing.get(open).copied().unwrap_or(self.all.len())
    }

    /// The index of the `>` that closes the `<` at `open`, or `None` where the `<` is a comparison.
    pub fn closing_angle(&self, open: usize) -> Option<usize> {
        let mut depth = 0usize;
        let mut index = open;
        while index < self.all.len() {
            match self.get(index) {
                "<" => depth += 1,
                ">" => {
                    depth -= 1;
                    if depth == 0 {
                        return Some(index);
                    }
                }
                "(" | "[" => index = self.closing(index),
                ";" | "{" | "}" | ")" => return None,
                _ => {}
            }
            index += 1;
        }
        None
    }

    /// A complaint about a token.
    pub fn diagnostic(&self, index: usize, message: impl Into<String>) -> Diagnostic {
        match self.all.get(index).or(self.all.last()) {
            Some(token) => Diagnostic {
                file: self.files[token.file as usize].clone(),
                line: token.line,
                column: token.column,
                message: message.into(),
            },
            None => Diagnostic { file: self.files[0].clone(), line: 1, column: 1, message: message.into() },
        }
    }

    fn diagnostic_at(&self, file: u32, line: u32, offset: usize, message: &str) -> Diagnostic {
        Diagnostic {
            file: self.files[file as usize].clone(),
            line,
            column: u32::try_from(offset).unwrap_or(u32::MAX - 1) + 1,
            message: message.to_owned(),
        }
    }

    fn file_index(&mut self, name: &str) -> u32 {
        let found = self.files.iter().position(|file| file == name);
        let index = found.unwrap_or_else(|| {
            self.files.push(name.to_owned());
            self.files.len() - 1
        });
        u32::try_from(index).unwrap_or(0)
    }
}

/// `# 12 "file" flags`: the number of the next line and its file.
fn line_marker(line: &str) -> Option<(u32, &str)> {
    let rest = line.strip_prefix('#')?.trim_start();
    let (number, rest) = rest.split_once(' ')?;
    let number = number.parse().ok()?;
    let name = rest.trim_start().strip_prefix('"')?;
    Some((number, &name[..name.rfind('"')?]))
}

fn skip(bytes: &[u8], mut at: usize, accept: impl Fn(u8) -> bool) -> usize {
    while at < bytes.len() && accept(bytes[at]) {
        at += 1;
    }
    at
}

fn number_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        let byte = bytes[at];
        let sign = matches!(byte, b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E' | b'p' | b'P');
        if !(byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'\'' | b'_') || (sign && at > 0)) {
            break;
        }
        // In a hexadecimal integer an `e` is a digit, and a sign after it an operator.
        at += 1;
    }
    at
}

fn literal_end(bytes: &[u8], start: usize) -> Option<usize> {
    let quote = bytes[start];
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'\n' => return None,
            byte if byte == quote => return Some(at + 1),
            _ => at += 1,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_markers_move_the_place() {
        let tokens = Tokens::new("# 7 \"a.metal\" 2\n  int x;\n").unwrap();
        let first = tokens.all[0];
        assert_eq!((first.line, first.column), (7, 3));
        assert_eq!(tokens.diagnostic(0, "m").to_string(), "a.metal:7:3: m");
    }

    #[test]
    fn an_open_literal_is_an_error() {
        assert_eq!(Tokens::new("x = \"abc\n").err().unwrap().message, "literal without an end");
    }

    #[test]
    fn comparison_is_no_bracket() {
        let tokens = Tokens::new("a < b; c<d<1>, (e > f)>").unwrap();
        assert_eq!(tokens.closing_angle(1), None);
        assert_eq!(tokens.closing_angle(5), Some(tokens.all.len() - 1));
    }
}
