//! Finds out which parts of a rendered text came from the conversation and look like control tokens.
//!
//! The template engine joins, splits and searches texts, so their origin is lost on the way. Therefore the
//! conversation is rendered twice: once as it is, which gives the text, and once with the first and the last
//! punctuation mark of any control token replaced, wherever it occurs in the conversation, by a stand-in: a
//! symbol that occurs nowhere else. No control token can arise from the conversation without one of these
//! marks, however the template cuts and joins. Stand-ins have what string functions look at in common with
//! the marks they replace (one character, no letter, no digit, no white space, no case, printable), so lengths,
//! slices and stripped spaces stay the same; put back, the second text equals the first, and where a stand-in
//! stood in a control token there is a literal range.
//!
//! If the texts are not equal, the template looked for such a mark, as templates of reasoning models look for
//! `</think>`. Then some of the stand-ins are left out, those of as few and as small parts of the conversation as
//! it takes, until they are.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value as Json};

use crate::Error;
use crate::template::{Inputs, Rendered};

/// Renderings that one conversation may take.
const MAX_RENDERINGS: usize = 200;

/// Marks that one conversation may have where control tokens have some: each takes a hundred bytes here. Texts that fit in
/// a context have fewer by far.
const MAX_MARKS: usize = 1 << 20;

/// Symbols that may serve as stand-ins, the ones least used in text first: Tai Xuan Jing, Yijing, domino tiles,
/// alchemy, Braille, and at last rare Chinese characters.
const STAND_INS: [(u32, u32); 6] = [
    (0x1d306, 0x1d356),
    (0x4dc0, 0x4dff),
    (0x1f030, 0x1f093),
    (0x1f700, 0x1f773),
    (0x2800, 0x28ff),
    (0x20000, 0x2a6d0),
];

/// Renders the inputs and marks what in the text must not be read as a control token.
pub(crate) fn render(
    inputs: &Inputs,
    source: &str,
    control_tokens: &[String],
    render: impl Fn(&Inputs) -> Result<String, Error>,
) -> Result<Rendered, Error> {
    let text = render(inputs)?;
    // White space cannot open or end a turn, and templates rely on it.
    let tokens: Vec<&str> = control_tokens.iter().map(|t| &**t).filter(|t| !t.trim().is_empty()).collect();
    let finder = Finder::new(&tokens);
    let strings = strings_of(inputs);
    let found = strings.iter().map(|text| finder.count(text)).sum();
    if found > MAX_MARKS {
        return Err(Error::TooManyMarks { found, most: MAX_MARKS });
    }
    let units = finder.units_by_string(&strings);
    if units.is_empty() {
        return Ok(Rendered { text, literal: Vec::new() });
    }
    let stand_ins = StandIns::choose(&finder.marks, &strings, source, control_tokens)?;
    let mut search =
        Search { inputs, text: &text, stand_ins: &stand_ins, render, left: MAX_RENDERINGS, best: None };
    let mut accepted = HashSet::new();
    let mut refused = Vec::new();
    search.settle(&units, &mut accepted, &mut refused)?;
    if !refused.is_empty() {
        let smaller: Vec<Unit> =
            refused.iter().flat_map(|unit| finder.units_by_token(unit, &strings)).collect();
        search.settle(&smaller, &mut accepted, &mut Vec::new())?;
    }
    let literal = match search.best {
        Some(guarded) => finder.literal(&text, &stand_ins.places(&guarded)),
        None => Vec::new(),
    };
    Ok(Rendered { text, literal })
}

/// `None` only for a set of patterns of many gigabytes.
fn automaton(patterns: &[&str]) -> Option<AhoCorasick> {
    AhoCorasick::builder().match_kind(MatchKind::Standard).build(patterns).ok()
}

/// A mark in the conversation: the number of its string in the order of [`visit`], and its byte in the string.
type Place = (usize, usize);

/// Marks that get a stand-in together or not at all.
#[derive(Debug, Clone)]
struct Unit(Vec<Place>);

