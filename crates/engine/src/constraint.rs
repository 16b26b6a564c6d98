//! What an answer must look like, beside what the model would say.

use std::fmt;
use std::sync::Arc;
use tokenizer::Tokenizer;

/// A rule for the tokens of one answer: a grammar, a JSON schema. The engine asks it before each token, and tells it
/// which one was chosen.
///
/// Errors are texts: they end the answer with [`Error::Constraint`](crate::Error::Constraint).
pub trait Constraint: Send {
    /// Sets the logits of all tokens that may not come next to `-inf`.
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String>;

    /// Takes the token that was chosen, and tells whether the answer is complete, so that none may follow.
    fn accept(&mut self, token: u32) -> Result<bool, String>;

    /// The same rule in the same state, for another answer.
    fn fork(&self) -> Box<dyn Constraint>;
}

impl fmt::Debug for dyn Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Constraint")
    }
}

/// A rule for what comes after a text such as `</think>`. What comes before is free, but does not end the answer.
#[derive(Debug)]
pub struct AfterText {
    rule: Box<dyn Constraint>,
    text: &'static str,
    tokenizer: Arc<Tokenizer>,
    /// What has come, as far as the text may have begun in it; `None` once the text has come.
    begun: Option<Vec<u8>>,
}

impl AfterText {
    /// `rule` from the end of `text` on.
    pub fn new(rule: Box<dyn Constraint>, text: &'static str, tokenizer: &Arc<Tokenizer>) -> AfterText {
        AfterText { rule, text, tokenizer: Arc::clone(tokenizer), begun: Some(Vec::new()) }
    }
}

/// What follows a text that a token ends, which may have begun before it.
fn after<'t>(text: &[u8], before: &[u8], token: &'t [u8]) -> Option<&'t [u8]> {
    let mut begun = (1..text.len()).rev().filter(|&len| before.ends_with(&text[..len]));
    let ends_begun = begun.find_map(|len| token.strip_prefix(&text[len..]));
    ends_begun.or_else(|| {
        let at = token.windows(text.len()).position(|part| part == text)?;
        Some(&token[at + text.len()..])
    })
}

impl Constraint for AfterText {
    fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
        let Some(begun) = &self.begun else { return self.rule.mask(logits) };
        for &id in self.tokenizer.end_of_generation_ids() {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if begun.is_empty() {
            return Ok(());
        }
        // A token that ends the text must not go on with an answer, which the rule would not see.
        for (id, logit) in (0u32..).zip(logits) {
            let rest = after(self.text.as_bytes(), begun, self.tokenizer.token_bytes(id));
            if rest.is_some_and(|rest| !rest.trim_ascii().is_empty()) {
                *logit = f32::NEG_INFINITY;
            }
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<bool, String> {
        let Some(begun) = &mut self.begun else { return self.rule.accept(token) };
        let (text, token) = (self.text.as_bytes(), self.tokenizer.token_bytes(token));
        if after(text, begun, token).is_some() {
            self.begun = None;
            return Ok(false);
        }
        begun.extend_from_slice(token);
        let kept = (1..text.len()).rev().find(|&len| begun.ends_with(&text[..len])).unwrap_or(0);
        begun.drain(..begun.len() - kept);
        Ok(false)
    }

    fn fork(&self) -> Box<dyn Constraint> {
        let (tokenizer, begun) = (Arc::clone(&self.tokenizer), self.begun.clone());
        Box::new(AfterText { rule: self.rule.fork(), text: self.text, tokenizer, begun })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf::{Array, Header, Value, Writer};

    /// Allows the first token, which is the whole answer.
    struct First;

    impl Constraint for First {
        fn mask(&mut self, logits: &mut [f32]) -> Result<(), String> {
            logits[1..].fill(f32::NEG_INFINITY);
            Ok(())
        }

        fn accept(&mut self, token: u32) -> Result<bool, String> {
            if token == 0 { Ok(true) } else { Err(format!("{token} came")) }
        }

        fn fork(&self) -> Box<dyn Constraint> {
            Box::new(First)
        }
    }

    const TOKENS: [&str; 9] = ["0", "a", "<", "</", "think", ">", ">0", "</s>", "</think>"];

    fn rule() -> AfterText {
        let mut file = Writer::new();
        let texts = TOKENS.map(str::to_owned).to_vec();
        let types = TOKENS.map(|text| if text == "</s>" { 3 } else { 1 }).to_vec();
        file.metadata("tokenizer.ggml.model", Value::String("gpt2".into()))
            .metadata("tokenizer.ggml.pre", Value::String("gpt-2".into()))
            .metadata("tokenizer.ggml.tokens", Value::Array(Array::String(texts)))
            .metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(types)))
            .metadata("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new())))
            .metadata("tokenizer.ggml.eos_token_id", Value::U32(7));
        let header = Header::parse(&file.to_bytes().unwrap()).unwrap();
        let tokenizer = Arc::new(Tokenizer::from_metadata(header.metadata()).unwrap());
        AfterText::new(Box::new(First), "</think>", &tokenizer)
    }

    fn allowed(rule: &mut dyn Constraint) -> Vec<&'static str> {
        let mut logits = [0.0; TOKENS.len()];
        rule.mask(&mut logits).unwrap();
        TOKENS.into_iter().zip(logits).filter(|(_, logit)| *logit == 0.0).map(|(text, _)| text).collect()
    }

    #[track_caller]
    fn accept(rule: &mut dyn Constraint, tokens: &[&str]) {
        for token in tokens {
            let id = TOKENS.iter().position(|text| text == token).unwrap();
            assert_eq!(rule.accept(id as u32), Ok(false), "{token}");
        }
    }

    #[test]
    fn a_rule_begins_after_the_text() {
        for text in [&["</think>"][..], &["</", "think", ">"], &["<", "</", "</", "think", ">"]] {
            let mut rule = rule();
            accept(&mut rule, &["a", "0", "think", ">"]);
            assert_eq!(allowed(&mut rule).len(), TOKENS.len() - 1, "all but the end");
            accept(&mut rule, text);
            assert_eq!(allowed(&mut rule), ["0"]);
            let mut other = rule.fork();
            assert_eq!((rule.accept(0), other.accept(0)), (Ok(true), Ok(true)));
        }
    }

    #[test]
    fn an_answer_does_not_begin_in_the_token_that_ends_the_text() {
        let mut rule = rule();
        accept(&mut rule, &["</", "think"]);
        let mut other = rule.fork();
        let now = allowed(&mut rule);
        assert!(now.contains(&">") && !now.contains(&">0") && !now.contains(&"</s>"), "{now:?}");
        // It was another text.
        accept(&mut *other, &["a"]);
        assert!(allowed(&mut *other).contains(&">0"));
    }
}
