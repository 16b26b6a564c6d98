//! Masks over a vocabulary of bytes, blanks of several lengths, and two control tokens.

use gguf::{Array, Header, Writer};
use grammar::{Error, Grammar, Grammars, MAX_BLANK_TOKENS, Rule, TOKENS_PER_BLANK};
use serde_json::json;
use std::sync::atomic::AtomicBool;
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
    file.metadata("tokenizer.ggml.model", gguf::Value::String("gpt2".into()))
        .metadata("tokenizer.ggml.pre", gguf::Value::String("gpt-2".into()))
        .metadata("tokenizer.ggml.tokens", gguf::Value::Array(Array::String(texts)))
        .metadata("tokenizer.ggml.token_type", gguf::Value::Array(Array::I32(types)))
        .metadata("tokenizer.ggml.merges", gguf::Value::Array(Array::String(vec!["Ġ Ġ".into()])));
    if end {
        file.metadata("tokenizer.ggml.eos_token_id", gguf::Value::U32(id));
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
fn a_regular_expression_that_ends_in_an_escape_is_refused() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    for (regex, text) in [(r"a\\", r"a\"), (r"a\/", "a/"), (r"a\\\\", r"a\\")] {
        assert!(accepts(grammars.regex(regex).unwrap(), text), "{regex}");
    }
    for regex in [r"\", r"a\", r"a\\\"] {
        let error = grammars.regex(regex).unwrap_err();
        assert!(error.to_string().contains("ends in the middle of an escape"), "{regex}: {error}");
        for schema in
            [json!({"pattern": regex}), json!({"properties": {"a": {"patternProperties": {regex: true}}}})]
        {
            let error = grammars.json_schema(&schema).unwrap_err();
            assert!(error.to_string().contains("ends in the middle of an escape"), "{schema}: {error}");
        }
    }
}

#[test]
fn grammars_and_regular_expressions_are_followed() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    assert!(accepts(grammars.regex("[0-9]{2}(a|b)").unwrap(), "42b"));
    assert!(!accepts(grammars.regex("[0-9]{2}(a|b)").unwrap(), "4b"));
    let lark = "start: \"<\" name \">\"\nname: /[a-z]+/";
    assert!(accepts(grammars.lark(lark).unwrap(), "<abc>"));
    let between = grammars
        .compile(&Rule::JsonBetween("<\"\n", json!({"enum": [1, 2]}), ">"), &AtomicBool::new(false))
        .unwrap();
    assert!(accepts(between, "<\"\n2>"));
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
    let error = grammars.regex(&"x".repeat(20_000)).unwrap_err();
    assert_eq!(error, Error::TooLong { bytes: 20_000, most: 16_384 });
    assert!(error.to_string().contains("20000 bytes, expected at most 16384"), "{error}");
    let error = grammars.json_schema(&json!({"const": "x".repeat(200_000)})).unwrap_err();
    assert!(matches!(error, Error::TooLong { most: 131_072, .. }), "{error}");
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
    let error = Error::NoThread("none left".into()).to_string();
    assert!(error.contains("no thread") && error.contains("none left"), "{error}");
    for endless in [
        json!({"$ref": "#"}),
        json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    ] {
        let error = grammars.json_schema(&endless).unwrap_err().to_string();
        assert!(error.contains("no text follows it"), "{error}");
    }
    let stopped = grammars.compile(&Rule::Regex("a".into()), &AtomicBool::new(true)).unwrap_err();
    assert!(stopped == Error::GivenUp && stopped.to_string().contains("given up"), "{stopped}");
    let error = grammars.regex("ab").unwrap().accept(id('x')).unwrap_err();
    assert!(matches!(error, Error::Stuck(_)) && error.to_string().contains("allows no token"), "{error}");
}

#[test]
fn schemas_within_a_grammar_have_the_limits_of_others() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let lark = |schema: &str| grammars.lark(&format!("start: \"<\" inner \">\"\ninner: %json {schema}\n"));
    assert!(accepts(lark("{\n\"enum\": [1, 2]\n}").unwrap(), "<2>"));
    assert!(accepts(lark("true").unwrap(), "<7>"));
    let error = lark("{\"items\": {\"not\": {}}}").unwrap_err();
    assert_eq!(error, Error::Keyword { keyword: "not".into(), place: "/items".into() });
    let error = lark("{\"type\": \"integer\", \"multipleOf\": 1000003}").unwrap_err().to_string();
    assert!(error.contains("'multipleOf' 1000003 at / takes too much"), "{error}");
    // Together they have more than one may.
    let number = |number: u32| format!("{{\"type\": \"integer\", \"multipleOf\": {number}}}");
    assert!(lark(&format!("{}\nother: %json {}", number(3331), number(9973))).is_err());
    for (schema, found) in
        [("{", "EOF"), ("start", "expected value"), ("", "nothing"), ("1", "expected a schema")]
    {
        let error = lark(schema).unwrap_err();
        assert!(matches!(&error, Error::Invalid(message) if message.contains(found)), "{error}");
    }
    let error = lark("{").unwrap_err().to_string();
    assert!(error.contains("after the '%json' of line 2"), "{error}");
}