/// Knows the control tokens and which characters mark them.
struct Finder<'t> {
    tokens: &'t [&'t str],
    /// Finds them; built when needed, since a model may have thousands of tokens.
    automaton: OnceCell<Option<AhoCorasick>>,
    /// First and last punctuation mark of each token.
    marks: HashSet<char>,
    /// Tokens without punctuation, of which the first character serves where the whole token occurs.
    words: Option<AhoCorasick>,
}

impl<'t> Finder<'t> {
    fn new(tokens: &'t [&'t str]) -> Self {
        let is_mark = |c: &char| !c.is_alphanumeric() && !c.is_whitespace() && *c != '_';
        let mut marks = HashSet::new();
        let mut words = Vec::new();
        for token in tokens {
            match (token.chars().find(is_mark), token.chars().rfind(is_mark)) {
                (Some(first), Some(last)) => marks.extend([first, last]),
                _ => words.push(*token),
            }
        }
        let words = if words.is_empty() { None } else { automaton(&words) };
        Self { tokens, automaton: OnceCell::new(), marks, words }
    }

    /// Where there are control tokens in a text, in order of their ends; they may overlap.
    fn find(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        let automaton = self.automaton.get_or_init(|| automaton(self.tokens));
        automaton.iter().flat_map(move |a| a.find_overlapping_iter(text)).map(|found| found.range())
    }

    /// Bytes of a text at which there is a mark; some twice.
    fn marks_in(&self, text: &str) -> impl Iterator<Item = usize> {
        let marks = text.char_indices().filter(|(_, c)| self.marks.contains(c)).map(|(at, _)| at);
        let words = self.words.iter().flat_map(move |words| words.find_overlapping_iter(text));
        marks.chain(words.map(|word| word.start()))
    }

    /// Marks in a text, at least as many as there are places.
    fn count(&self, text: &str) -> usize {
        self.marks_in(text).count()
    }

    /// Places in a text that get a stand-in.
    fn places(&self, number: usize, text: &str) -> Vec<Place> {
        let mut places: Vec<_> = self.marks_in(text).map(|at| (number, at)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn units_by_string(&self, strings: &[&str]) -> Vec<Unit> {
        let places = strings.iter().enumerate().map(|(number, text)| self.places(number, text));
        places.filter(|places| !places.is_empty()).map(Unit).collect()
    }

    /// The unit of a string, cut into its control tokens and the rest. Tokens that overlap are one unit.
    fn units_by_token(&self, unit: &Unit, strings: &[&str]) -> Vec<Unit> {
        let Some(&(number, _)) = unit.0.first() else { return Vec::new() };
        let mut spans: Vec<Range<usize>> = self.find(strings[number]).collect();
        spans.sort_unstable_by_key(|span| span.start);
        let spans = merged(spans);
        let mut units: Vec<Unit> = spans
            .iter()
            .map(|span| Unit(unit.0.iter().filter(|(_, at)| span.contains(at)).copied().collect()))
            .collect();
        // A single mark may still complete a token together with its neighbours.
        let rest = unit.0.iter().filter(|(_, at)| !spans.iter().any(|span| span.contains(at)));
        units.extend(rest.map(|place| Unit(vec![*place])));
        units.retain(|unit| !unit.0.is_empty());
        units
    }

    /// Of the places that came from the conversation, those that lie in what looks like a control token.
    fn literal(&self, text: &str, places: &[Range<usize>]) -> Vec<Range<usize>> {
        let mut literal = vec![false; places.len()];
        for found in self.find(text) {
            let first = places.partition_point(|place| place.end <= found.start);
            let inside = places[first..].iter().take_while(|place| place.start < found.end).count();
            literal[first..first + inside].fill(true);
        }
        let places = places.iter().zip(literal);
        merged(places.filter(|(_, literal)| *literal).map(|(place, _)| place.clone()).collect())
    }
}

/// Ranges in order of their start, those that touch or overlap joined.
fn merged(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut out: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match out.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => out.push(range),
        }
    }
    out
}

