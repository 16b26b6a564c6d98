//! Which tokens may come next: JSON schemas, regular expressions and grammars as masks over a vocabulary.
//!
//! The parsing is `llguidance`'s. This crate fits it to vocabularies of GGUF files, and sees to it that an answer cannot
//! go on for ever without saying anything: JSON has no blanks but one after each comma and colon, no more than
//! [`MAX_BLANK_TOKENS`] tokens in a row are blank, and each further one must be earned by [`TOKENS_PER_BLANK`] that are
//! not, in texts within JSON too. (A word's token brings its blank along, so few tokens of a text are blank.)
//!
//! It does not know models, logits' meaning or HTTP.
//!
//! ```
//! use grammar::Grammars;
//! # let mut file = gguf::Writer::new();
//! # let texts = ["{", "}", "\"", "a", ":", "Ġ", "1", ",", "<|end|>"].map(String::from).to_vec();
//! # file.metadata("tokenizer.ggml.model", gguf::Value::String("gpt2".into()))
//! #     .metadata("tokenizer.ggml.pre", gguf::Value::String("gpt-2".into()))
//! #     .metadata("tokenizer.ggml.tokens", gguf::Value::Array(gguf::Array::String(texts)))
//! #     .metadata("tokenizer.ggml.merges", gguf::Value::Array(gguf::Array::String(vec![])))
//! #     .metadata("tokenizer.ggml.token_type", gguf::Value::Array(gguf::Array::I32(vec![1, 1, 1, 1, 1, 1, 1, 1, 3])))
//! #     .metadata("tokenizer.ggml.eos_token_id", gguf::Value::U32(8));
//! # let header = gguf::Header::parse(&file.to_bytes()?)?;
//! # let tokenizer = tokenizer::Tokenizer::from_metadata(header.metadata())?;
//! // `tokenizer` has the tokens {, }, ", a, :, a blank, 1, comma and an end, in this order.
//! let grammars = Grammars::new(&tokenizer)?;
//! let mut grammar = grammars.json_schema(&serde_json::json!({
//!     "type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"],
//!     "additionalProperties": false,
//! }))?;
//! let mut logits = [0.0; 9];
//! grammar.mask(&mut logits)?;
//! assert_eq!(logits.iter().position(|&logit| logit == 0.0), Some(0), "an object begins with a brace");
//! for token in [0, 2, 3, 2, 4, 5, 6] {
//!     assert!(!grammar.accept(token)?);
//! }
//! assert!(grammar.accept(1)?, "it is complete");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cost;
mod schema;

pub use schema::check_schema;

use cost::check_expressions;
use llguidance::api::{GrammarInit, GrammarWithLexer, TopLevelGrammar};
use llguidance::panic_utils::catch_unwind;
use llguidance::{Matcher, ParserFactory};
use schema::check_schemas;
use serde_json::{Deserializer, Value, json};
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokenizer::Tokenizer;
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// Blank tokens that may follow each other.
pub const MAX_BLANK_TOKENS: usize = 4;

/// Tokens after which another blank one may come, once [`MAX_BLANK_TOKENS`] have.
pub const TOKENS_PER_BLANK: usize = 4;

/// Credit for as many blank tokens as may follow each other.
const MAX_CREDIT: usize = MAX_BLANK_TOKENS * TOKENS_PER_BLANK;

/// Longest schema, in bytes.
const MAX_SCHEMA: usize = 128 << 10;

/// Longest grammar or regular expression, in bytes. What is compiled of one can grow with the square of its length.
const MAX_GRAMMAR: usize = 16 << 10;

/// A step of a grammar (a mask, and taking the token) that is not counted as slow. Ordinary ones take a millisecond, and
/// those of the largest schemas some tens.
const QUICK: Duration = Duration::from_millis(100);

/// What one slow step is counted as at most: it may have been the machine that stood still.
const MAX_STEP: Duration = Duration::from_secs(1);

/// How long all slow steps of an answer may take. All answers wait for them.
const MAX_SLOW: Duration = Duration::from_secs(4);

/// Stack for compiling: it goes as deep as rules and schemas refer to each other, several kilobytes for each, and an
/// overflow would end the process. Address space, of which the system gives memory only to what is used.
const STACK: usize = 512 << 20;