/// Most of these overflowed a stack of two megabytes, which ends a process whatever it catches.
#[test]
fn what_refers_to_others_thousands_deep_is_compiled_or_refused() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    // As many rules as fit, each of which goes on with the next.
    let lark = |rule: &dyn Fn(usize) -> String| {
        let name = |at| rule(at).split(':').next().unwrap().to_owned();
        let mut source = format!("start: {}\n", name(0));
        let mut at = 0;
        while source.len() + 2 * rule(at).len() < 16_384 {
            source += &rule(at);
            at += 1;
        }
        grammars.lark(&format!("{source}{}: \"y\"", name(at))).map(drop)
    };
    let mut done = vec![
        lark(&|at| format!("r{at}: r{}\n", at + 1)),
        lark(&|at| format!("r{at}: \"x\" r{} \"z\"\n", at + 1)),
        lark(&|at| format!("T{at}: \"x\" T{}\n", at + 1)),
    ];
    for schema in [
        |next: String| json!({"$ref": next}),
        |next: String| json!({"items": {"$ref": next}}),
        |next: String| json!({"anyOf": [{"$ref": next}, {"type": "null"}]}),
        |next: String| json!({"allOf": [{"$ref": next}]}),
    ] {
        let mut definitions: serde_json::Map<_, _> =
            (0..1900).map(|at| (at.to_string(), schema(format!("#/$defs/{}", at + 1)))).collect();
        definitions.insert("1900".into(), json!({"type": "string"}));
        done.push(grammars.json_schema(&json!({"$defs": definitions, "$ref": "#/$defs/0"})).map(drop));
    }
    let properties: serde_json::Map<_, _> = (0..2000).map(|at| (format!("p{at}"), json!({}))).collect();
    done.push(grammars.json_schema(&json!({"properties": properties})).map(drop));
    assert!(done.iter().filter(|done| done.is_ok()).count() >= 4, "most are not too much: {done:?}");
}

/// These took from seconds to hours, and what makes lexers cannot be interrupted.
#[test]
fn expressions_that_take_too_much_are_refused_before_they_are_compiled() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let refused = [
        grammars.regex(&"a*".repeat(8000)),
        grammars.regex(&r"\p{L}*\w?".repeat(1600)),
        grammars.json_schema(&json!({"type": "string", "pattern": "[a-z]*.?".repeat(500)})),
        // One expression for all, a long way round.
        grammars.lark(&format!("start: T\nT: {}\nA: /a*/\n", "A ".repeat(8000))),
        grammars.lark(&format!(
            "start: T\nT: {}\n",
            (0..18).map(|n| format!("/.*[a-z]{{{n}}}.*x/")).collect::<Vec<_>>().join(" & ")
        )),
    ];
    for refused in refused {
        let error = refused.map(drop).unwrap_err();
        let told = |work: &u64, most: &u64| {
            error.to_string().contains(&format!("have {work} alternatives, expected at most {most}"))
        };
        assert!(
            matches!(&error, Error::TooMuch { work, most } if work > most && told(work, most)),
            "{error}"
        );
    }
}

/// Thirty of them would have taken years.
#[test]
fn patterns_that_must_all_hold_are_followed_or_refused() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let all = |n: usize| {
        let patterns: Vec<_> = (0..n).map(|n| json!({"pattern": format!("[a-z]{{{n}}}.*x")})).collect();
        grammars.json_schema(&json!({"type": "string", "allOf": patterns}))
    };
    assert!(accepts(all(3).unwrap(), "\"abcx\""));
    let error = all(30).unwrap_err().to_string();
    assert!(error.contains("30 different patterns, expected at most 10"), "{error}");
}

#[test]
fn ordinary_large_schemas_are_compiled() {
    let grammars = Grammars::new(&tokenizer(true)).unwrap();
    let field = |n: usize| match n % 5 {
        0 => json!({"type": "string", "description": "A name", "minLength": 1, "maxLength": 200}),
        1 => json!({"type": ["integer", "null"], "minimum": 0, "maximum": 1_000_000}),
        2 => json!({"type": "string", "pattern": format!("^[A-Z]{{2}}[0-9]{{4,{}}}(-[a-z0-9]+)*$", 5 + n)}),
        3 => json!({"type": "array", "maxItems": 50, "items": {"enum": ["new", "paid", "sent", "lost"]}}),
        _ => json!({"anyOf": [{"$ref": "#/$defs/address"}, {"type": "null"}]}),
    };
    let fields: serde_json::Map<_, _> = (0..300).map(|n| (format!("field_{n}"), field(n))).collect();
    let names: Vec<_> = fields.keys().cloned().collect();
    let address = json!({
        "type": "object", "properties": {"street": {"type": "string"}, "since": {"type": "string", "format": "date"}},
        "required": ["street", "since"], "additionalProperties": false,
    });
    let schema = json!({
        "type": "object", "$defs": {"address": address}, "properties": fields, "required": names,
        "additionalProperties": false,
    });
    let mut grammar = grammars.json_schema(&schema).unwrap();
    for c in
        "{\"field_0\": \"x\", \"field_1\": null, \"field_2\": \"AB1234\", \"field_3\": [\"paid\"], \"field_4"
            .chars()
    {
        assert!(allowed(&mut grammar).contains(&id(c)), "{c}");
        grammar.accept(id(c)).unwrap();
    }
    // As many as there may be, each of which may come next.
    let fields: serde_json::Map<_, _> =
        (0..2000).map(|n| (format!("f{n}"), json!({"type": "integer"}))).collect();
    let schema = json!({"type": "object", "properties": fields, "additionalProperties": false});
    let mut grammar = grammars.json_schema(&schema).unwrap();
    for c in "{\"f1999\": 7}".chars() {
        assert!(allowed(&mut grammar).contains(&id(c)), "{c}");
        grammar.accept(id(c)).unwrap();
    }
}
