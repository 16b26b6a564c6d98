//! Each error, and that no template hangs, fills the memory or overflows the stack.

mod common;

use std::time::{Duration, Instant};

use chat::{Conversation, Error, RenderOptions, Template};
use common::render;
use serde_json::{Value, json};

fn render_with(template: &str, messages: Vec<Value>, tokens: &[&str]) -> Result<String, Error> {
    let conversation = Conversation { messages, tools: None };
    let control_tokens = tokens.iter().map(|t| (*t).to_owned()).collect();
    let options = RenderOptions { control_tokens, ..RenderOptions::default() };
    Template::new(template)?.render(&conversation, &options).map(|rendered| rendered.text)
}

#[test]
fn syntax_names_the_line() {
    for template in ["a\nb {% if %}", "a\n{{ x", "a\n{% endfor %}", "a\n{{ 'x }}", "a\n{% do x %}"] {
        let error = render(template).unwrap_err();
        assert!(matches!(error, Error::Syntax { line: 2, .. }), "{template}: {error:?}");
        assert!(error.to_string().starts_with("the chat template is not valid in line 2: "), "{error}");
    }
}

#[test]
fn raised_has_the_templates_words() {
    let error =
        render("{% macro m() %}{{ raise_exception('No ' ~ messages[0].role) }}{% endmacro %}{{ m() }}")
            .unwrap_err();
    assert_eq!(error, Error::Raised("No user".to_owned()));
    assert_eq!(error.to_string(), "the chat template refuses this conversation: No user");
}

#[test]
fn failed_names_the_line_and_the_fault() {
    for (template, words) in [
        ("\n{{ missing.deeper }}", "undefined"),
        ("\n{{ messages | nosuch }}", "nosuch"),
        ("\n{% for x in none %}{% endfor %}", "'NoneType' object is not iterable"),
        ("\n{{ missing | tojson }}", "Undefined is not JSON serializable"),
        ("\n{{ messages.append(1) }}", "append"),
        ("\n{{ messages[0].pop('role') }}", "pop"),
        ("\n{{ 'a' + 1 }}", "+"),
        ("\n{{ 1 // 0 }}", "0"),
    ] {
        let error = render(template).unwrap_err();
        let Error::Failed { line, message } = &error else { panic!("{template}: {error:?}") };
        assert!(*line == 2 && message.contains(words), "{template}: {error:?}");
        assert!(error.to_string().starts_with("the chat template failed in line 2: "), "{error}");
    }
}

#[test]
fn out_of_fuel_ends_what_would_run_for_ever() {
    let start = Instant::now();
    for template in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | length }}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=['']) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ','.join(ns.l) }}",
        "{% set ns = namespace(l=['']) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l.count('x') }}",
        "{% set ns = namespace(l=['']) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l }}",
        "{% set s = 'x' * 99999999 %}{% set t = s | replace('x', s) %}",
        "{{ 'x'.center(99999999999) | length }}",
        "{{ ('x\\n' * 100000) | indent(99999999) | length }}",
    ] {
        let error = render(template).unwrap_err();
        let refused = matches!(&error, Error::Failed { message, .. } if message.contains("too large"));
        assert!(refused || matches!(error, Error::OutOfFuel { limit: 2_000_000.. }), "{template}: {error:?}");
    }
    let error =
        render("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}").unwrap_err();
    assert!(error.to_string().contains("did not finish within its budget of 2000"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20), "took {:?}", start.elapsed());
}

#[test]
fn too_long_is_told_before_the_memory_is_full() {
    let error = render("{% for i in range(5000) %}{{ 'xxxxxxxxxx' * 100 }}{% endfor %}").unwrap_err();
    let Error::TooLong { limit } = error else { panic!("{error:?}") };
    assert!((4 << 20..5 << 20).contains(&limit));
    assert!(error.to_string().contains(&format!("more than {limit} bytes")), "{error}");
    // A long conversation may have a long prompt.
    let content = "x".repeat(6 << 20);
    let messages = vec![json!({"role": "user", "content": content})];
    assert_eq!(render_with("{{ messages[0].content }}", messages, &[]).unwrap().len(), 6 << 20);
}

#[test]
fn too_deep_is_an_error_and_not_a_crash() {
    let error = render("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}").unwrap_err();
    assert!(matches!(error, Error::TooDeep { line: 1 }), "{error:?}");
    assert_eq!(error.to_string(), "the chat template nests too deeply in line 1");
    let nested = format!("{}1{}", "(".repeat(5000), ")".repeat(5000));
    assert!(matches!(render(&format!("{{{{ {nested} }}}}")), Err(Error::Syntax { .. })));
    let lists = "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor %}";
    for filter in ["tojson", "string"] {
        let error = render(&format!("{lists}{{{{ ns.l | {filter} }}}}")).unwrap_err();
        assert!(
            matches!(&error, Error::Failed { message, .. } if message.contains("too deeply")),
            "{error:?}"
        );
    }
}

#[test]
fn not_an_object_names_the_message() {
    let error = render_with("x", vec![json!({}), json!("hello")], &[]).unwrap_err();
    assert_eq!(error, Error::NotAnObject { index: 1, found: "a string" });
    assert_eq!(error.to_string(), "message 1 is a string, expected an object with a role and a content");
}

#[test]
fn empty_conversations_are_refused() {
    let error = render_with("x", vec![], &[]).unwrap_err();
    assert_eq!(error, Error::Empty);
    assert_eq!(error.to_string(), "the conversation is empty, expected at least one message");
}

#[test]
fn ambiguous_is_told_where_every_message_needs_its_own_renderings() {
    let template =
        "{% for m in messages %}{% if '<|x|>' in m.content %}!{% endif %}{{ m.content }}{% endfor %}";
    let messages = vec![json!({"role": "user", "content": "<|x|>"}); 300];
    let error = render_with(template, messages.clone(), &["<|x|>"]).unwrap_err();
    let Error::Ambiguous { renderings } = error else { panic!("{error:?}") };
    assert!(error.to_string().contains(&format!("after {renderings} renderings")), "{error}");
    assert!(render_with(template, messages[..20].to_vec(), &["<|x|>"]).is_ok());
}

#[test]
fn too_many_marks_are_told() {
    let render = |marks: usize| {
        let messages = vec![json!({"role": "user", "content": "<".repeat(marks)})];
        render_with("{{ messages[0].content | length }}", messages, &["<s>"])
    };
    assert_eq!(render(1 << 20).unwrap(), (1 << 20).to_string());
    let error = render((1 << 20) + 1).unwrap_err();
    assert_eq!(error, Error::TooManyMarks { found: 1_048_577, most: 1_048_576 });
    assert!(
        error.to_string().contains("1048577 signs") && error.to_string().contains("at most 1048576"),
        "{error}"
    );
}
