//! Masks over a vocabulary of bytes, blanks of several lengths, and two control tokens.

use gguf::{Array, Header, Value, Writer};
use grammar::{Error, Grammar, Grammars, MAX_BLANK_TOKENS, TOKENS_PER_BLANK};
use serde_json::json;
use tokenizer::Tokenizer;

/// The printable characters of ASCII and the two blanks, by what stands for them in byte-level BPE.
fn tokenizer(end: bool) -> Tokenizer {
    let mut texts: Vec<String> = ('!'..='~').map(String::from).collect();
    // A blank, a line break, two blanks.
    texts.extend(["Ġ", "Ċ", "ĠĠ"].map(String::from));
    let mut types = vec![1; texts.len()];
    // The first has a name by which ends are known.
    texts.extend([if end { "<|im_end|>" } else { "<|here|>" }, "<|other|>"].map(String::from));
    types.extend([3, 3]);
    let id = texts.len() as u32 - 2;
    let mut file = Writer::new();
    file.metadata("tokenizer.ggml.model", Value::String("gpt2".into()))
        .metadata("tokenizer.ggml.pre", Value::String("gpt-2".into()))
        .metadata("tokenizer.ggml.tokens", Value::Array(Array::String(texts)))
        .metadata("tokenizer.ggml.token_type", Value::Array(Array::I32(types)))
        .metadata("tokenizer.ggml.merges", Value::Array(Array::String(vec!["Ġ Ġ".into()])));
    if end {
        file.metadata("tokenizer.ggml.eos_token_id", Value::U32(id));
    }
    let header = Header::parse(&file.to_bytes().unwrap()).unwrap();
    Tokenizer::from_metadata(header.metadata()).unwrap()
}

const END: u32 = 97;
const TOKENS: usize = 99;

/// The token of a character.
fn id(c: char) -> u32 {
    match c {
        ' ' => 94,
        '\n' => 95,
        c => c as u32 - '!' as u32,
    }
}

fn allowed(grammar: &mut Grammar) -> Vec<u32> {
    let mut logits = [0.0; TOKENS];
    grammar.mask(&mut logits).unwrap();
    (0..TOKENS as u32).filter(|&id| logits[id as usize] == 0.0).collect()
}

/// Whether a text is allowed, and is complete at its end or may end there.
#[track_caller]
fn accepts(mut grammar: Grammar, text: &str) -> bool {
    for c in text.chars() {
        if !allowed(&mut grammar).contains(&id(c)) {
            return false;
        }
        if grammar.accept(id(c)).unwrap() {
            return true;
        }
    }
    allowed(&mut grammar).contains(&END)
}

#[test]
fn json_has_one_blank_after_commas_and_colons_and_no_other() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}},
        "required": ["a", "b"], "additionalProperties": false,
    });
    let accepts = |text| accepts(grammars.json_schema(&schema).unwrap(), text);
    assert!(accepts("{\"a\": 12, \"b\": true}"));
    for text in
        ["{ \"a\": 12, \"b\": true}", "{\"a\":12, \"b\": true}", "{\"a\": 1}", "{\"a\": \"x\"", "[", "x"]
    {
        assert!(!accepts(text), "{text}");
    }
    assert!(self::accepts(grammars.json_object().unwrap(), "{\"x\": [1, {}]}"));
    assert!(!self::accepts(grammars.json_object().unwrap(), "[1]"));
}

#[test]
fn r23_blanks_in_a_text_have_an_end_too() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let mut grammar = grammars.json_schema(&json!({"type": "string"})).unwrap();
    grammar.accept(id('"')).unwrap();
    for _ in 0..MAX_BLANK_TOKENS {
        assert!(allowed(&mut grammar).contains(&id(' ')));
        grammar.accept(id(' ')).unwrap();
    }
    let next = allowed(&mut grammar);
    assert!(
        !next.contains(&id(' ')) && !next.contains(&96) && next.contains(&id('"')) && next.contains(&id('x'))
    );
    for n in 0..TOKENS_PER_BLANK {
        assert!(!allowed(&mut grammar).contains(&id(' ')), "{n}");
        grammar.accept(id('x')).unwrap();
    }
    assert!(allowed(&mut grammar).contains(&id(' ')));
    // Where nothing but blanks may come, they may.
    let mut blanks = grammars.regex("x {8}y").unwrap();
    for c in "x        y".chars() {
        assert!(allowed(&mut blanks).contains(&id(c)));
        blanks.accept(id(c)).unwrap();
    }
}

#[test]
fn grammars_and_regular_expressions_are_followed() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    assert!(accepts(grammars.regex("[0-9]{2}(a|b)").unwrap(), "42b"));
    assert!(!accepts(grammars.regex("[0-9]{2}(a|b)").unwrap(), "4b"));
    let lark = "start: \"<\" name \">\"\nname: /[a-z]+/";
    assert!(accepts(grammars.lark(lark).unwrap(), "<abc>"));
    let rule = grammar::json_rule(&json!({"enum": [1, 2]}));
    assert!(accepts(grammars.lark(&format!("start: \"x\" v\nv: {rule}")).unwrap(), "x2"));
}

#[test]
fn a_copy_goes_its_own_way() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let mut first = grammars.regex("ab|cd").unwrap();
    let mut second = first.fork();
    first.accept(id('a')).unwrap();
    second.accept(id('c')).unwrap();
    assert_eq!((allowed(&mut first), allowed(&mut second)), (vec![id('b')], vec![id('d')]));
}

#[test]
fn errors_say_what_is_wrong() {
    let error = Grammars::new(&tokenizer(false)).unwrap_err();
    assert!(error == Error::NoEnd && error.to_string().contains("no token that ends"), "{error}");
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let error = grammars.regex(&"x".repeat(2 << 20)).unwrap_err();
    assert!(matches!(error, Error::TooLong { bytes: 2_097_152 }), "{error}");
    assert!(error.to_string().contains("expected at most 1048576"), "{error}");
    for error in [
        grammars.json_schema(&json!({"type": "nonsense"})).unwrap_err(),
        grammars.lark("start: %%").unwrap_err(),
        grammars.regex("(").unwrap_err(),
    ] {
        assert!(matches!(error, Error::Invalid(_)) && error.to_string().lines().count() == 1, "{error}");
    }
    let error = grammars.json_schema(&json!({"type": "array", "uniqueItems": true})).unwrap_err();
    assert!(matches!(&error, Error::Keyword { keyword, .. } if keyword == "uniqueItems"), "{error}");
    let both = json!({"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]});
    let error = grammars.json_schema(&both).unwrap_err().to_string();
    assert!(error.contains("'oneOf' is not supported where"), "{error}");
    let error = grammars.json_schema(&json!({"type": "string", "pattern": "("})).unwrap_err().to_string();
    assert!(!error.contains("guidance") && !error.contains("%json"), "{error}");
    let error = grammars.regex("ab").unwrap().accept(id('x')).unwrap_err();
    assert!(matches!(error, Error::Stuck(_)) && error.to_string().contains("allows no token"), "{error}");
}