/// Which symbol stands for which character.
struct StandIns {
    of: HashMap<char, char>,
    back: HashMap<char, char>,
}

impl StandIns {
    /// Symbols that occur nowhere in what is rendered.
    fn choose(
        marks: &HashSet<char>,
        strings: &[&str],
        source: &str,
        control_tokens: &[String],
    ) -> Result<Self, Error> {
        let texts = strings.iter().copied().chain([source]).chain(control_tokens.iter().map(|t| &**t));
        let used: HashSet<char> = texts.flat_map(str::chars).filter(|c| !c.is_ascii()).collect();
        let firsts = control_tokens.iter().filter_map(|token| token.chars().next());
        let mut wanted: Vec<char> = marks.iter().copied().chain(firsts).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let all = STAND_INS.iter().flat_map(|(first, last)| *first..=*last).filter_map(char::from_u32);
        let free: Vec<char> = all.filter(|c| !used.contains(c)).take(wanted.len()).collect();
        if free.len() < wanted.len() {
            return Err(Error::Ambiguous { renderings: 0 });
        }
        let of: HashMap<_, _> = wanted.into_iter().zip(free).collect();
        let back = of.iter().map(|(mark, stand_in)| (*stand_in, *mark)).collect();
        Ok(Self { of, back })
    }

    /// The text with the marks put back.
    fn undo(&self, guarded: &str) -> String {
        guarded.chars().map(|c| *self.back.get(&c).unwrap_or(&c)).collect()
    }

    /// Byte ranges of the stand-ins, in the text with the marks put back.
    fn places(&self, guarded: &str) -> Vec<Range<usize>> {
        let mut at = 0;
        let mut places = Vec::new();
        for c in guarded.chars() {
            let mark = self.back.get(&c);
            let length = mark.unwrap_or(&c).len_utf8();
            if mark.is_some() {
                places.push(at..at + length);
            }
            at += length;
        }
        places
    }

    fn apply(&self, text: &str, places: &HashSet<Place>, number: usize) -> String {
        let replace = |(at, c)| match self.of.get(&c) {
            Some(stand_in) if places.contains(&(number, at)) => *stand_in,
            _ => c,
        };
        text.char_indices().map(replace).collect()
    }
}

/// Finds the largest set of stand-ins that leaves the text as it is.
struct Search<'a, R> {
    inputs: &'a Inputs,
    text: &'a str,
    stand_ins: &'a StandIns,
    render: R,
    /// Renderings left.
    left: usize,
    /// The text of the accepted stand-ins.
    best: Option<String>,
}

impl<R: Fn(&Inputs) -> Result<String, Error>> Search<'_, R> {
    /// Accepts as many units as possible, halving what does not work as a whole.
    fn settle(
        &mut self,
        units: &[Unit],
        accepted: &mut HashSet<Place>,
        refused: &mut Vec<Unit>,
    ) -> Result<(), Error> {
        if units.is_empty() {
            return Ok(());
        }
        let mut trial = accepted.clone();
        trial.extend(units.iter().flat_map(|unit| &unit.0));
        if let Some(guarded) = self.try_places(&trial)? {
            self.best = Some(guarded);
            *accepted = trial;
            return Ok(());
        }
        if let [unit] = units {
            refused.push(unit.clone());
            return Ok(());
        }
        let (left, right) = units.split_at(units.len() / 2);
        self.settle(left, accepted, refused)?;
        self.settle(right, accepted, refused)
    }

    /// The text with stand-ins at these places, if putting the marks back gives the true text.
    fn try_places(&mut self, places: &HashSet<Place>) -> Result<Option<String>, Error> {
        self.left = self.left.checked_sub(1).ok_or(Error::Ambiguous { renderings: MAX_RENDERINGS })?;
        let guarded = self.inputs.map_strings(&mut |number, text| self.stand_ins.apply(text, places, number));
        match (self.render)(&guarded) {
            Ok(rendered) => Ok(Some(rendered).filter(|rendered| self.stand_ins.undo(rendered) == self.text)),
            // This tells nothing about the places.
            Err(error @ (Error::TooSlow { .. } | Error::Stuck { .. })) => Err(error),
            // An error is one more way in which a template tells that it looked.
            Err(_) => Ok(None),
        }
    }
}