/// A grammar cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// The vocabulary has no token that ends an answer.
    NoEnd,
    /// The source is too long.
    TooLong {
        /// Its bytes.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// A schema has a keyword that cannot be enforced.
    Keyword {
        /// The keyword.
        keyword: String,
        /// Where the schema that has it is, as a JSON pointer; `/` for the whole.
        place: String,
    },
    /// Following the source would take too much work.
    TooMuch {
        /// How many alternatives its expressions have.
        work: u64,
        /// How many they may have.
        most: u64,
    },
    /// The system gave no thread to compile on. It may later.
    NoThread(String),
    /// The source is no grammar, or a schema with something else that cannot be enforced.
    Invalid(String),
    /// The compilation was told to stop.
    GivenUp,
    /// The grammar's masks took too long.
    Slow,
    /// The grammar allows nothing, or not what was chosen.
    Stuck(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoEnd => f.write_str("the vocabulary has no token that ends an answer"),
            Error::TooLong { bytes, most } => {
                write!(f, "the grammar has {bytes} bytes, expected at most {most}")
            }
            Error::Keyword { keyword, place } => {
                write!(f, "the schema's keyword '{keyword}' at {place} is not supported")
            }
            Error::TooMuch { work, most } => write!(
                f,
                "the grammar takes too much: its expressions have {work} alternatives, expected at most {most} (parts that \
                 may be left out and follow each other, such as 'a*b*c*', have the square of their number, and \
                 intersections the product of their parts)"
            ),
            Error::NoThread(message) => write!(f, "no thread to compile the grammar on: {message}"),
            Error::GivenUp => f.write_str("the compilation of the grammar was given up"),
            Error::Slow => write!(
                f,
                "the grammar takes too long: steps of more than {} ms took {} s together",
                QUICK.as_millis(),
                MAX_SLOW.as_secs()
            ),
            Error::Invalid(message) => write!(f, "the grammar cannot be used: {message}"),
            Error::Stuck(message) => write!(f, "the grammar allows no token: {message}"),
        }
    }
}

impl std::error::Error for Error {}

/// Makes grammars for one vocabulary. Takes a while to make; shared by all of a model's requests.
pub struct Grammars {
    factory: ParserFactory,
    blank: Arc<[bool]>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").field("tokens", &self.blank.len()).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Prepares a vocabulary.
    ///
    /// # Errors
    /// [`Error::NoEnd`] and [`Error::Invalid`].
    pub fn new(tokenizer: &Tokenizer) -> Result<Grammars, Error> {
        let ends = tokenizer.end_of_generation_ids();
        let &end = ends.first().ok_or(Error::NoEnd)?;
        let words: Vec<Vec<u8>> = (0..tokenizer.vocab_size() as u32)
            .map(|id| match tokenizer.text_bytes(id) {
                // Tokens without text are told apart by a byte that no text begins with.
                [] => [&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.token_bytes(id)].concat(),
                bytes => bytes.to_vec(),
            })
            .collect();
        let is_blank = |word: &Vec<u8>| word.iter().all(|byte| byte.is_ascii_whitespace());
        let blank = words.iter().map(is_blank).collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, end), &words).with_eos_tokens(ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&env).map_err(invalid)?;
        factory.quiet();
        // What one request may cost: a second to compile, some tens of megabytes, some milliseconds a token.
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = 250_000;
        limits.step_lexer_fuel = 100_000;
        limits.max_lexer_states = 50_000;
        limits.max_grammar_size = 200_000;
        // Four for each property that may come next, of which a schema may have 2000.
        limits.max_items_in_row = 10_000;
        // The rest is about the insides of the parser.
        limits.verbose_errors = false;
        Ok(Grammars { factory, blank })
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// As for [`compile`](Grammars::compile).
    pub fn json_object(&self) -> Result<Grammar, Error> {
        self.json_schema(&json!({"type": "object"}))
    }

    /// What a JSON schema describes.
    ///
    /// # Errors
    /// As for [`compile`](Grammars::compile).
    pub fn json_schema(&self, schema: &Value) -> Result<Grammar, Error> {
        self.compile(&Rule::Json(schema.clone()), &AtomicBool::new(false))
    }

    /// What a regular expression describes, from its beginning to its end.
    ///
    /// # Errors
    /// As for [`compile`](Grammars::compile).
    pub fn regex(&self, regex: &str) -> Result<Grammar, Error> {
        self.compile(&Rule::Regex(regex.to_owned()), &AtomicBool::new(false))
    }

    /// What a grammar in llguidance's variant of Lark describes. What is said of JSON schemas elsewhere holds for those
    /// in it, and its `%json` objects may together take what one schema may.
    ///
    /// # Errors
    /// As for [`compile`](Grammars::compile).
    pub fn lark(&self, grammar: &str) -> Result<Grammar, Error> {
        self.compile(&Rule::Lark(grammar.to_owned()), &AtomicBool::new(false))
    }

    /// What a rule describes. This can take a second; it ends soon after `stop` has become true.
    ///
    /// # Errors
    /// [`Error::TooLong`], [`Error::Keyword`], [`Error::TooMuch`], [`Error::NoThread`], [`Error::GivenUp`] and
    /// [`Error::Invalid`].
    pub fn compile(&self, rule: &Rule, stop: &AtomicBool) -> Result<Grammar, Error> {
        let check_stop = || if stop.load(Ordering::Relaxed) { Err(Error::GivenUp) } else { Ok(()) };
        let work = || {
            check_stop()?;
            let (env, limits) = (self.factory.tok_env().clone(), self.factory.limits().clone());
            let source = GrammarInit::Serialized(rule.source()?);
            let parsed = catch_unwind(AssertUnwindSafe(|| source.to_internal(Some(env), limits)));
            let (rules, lexer) = parsed.map_err(invalid)?;
            check_stop()?;
            check_expressions(lexer.regex_builder.exprset())?;
            let parsed = GrammarInit::Internal(rules, lexer);
            let parser = self.factory.create_parser_from_init_default(parsed).map_err(invalid)?;
            check_stop()?;
            let mut matcher = Matcher::new(Ok(parser));
            // What no text follows is told here, not in the middle of an answer.
            matcher.compute_mask_or_eos().map_err(|error| {
                let (reason, is_empty) =
                    (one_line(&error.to_string()), error.to_string().contains("NoExtension"));
                Error::Invalid(if is_empty { "no text follows it".into() } else { reason })
            })?;
            let (blank, patience) = (Arc::clone(&self.blank), Patience::default());
            Ok(Grammar { matcher, blank, credit: MAX_CREDIT, patience })
        };
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK);
            let thread =
                thread.spawn_scoped(scope, work).map_err(|error| Error::NoThread(error.to_string()))?;
            thread.join().unwrap_or_else(|_| Err(Error::Invalid(TOO_COMPLEX.into())))
        })
    }
}

