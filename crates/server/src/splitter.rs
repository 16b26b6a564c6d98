//! Tells apart what a model says: its reasoning, its answer, its calls of tools.

use crate::tools::{CallPart, CallReader, ToolSyntax};

/// What a model writes when it begins to think.
pub const THINK: &str = "<think>";
/// What it writes when it has thought.
pub const END_THINK: &str = "</think>";

/// A piece of an answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Of the answer itself.
    Content(String),
    /// Of the reasoning before it.
    Reasoning(String),
    /// Of the call of a tool, which is this one's number.
    Call(usize, CallPart),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nothing has come but blanks: reasoning may begin.
    Start,
    /// Reasoning begins: line breaks before it are not part of it.
    Begin,
    Reasoning,
    /// After reasoning: blanks before the answer are not part of it.
    Gap,
    Content,
    Call,
}

/// Splits a text that comes piece by piece. What could still become a tag is held back.
#[derive(Debug)]
pub struct Splitter {
    state: State,
    syntax: Option<ToolSyntax>,
    parallel: bool,
    held: String,
    call: CallReader,
    calls: usize,
}

impl Splitter {
    /// A splitter for an answer. `thinks` tells that the model may begin with reasoning, `thinking` that the prompt
    /// has begun it already.
    pub fn new(thinks: bool, thinking: bool, syntax: Option<ToolSyntax>, parallel: bool) -> Splitter {
        let state = match (thinking, thinks) {
            (true, _) => State::Begin,
            (false, true) => State::Start,
            (false, false) => State::Content,
        };
        Splitter { state, syntax, parallel, held: String::new(), call: CallReader::default(), calls: 0 }
    }

    /// Calls of tools so far.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Whether reasoning is under way.
    pub fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Begin | State::Reasoning)
    }

    /// Takes text.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces, false) {}
        pieces
    }

    /// What was held back, once nothing follows.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while self.step(&mut pieces, true) {}
        if self.state == State::Call {
            self.end_call(&mut pieces);
        }
        pieces
    }

    /// Goes on as far as the next tag; whether there was one.
    fn step(&mut self, pieces: &mut Vec<Piece>, last: bool) -> bool {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if !last && (text.is_empty() || THINK.starts_with(text)) && text != THINK {
                    return false;
                }
                match text.strip_prefix(THINK) {
                    Some(rest) => {
                        self.held = rest.to_owned();
                        self.state = State::Begin;
                    }
                    None => self.state = State::Content,
                }
                true
            }
            State::Begin => {
                self.held = self.held.trim_start_matches('\n').to_owned();
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Reasoning;
                true
            }
            State::Reasoning => {
                let (text, found) = self.until(END_THINK, last);
                if !text.is_empty() {
                    pieces.push(Piece::Reasoning(text));
                }
                if found {
                    self.state = State::Gap;
                }
                found
            }
            State::Gap => {
                self.held = self.held.trim_start().to_owned();
                if self.held.is_empty() {
                    return false;
                }
                self.state = State::Content;
                true
            }
            State::Content => self.content(pieces, last),
            State::Call => {
                let (_, end) = self.syntax.map_or(("", ""), ToolSyntax::tags);
                let (text, found) = if end.is_empty() {
                    (std::mem::take(&mut self.held), false)
                } else {
                    self.until(end, last)
                };
                self.read_call(&text, pieces);
                if found {
                    self.end_call(pieces);
                    self.state = State::Gap;
                }
                found
            }
        }
    }

    fn content(&mut self, pieces: &mut Vec<Piece>, last: bool) -> bool {
        let Some(syntax) = self.syntax else {
            let text = std::mem::take(&mut self.held);
            push_content(pieces, text);
            return false;
        };
        let (start, _) = syntax.tags();
        if start.is_empty() {
            // The whole answer is a call, or none of it.
            let text = self.held.trim_start();
            if text.is_empty() && !last {
                return false;
            }
            if text.starts_with('{') {
                self.state = State::Call;
                return true;
            }
            self.syntax = None;
            return true;
        }
        let (text, found) = self.until(start, last);
        // Blanks before a call are not an answer.
        if !found || !text.trim().is_empty() {
            push_content(pieces, text);
        }
        if found {
            self.state = State::Call;
        }
        found
    }

    fn read_call(&mut self, text: &str, pieces: &mut Vec<Piece>) {
        for part in self.call.push(text) {
            self.tell(part, pieces);
        }
    }

    fn end_call(&mut self, pieces: &mut Vec<Piece>) {
        match self.call.finish() {
            Ok(parts) => parts.into_iter().for_each(|part| self.tell(part, pieces)),
            Err(text) => push_content(pieces, text),
        }
        self.call = CallReader::default();
    }

    fn tell(&mut self, part: CallPart, pieces: &mut Vec<Piece>) {
        if matches!(part, CallPart::Name(_)) {
            self.calls += 1;
        }
        // Where only one call is wanted, the others are left out.
        if self.parallel || self.calls == 1 {
            pieces.push(Piece::Call(self.calls - 1, part));
        }
    }

    /// Takes the text before a tag, and the tag if it is there; else what cannot be part of it.
    fn until(&mut self, tag: &str, last: bool) -> (String, bool) {
        if let Some(at) = self.held.find(tag) {
            let rest = self.held.split_off(at + tag.len());
            let mut text = std::mem::replace(&mut self.held, rest);
            text.truncate(at);
            return (text, true);
        }
        let keep = if last { 0 } else { overlap(&self.held, tag) };
        let rest = self.held.split_off(self.held.len() - keep);
        (std::mem::replace(&mut self.held, rest), false)
    }
}

