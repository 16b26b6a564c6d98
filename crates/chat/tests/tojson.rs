//! Tool definitions are printed as Python prints them (bug report 11).

use chat::{Conversation, RenderOptions, Template};
use serde_json::{Value, json};

fn tools() -> Value {
    serde_json::from_str(r#"{"z":1,"a":"<b>'é'","n":1.0,"t":true,"x":null}"#).unwrap()
}

fn render(template: &str, tools: Value) -> String {
    let conversation =
        Conversation { messages: vec![json!({"role": "user", "content": "Hi"})], tools: Some(tools) };
    Template::new(template).unwrap().render(&conversation, &RenderOptions::default()).unwrap().text
}

#[test]
fn r11_keys_keep_their_order_and_nothing_is_escaped() {
    assert_eq!(
        render("{{ tools | tojson }}", tools()),
        r#"{"z": 1, "a": "<b>'é'", "n": 1.0, "t": true, "x": null}"#
    );
}

#[test]
fn r11_indent_is_obeyed() {
    assert_eq!(
        render("{{ tools | tojson(indent=4) }}", tools()),
        "{\n    \"z\": 1,\n    \"a\": \"<b>'é'\",\n    \"n\": 1.0,\n    \"t\": true,\n    \"x\": null\n}"
    );
}

#[test]
fn r11_separators_are_obeyed() {
    assert_eq!(
        render("{{ tools | tojson(separators=(\",\",\":\")) }}", tools()),
        r#"{"z":1,"a":"<b>'é'","n":1.0,"t":true,"x":null}"#
    );
}

#[test]
fn r11_floats_are_printed_as_python_does() {
    let floats = serde_json::from_str("[1.0, 1e16, 1e-7, 1e22, 0.1, -0.0, 123456789.125, 1e15]").unwrap();
    assert_eq!(
        render("{{ tools | tojson }}", floats),
        "[1.0, 1e+16, 1e-07, 1e+22, 0.1, -0.0, 123456789.125, 1000000000000000.0]"
    );
}

#[test]
fn r11_a_tool_template_of_the_qwen3_style() {
    let template = "{%- if tools %}{{- '<|im_start|>system\\n<tools>' }}{%- for tool in tools %}\
        {{- \"\\n\" }}{{- tool | tojson }}{%- endfor %}{{- \"\\n</tools>\\n\" }}{%- endif %}";
    let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}});
    assert_eq!(
        render(template, json!([tool])),
        "<|im_start|>system\n<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": \
         {\"type\": \"object\", \"properties\": {}}}}\n</tools>\n"
    );
}
