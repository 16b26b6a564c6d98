//! Tools, with a template of the kind that models with tools have.

use crate::client::post;
use crate::util::start_with_template;
use serde_json::{Value, json};

/// As Qwen's, as far as tools go.
const TEMPLATE: &str = "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}Call with \
    <tool_call>{\"name\": .., \"arguments\": ..}</tool_call><|im_end|>\n{% endif %}{% for message in messages %}\
    <|im_start|>{{ message.role }}\n{{ message.content }}{% for call in message.tool_calls %}<tool_call>\
    {{ call.function.arguments | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";

fn function() -> Value {
    json!({"type": "function", "function": {"name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"],
        "additionalProperties": false,
    }}})
}

#[test]
fn r11_tools_are_rendered_as_python_writes_json() {
    let parameters =
        json!({"z": 1, "a": "<b>'\u{e9}'", "n": 1.0, "t": true, "x": null, "big": 1e16, "l": [1, {}]});
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": parameters}}]);
    let request = json!({"messages": [{"role": "user", "content": "Hi"}], "tools": tools});
    let rendered = |template: &str| {
        let server = start_with_template(template);
        let response = post(server.address(), "/apply-template", &request);
        response.json()["prompt"].as_str().map(str::to_owned).unwrap_or(response.body)
    };
    // What json.dumps(.., ensure_ascii=False) gives.
    let line = "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"z\": 1, \
                \"a\": \"<b>'\u{e9}'\", \"n\": 1.0, \"t\": true, \"x\": null, \"big\": 1e+16, \"l\": [1, {}]}}}";
    let found = rendered(TEMPLATE);
    assert!(found.contains(&format!("system\n{line}\n")), "{found}");
    let compact = rendered("{{ tools | tojson(separators=(',', ':')) }}<tool_call>");
    assert_eq!(compact, format!("[{}]<tool_call>", line.replace(": ", ":").replace(", ", ",")));
    let indented = rendered("{{ tools[0].function.parameters | tojson(indent=4) }}<tool_call>");
    let lines = "{\n    \"z\": 1,\n    \"a\": \"<b>'\u{e9}'\",\n    \"n\": 1.0,\n    \"t\": true,\n    \"x\": null,\n    \
                 \"big\": 1e+16,\n    \"l\": [\n        1,\n        {}\n    ]\n}<tool_call>";
    assert_eq!(indented, lines);
}

#[test]
fn calls_that_are_required_come_in_both_forms_of_the_api() {
    let server = start_with_template(TEMPLATE);
    let address = server.address();
    let request = json!({
        "messages": [{"role": "user", "content": "The weather in Paris?"}], "tools": [function()],
        "tool_choice": "required", "temperature": 0, "max_tokens": 60,
    });
    let body = post(address, "/v1/chat/completions", &request).json();
    let call = &body["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"], "get_weather", "{body}");
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].is_string(), "{arguments}");

    let mut tool = function()["function"].clone();
    tool["type"] = "function".into();
    let request = json!({
        "input": "The weather in Paris?", "tools": [tool], "temperature": 0,
        "tool_choice": {"type": "function", "name": "get_weather"}, "max_output_tokens": 60,
    });
    let body = post(address, "/v1/responses", &request).json();
    let item = &body["output"][0];
    assert_eq!((&item["type"], &item["arguments"]), (&json!("function_call"), &call["arguments"]), "{body}");
    assert_eq!((&body["status"], &body["tools"][0]["name"]), (&json!("completed"), &json!("get_weather")));
    let mut streaming = request;
    streaming["stream"] = true.into();
    let stream = post(address, "/v1/responses", &streaming).body;
    let events: Vec<Value> = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |kind: &str| events.iter().filter(|event| event["type"] == kind).collect::<Vec<_>>();
    let deltas = of("response.function_call_arguments.delta");
    let text: String = deltas.iter().map(|event| event["delta"].as_str().unwrap()).collect();
    assert_eq!(json!(text), item["arguments"]);
    assert_eq!(of("response.function_call_arguments.done")[0]["arguments"], item["arguments"]);

    // What the function gave, and on from there.
    let next = json!({
        "previous_response_id": body["id"], "max_output_tokens": 4,
        "input": [{"type": "function_call_output", "call_id": item["call_id"], "output": "Sunny."}],
    });
    let next = post(address, "/v1/responses", &next);
    assert_eq!(next.status, 200, "{}", next.body);
    for (choice, param) in
        [(json!({"type": "function", "name": "g"}), "tool_choice"), (json!(1), "tool_choice")]
    {
        let mut request = streaming.clone();
        request["tool_choice"] = choice;
        let refused = post(address, "/v1/responses", &request);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)));
    }
    streaming["tools"] = json!([{"type": "web_search"}]);
    let refused = post(address, "/v1/responses", &streaming);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools[0].type")));
}

/// As DeepSeek-R1's and QwQ's: reasoning begins whatever the request says.
#[test]
fn an_answer_that_must_have_a_form_comes_after_reasoning_that_the_template_begins() {
    let server = start_with_template(&format!("{TEMPLATE}{{# </think> #}}<think>\n"));
    let address = server.address();
    let tag = post(address, "/tokenize", &json!({"content": "</think>", "with_pieces": true})).json();
    // A model that was not trained to think says nothing but parts of the tag, at random.
    let bias: serde_json::Map<String, Value> =
        tag["tokens"].as_array().unwrap().iter().map(|token| (token["id"].to_string(), json!(100))).collect();
    let common = json!({"logit_bias": bias, "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "seed": 1});
    let with = |mut request: Value, more: &Value| {
        crate::util::merge(&mut request, &common);
        crate::util::merge(&mut request, more);
        request
    };
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let chat = |more: &Value| {
        let request = with(json!({"messages": messages, "max_tokens": 900}), more);
        let body = post(address, "/v1/chat/completions", &request).json();
        body["choices"][0].clone()
    };
    let choice = chat(&json!({"response_format": {"type": "regex", "regex": "[0-9]{4}"}}));
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_digit()), "{choice}");
    let choice = chat(&json!({"tools": [function()], "tool_choice": "required"}));
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!((&call["name"], &choice["finish_reason"]), (&json!("get_weather"), &json!("tool_calls")));

    let format = json!({"type": "json_schema", "name": "x", "schema": {"enum": [7, 8]}});
    let request = json!({"input": "Hi", "max_output_tokens": 900, "text": {"format": format}});
    let body = post(address, "/v1/responses", &with(request, &json!({}))).json();
    // Before it there is reasoning, unless the first thing said was the whole tag.
    let item = body["output"].as_array().unwrap().last().unwrap();
    assert_eq!(item["type"], "message", "{body}");
    assert!(["7", "8"].contains(&item["content"][0]["text"].as_str().unwrap()), "{body}");
}