fn push_content(pieces: &mut Vec<Piece>, text: String) {
    if !text.is_empty() {
        pieces.push(Piece::Content(text));
    }
}

/// Bytes at the end of `text` that begin `tag`, which is ASCII.
fn overlap(text: &str, tag: &str) -> usize {
    (1..tag.len()).rev().find(|&n| text.ends_with(&tag[..n])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Content, reasoning and calls of a text that comes in pieces of some characters.
    fn split(mut splitter: Splitter, text: &str, step: usize) -> (String, String, Vec<(String, String)>) {
        let chars: Vec<char> = text.chars().collect();
        let mut pieces = Vec::new();
        for piece in chars.chunks(step) {
            pieces.extend(splitter.push(&piece.iter().collect::<String>()));
        }
        pieces.extend(splitter.finish());
        let (mut content, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
        for piece in pieces {
            match piece {
                Piece::Content(text) => content.push_str(&text),
                Piece::Reasoning(text) => reasoning.push_str(&text),
                Piece::Call(number, CallPart::Name(name)) => {
                    assert_eq!(number, calls.len());
                    calls.push((name, String::new()));
                }
                Piece::Call(number, CallPart::Arguments(text)) => calls[number].1.push_str(&text),
            }
        }
        (content, reasoning, calls)
    }

    fn each(text: &str, splitter: impl Fn() -> Splitter) -> (String, String, Vec<(String, String)>) {
        let whole = split(splitter(), text, text.len().max(1));
        for step in 1..=8 {
            assert_eq!(split(splitter(), text, step), whole, "in steps of {step}");
        }
        whole
    }

    #[test]
    fn reasoning_is_told_apart() {
        let found = each("<think>\na < b</think>\n\nyes", || Splitter::new(true, false, None, true));
        assert_eq!(found, ("yes".into(), "a < b".into(), vec![]));
        let found = each("a</think>b</think>", || Splitter::new(true, true, None, true));
        assert_eq!(found, ("b</think>".into(), "a".into(), vec![]));
        let found = each("never ends </thin", || Splitter::new(true, true, None, true));
        assert_eq!(found, (String::new(), "never ends </thin".into(), vec![]));
        let found = each(" <thick> is no tag", || Splitter::new(true, false, None, true));
        assert_eq!(found.0, " <thick> is no tag");
        let found = each("<think>x</think>", || Splitter::new(false, false, None, true));
        assert_eq!(found.0, "<think>x</think>", "a model that does not think can say so");
    }

    #[test]
    fn calls_are_told_apart() {
        let tagged = || Splitter::new(false, false, Some(ToolSyntax::Tagged), true);
        let call = |name: &str| {
            format!("<tool_call>\n{{\"name\": \"{name}\", \"arguments\": {{\"x\": 1}}}}\n</tool_call>")
        };
        let found = each(&format!("Let me see.\n{}\n{}", call("f"), call("g")), tagged);
        assert_eq!(found.0, "Let me see.\n");
        assert_eq!(found.2, [("f".into(), "{\"x\": 1}".into()), ("g".into(), "{\"x\": 1}".into())]);
        let one = || Splitter::new(false, false, Some(ToolSyntax::Tagged), false);
        assert_eq!(each(&format!("{}{}", call("f"), call("g")), one).2.len(), 1);
        let found = each("<tool_call>nonsense</tool_call>", tagged);
        assert_eq!((&*found.0, found.2.len()), ("nonsense", 0));
        let found = each("a <tool_cal", tagged);
        assert_eq!(found.0, "a <tool_cal");
    }

    #[test]
    fn a_bare_call_is_the_whole_answer() {
        let bare = || Splitter::new(false, false, Some(ToolSyntax::Bare), true);
        let found = each("{\"name\": \"f\", \"parameters\": {}}", bare);
        assert_eq!((found.0.as_str(), &found.2[..]), ("", &[("f".into(), "{}".into())][..]));
        assert_eq!(each("No {x} here", bare).0, "No {x} here");
        assert_eq!(each("{\"a\": 1}", bare).0, "{\"a\": 1}");
    }
}