/// What an answer must be.
#[derive(Clone, Debug, PartialEq)]
pub enum Rule {
    /// JSON that follows a schema.
    Json(Value),
    /// The same between two texts.
    JsonBetween(&'static str, Value, &'static str),
    /// What a grammar in llguidance's variant of Lark describes.
    Lark(String),
    /// What a regular expression describes, from its beginning to its end.
    Regex(String),
}

impl Rule {
    /// The rule as the parser takes it, if it is not too long and can be enforced.
    fn source(&self) -> Result<TopLevelGrammar, Error> {
        let lark = |grammar: String| TopLevelGrammar {
            grammars: vec![GrammarWithLexer::from_lark(grammar)],
            max_tokens: None,
        };
        match self {
            Rule::Json(schema) => Ok(TopLevelGrammar::from_json_schema(checked_schema(schema)?)),
            Rule::JsonBetween(before, schema, after) => {
                let (before, after) = (Value::from(*before), Value::from(*after));
                let schema = checked_schema(schema)?;
                Ok(lark(format!("start: {before} inner {after}\ninner: %json {schema}")))
            }
            Rule::Lark(grammar) => {
                check_length(grammar, MAX_GRAMMAR)?;
                check_schemas(&schemas_in(grammar)?)?;
                Ok(lark(grammar.clone()))
            }
            Rule::Regex(regex) => {
                check_length(regex, MAX_GRAMMAR)?;
                check_regex(regex)?;
                Ok(TopLevelGrammar::from_regex(regex))
            }
        }
    }
}

/// Refuses a regular expression that ends with half an escape: the parser would leave that out, and follow what is before it.
fn check_regex(regex: &str) -> Result<(), Error> {
    match (regex.len() - regex.trim_end_matches('\\').len()) % 2 {
        0 => Ok(()),
        _ => {
            let message = "a regular expression ends in the middle of an escape, '\\'";
            Err(Error::Invalid(message.into()))
        }
    }
}

fn checked_schema(schema: &Value) -> Result<Value, Error> {
    check_schema(schema)?;
    let schema = without_free_blanks(schema);
    check_length(&schema.to_string(), MAX_SCHEMA)?;
    Ok(schema)
}

fn without_free_blanks(schema: &Value) -> Value {
    let options = json!({"whitespace_flexible": false, "item_separator": ", ", "key_separator": ": "});
    match schema {
        Value::Object(fields) => {
            let mut fields = fields.clone();
            fields.insert("x-guidance".into(), options);
            Value::Object(fields)
        }
        // `true` and `false` are schemas too.
        other => json!({"allOf": [other], "x-guidance": options}),
    }
}