fn strings_of(inputs: &Inputs) -> Vec<&str> {
    let mut strings = Vec::new();
    visit(&inputs.messages, &mut strings);
    visit(&inputs.tools, &mut strings);
    for (name, value) in &inputs.extra {
        if !is_token_name(name) {
            visit(value, &mut strings);
        }
    }
    strings
}

/// Texts and keys, in the order in which [`map_value`] numbers them.
fn visit<'j>(value: &'j Json, strings: &mut Vec<&'j str>) {
    match value {
        Json::String(text) => strings.push(text),
        Json::Array(items) => items.iter().for_each(|item| visit(item, strings)),
        Json::Object(map) => {
            for (key, value) in map {
                strings.push(key);
                visit(value, strings);
            }
        }
        _ => {}
    }
}

/// Variables such as `pad_token` belong to the model, not to the conversation.
fn is_token_name(name: &str) -> bool {
    name.ends_with("_token")
}

impl Inputs {
    /// A copy in which each text and key is replaced; `change` gets its number.
    fn map_strings(&self, change: &mut impl FnMut(usize, &str) -> String) -> Self {
        let mut number = 0;
        let messages = map_value(&self.messages, &mut number, change);
        let tools = map_value(&self.tools, &mut number, change);
        let extra = self.extra.iter().map(|(name, value)| {
            let value =
                if is_token_name(name) { value.clone() } else { map_value(value, &mut number, change) };
            (name.clone(), value)
        });
        Self { messages, tools, extra: extra.collect() }
    }
}

fn change_next(text: &str, number: &mut usize, change: &mut impl FnMut(usize, &str) -> String) -> String {
    *number += 1;
    change(*number - 1, text)
}

fn map_value(value: &Json, number: &mut usize, change: &mut impl FnMut(usize, &str) -> String) -> Json {
    match value {
        Json::String(text) => Json::String(change_next(text, number, change)),
        Json::Array(items) => Json::Array(items.iter().map(|item| map_value(item, number, change)).collect()),
        Json::Object(map) => {
            let mut out = Map::new();
            for (key, value) in map {
                let key = change_next(key, number, change);
                out.insert(key, map_value(value, number, change));
            }
            Json::Object(out)
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Conversation, RenderOptions};
    use serde_json::json;
    use std::cell::Cell;

    #[test]
    fn what_tells_nothing_about_the_places_ends_the_search() {
        let conversation =
            Conversation { messages: vec![json!({"role": "user", "content": "a<s>b"})], tools: None };
        let inputs = Inputs::new(&conversation, &RenderOptions::default()).unwrap();
        let tokens = ["<s>".to_owned()];
        for error in [Error::Stuck { renderings: 4 }, Error::TooSlow { seconds: 60 }] {
            let renderings = Cell::new(0);
            let result = render(&inputs, "", &tokens, |_| {
                renderings.set(renderings.get() + 1);
                // The text itself, and then the search.
                if renderings.get() == 1 { Ok("a<s>b".into()) } else { Err(error.clone()) }
            });
            assert_eq!((result, renderings.get()), (Err(error), 2));
        }
        // A template that fails where it finds no mark has looked for it: the text has its control token.
        let looks = |inputs: &Inputs| {
            let text = inputs.messages[0]["content"].as_str().unwrap_or_default().to_owned();
            if text.contains('<') { Ok(text) } else { Err(Error::Raised("no mark".into())) }
        };
        let rendered = render(&inputs, "", &tokens, looks).unwrap();
        assert_eq!(rendered.text, "a<s>b");
    }
}
