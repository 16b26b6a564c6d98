//! Every template of the llama.cpp collection on every conversation, against Python's transformers.
//! `data/make_reference.py` made what is compared with.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use chat::{Conversation, Error, LocalTime, RenderOptions, Rendered, Template};
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The clock of `make_reference.py`.
const NOW: LocalTime = LocalTime { year: 2024, month: 7, day: 26, hour: 15, minute: 4, second: 5 };

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Vec<Value>,
    #[serde(default)]
    tools: Option<Value>,
    add_generation_prompt: bool,
    #[serde(default)]
    extra: Map<String, Value>,
}

#[derive(Deserialize)]
struct Reference {
    templates: BTreeMap<String, BTreeMap<String, Outcome>>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged)]
enum Outcome {
    /// Length in bytes and the first digits of the SHA-256.
    Text(usize, String),
    /// `raised: MESSAGE` of `raise_exception`, or the name of another Python exception.
    Error(String),
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn cases() -> Vec<Case> {
    serde_json::from_str(&read(&data("conversations.json"))).unwrap()
}

fn render(source: &str, case: &Case) -> Result<Rendered, Error> {
    let conversation = Conversation { messages: case.messages.clone(), tools: case.tools.clone() };
    let options = RenderOptions {
        add_generation_prompt: case.add_generation_prompt,
        bos_token: "<bos>".to_owned(),
        eos_token: "<eos>".to_owned(),
        extra: case.extra.clone(),
        now: Some(NOW),
        ..RenderOptions::default()
    };
    Template::new(source)?.render(&conversation, &options)
}

fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What differs from the reference, if anything.
fn difference(result: &Result<Rendered, Error>, expected: &Outcome) -> Option<String> {
    match (result, expected) {
        (Ok(rendered), Outcome::Text(length, hash)) => {
            let same = rendered.text.len() == *length && digest(&rendered.text).starts_with(hash);
            (!same).then(|| {
                format!("expected {length} bytes, found {}:\n{}", rendered.text.len(), rendered.text)
            })
        }
        (Ok(rendered), Outcome::Error(kind)) => Some(format!("expected {kind}, found:\n{}", rendered.text)),
        (Err(error), Outcome::Text(length, _)) => Some(format!("expected {length} bytes, found: {error}")),
        (Err(Error::Raised(found)), Outcome::Error(kind)) => {
            let expected = kind.strip_prefix("raised: ");
            (expected != Some(found)).then(|| format!("expected {kind}, found the refusal: {found}"))
        }
        (Err(error), Outcome::Error(kind)) => {
            kind.starts_with("raised: ").then(|| format!("expected {kind}, found: {error}"))
        }
    }
}

#[test]
fn every_template_renders_every_conversation_as_python_does() {
    let folder = testdata::llama_cpp_models_dir().join("templates");
    let reference: Reference = serde_json::from_str(&read(&data("reference.json"))).unwrap();
    let cases = cases();
    let mut differences = Vec::new();
    let mut count = 0;
    for (template, outcomes) in &reference.templates {
        let source = read(&folder.join(format!("{template}.jinja")));
        for case in &cases {
            count += 1;
            if let Some(text) = difference(&render(&source, case), &outcomes[&case.name]) {
                differences.push(format!("== {template}, {}: {text}", case.name));
            }
        }
    }
    assert!(count >= 2000, "only {count} renderings were compared");
    let shown = differences.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} of {count} differ\n{shown}", differences.len());
}

#[test]
fn a_few_renderings_are_equal_in_full() {
    let folder = testdata::llama_cpp_models_dir().join("templates");
    let cases = cases();
    let mut count = 0;
    for entry in fs::read_dir(data("rendered")).unwrap() {
        let path = entry.unwrap().path();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        let (template, name) = stem.rsplit_once('.').unwrap();
        let case = cases.iter().find(|case| case.name == name).unwrap();
        let source = read(&folder.join(format!("{template}.jinja")));
        assert_eq!(render(&source, case).unwrap().text, read(&path), "{stem}");
        count += 1;
    }
    assert_eq!(count, 6);
}

#[test]
fn every_expression_prints_what_python_prints() {
    let expected: Vec<(String, Option<String>, Option<String>)> =
        serde_json::from_str(&read(&data("expressions.json"))).unwrap();
    let extra: Map<String, Value> = serde_json::from_str(&read(&data("expressions_context.json"))).unwrap();
    let case = Case {
        name: String::new(),
        messages: vec![serde_json::json!({"role": "user", "content": "x"})],
        tools: None,
        add_generation_prompt: false,
        extra,
    };
    let mut differences = Vec::new();
    for (source, text, error) in &expected {
        let found = render(source, &case);
        let same = match (&found, text, error.as_deref()) {
            (Ok(rendered), Some(text), _) => rendered.text == *text,
            (Err(Error::Raised(_)), _, kind) => kind == Some("raised"),
            (Err(Error::Syntax { .. } | Error::Failed { .. }), None, Some(_)) => true,
            _ => false,
        };
        if !same {
            let found = found.map_or_else(|e| format!("error: {e}"), |r| r.text);
            differences.push(format!(
                "{source}\n  python {:?}\n  found  {found:?}",
                text.as_ref().or(error.as_ref())
            ));
        }
    }
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n"));
}