/// The schemas behind each `%json` of a grammar, those in its comments and texts too: what is one of these, only the
/// grammar's parser could tell for certain.
fn schemas_in(grammar: &str) -> Result<Vec<Value>, Error> {
    let schemas = grammar.match_indices("%json").map(|(at, keyword)| {
        let line = 1 + grammar[..at].matches('\n').count();
        let mut values = Deserializer::from_str(&grammar[at + keyword.len()..]).into_iter();
        match values.next() {
            Some(Ok(schema)) => Ok(schema),
            found => {
                let found =
                    found.and_then(Result::err).map_or_else(|| "nothing".into(), |error| error.to_string());
                Err(Error::Invalid(format!(
                    "expected a JSON schema after the '%json' of line {line}, found: {found}"
                )))
            }
        }
    });
    schemas.collect()
}

fn check_length(source: &str, most: usize) -> Result<(), Error> {
    if source.len() > most { Err(Error::TooLong { bytes: source.len(), most }) } else { Ok(()) }
}

const TOO_COMPLEX: &str = "it is too complex";

/// What the parser says, where that means something to who has written the grammar.
fn invalid(error: impl fmt::Display) -> Error {
    let text = one_line(&format!("{error:#}"));
    Error::Invalid(if text.contains("coerce_one_of") {
        // It speaks of a setting that nobody here can reach.
        "'oneOf' is not supported where more than one of its schemas may hold; use 'anyOf'".into()
    } else if text.starts_with("panic:") {
        // A limit of the parser's that it asserts.
        TOO_COMPLEX.into()
    } else {
        text
    })
}

fn one_line(text: &str) -> String {
    // The parser's word for what it leaves out of its messages.
    text.replace("<non-verbose/>", "")
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join("; ")
}

/// A grammar and how far an answer has come in it.
pub struct Grammar {
    matcher: Matcher,
    blank: Arc<[bool]>,
    /// What blank tokens are paid from, each with [`TOKENS_PER_BLANK`]. All others earn one.
    credit: usize,
    patience: Patience,
}

/// How long an answer's slow steps took.
#[derive(Clone, Copy, Debug, Default)]
struct Patience {
    slow: Duration,
}

impl Patience {
    /// Counts a step.
    fn count(&mut self, took: Duration) -> Result<(), Error> {
        if took > QUICK {
            self.slow += took.min(MAX_STEP);
        }
        if self.slow > MAX_SLOW { Err(Error::Slow) } else { Ok(()) }
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").field("credit", &self.credit).finish_non_exhaustive()
    }
}

impl Grammar {
    /// Sets the logits of tokens that may not come next to `-inf`. Where the answer may end, the end tokens may come.
    ///
    /// # Errors
    /// [`Error::Stuck`] if no token may, and [`Error::Slow`].
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), Error> {
        let start = Instant::now();
        let allowed =
            self.matcher.compute_mask_or_eos().map_err(|error| Error::Stuck(one_line(&error.to_string())))?;
        let tired = self.credit < TOKENS_PER_BLANK;
        let is_allowed = |id: usize, tired: bool| {
            id < self.blank.len() && allowed.is_allowed(id as u32) && !(tired && self.blank[id])
        };
        // Where only blanks may come, they must.
        let tired = tired && (0..self.blank.len()).any(|id| is_allowed(id, true));
        for (id, logit) in logits.iter_mut().enumerate() {
            if !is_allowed(id, tired) {
                *logit = f32::NEG_INFINITY;
            }
        }
        self.patience.count(start.elapsed())
    }

    /// Takes the token that was chosen, and tells whether the answer is complete, so that nothing may follow.
    ///
    /// # Errors
    /// [`Error::Stuck`] if it was not allowed, and [`Error::Slow`].
    pub fn accept(&mut self, token: u32) -> Result<bool, Error> {
        let start = Instant::now();
        let stuck = |error: &dyn fmt::Display| Error::Stuck(one_line(&error.to_string()));
        self.matcher.consume_token(token).map_err(|error| stuck(&error))?;
        let blank = self.blank.get(token as usize).copied().unwrap_or(false);
        self.credit = if blank {
            self.credit.saturating_sub(TOKENS_PER_BLANK)
        } else {
            MAX_CREDIT.min(self.credit + 1)
        };
        self.patience.count(start.elapsed())?;
        Ok(self.matcher.is_stopped())
    }

    /// The same, for another answer.
    pub fn fork(&self) -> Grammar {
        Grammar {
            matcher: self.matcher.deep_clone(),
            blank: Arc::clone(&self.blank),
            credit: self.credit,
            patience: self.patience,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_steps_have_an_end_and_others_none() {
        let mut patience = Patience::default();
        assert!((0..10_000).all(|_| patience.count(QUICK).is_ok()));
        // A machine that stood still for a minute.
        assert_eq!(patience.count(Duration::from_secs(60)), Ok(()));
        let slow = (1..).find(|_| patience.count(2 * QUICK).is_err());
        assert_eq!(slow, Some(16));
        assert!(Error::Slow.to_string().contains("more than 100 ms took 4 s"));
    }
}
