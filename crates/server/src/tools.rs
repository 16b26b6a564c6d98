//! Tools: how a model is told of them and how it calls them.

use crate::error::ApiError;
use crate::fields::Fields;
use grammar::Rule;
use grammar::check_schema;
use serde_json::{Map, Value, json};

type Result<T> = std::result::Result<T, ApiError>;

/// How a model writes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToolSyntax {
    /// `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Qwen 2.5 and 3, Hermes.
    Tagged,
    /// The whole answer is `{"name": ..., "parameters": {...}}`: Llama 3.
    Bare,
}

impl ToolSyntax {
    /// By what the template writes; `None` if it has no place for tools, or writes calls in another way.
    pub fn of_template(source: &str) -> Option<ToolSyntax> {
        if !source.contains("tools") {
            None
        } else if source.contains("<tool_call>") && !source.contains("<function=") {
            Some(ToolSyntax::Tagged)
        } else if source.contains("\"parameters\": ") {
            Some(ToolSyntax::Bare)
        } else {
            None
        }
    }

    /// What comes before and after a call.
    pub fn tags(self) -> (&'static str, &'static str) {
        match self {
            ToolSyntax::Tagged => ("<tool_call>", "</tool_call>"),
            ToolSyntax::Bare => ("", ""),
        }
    }

    /// The rule of one call of one of some tools.
    fn rule(self, tools: &[&Tool]) -> Rule {
        let arguments = match self {
            ToolSyntax::Tagged => "arguments",
            ToolSyntax::Bare => "parameters",
        };
        let calls = tools.iter().enumerate().map(|(index, tool)| {
            let place = if tools.len() == 1 { String::new() } else { format!("/anyOf/{index}") };
            json!({
                "type": "object",
                "properties": {
                    "name": {"const": tool.name},
                    arguments: moved(&tool.parameters, &format!("{place}/properties/{arguments}")),
                },
                "required": ["name", arguments],
                "additionalProperties": false,
            })
        });
        let mut calls: Vec<Value> = calls.collect();
        let call = if calls.len() == 1 { calls.remove(0) } else { json!({"anyOf": calls}) };
        match self {
            ToolSyntax::Tagged => Rule::JsonBetween("<tool_call>\n", call, "\n</tool_call>"),
            ToolSyntax::Bare => Rule::Json(call),
        }
    }
}

/// A schema that becomes part of another one at `place`: what it refers to moves with it.
fn moved(schema: &Value, place: &str) -> Value {
    let all = |fields: &Map<String, Value>| -> Map<String, Value> {
        fields.iter().map(|(name, value)| (name.clone(), moved(value, place))).collect()
    };
    match schema {
        Value::Object(fields) => {
            let mut fields = fields.clone();
            for (keyword, value) in &mut fields {
                *value = match (&**keyword, &*value) {
                    ("$ref", Value::String(to)) if to.starts_with('#') => {
                        format!("#{place}{}", &to[1..]).into()
                    }
                    // Their fields are names, not keywords.
                    ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                        all(named).into()
                    }
                    ("const" | "enum" | "default" | "examples", _) => continue,
                    (_, value) => moved(value, place),
                };
            }
            fields.into()
        }
        Value::Array(items) => items.iter().map(|item| moved(item, place)).collect(),
        other => other.clone(),
    }
}

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
struct Tool {
    name: String,
    parameters: Value,
}

/// What a request says about tools.
#[derive(Debug, Default)]
pub struct Tools {
    /// The definitions, as they came: for the template.
    pub definitions: Option<Value>,
    /// What the answer must follow, where a call is required.
    pub rule: Option<Rule>,
    /// How calls are written, where the answer may have any.
    pub syntax: Option<ToolSyntax>,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

impl Tools {
    /// Reads `tools`, `tool_choice` and `parallel_tool_calls`.
    pub fn read(fields: &mut Fields, syntax: Option<ToolSyntax>) -> Result<Tools> {
        let definitions = fields.array("tools")?.unwrap_or_default();
        let choice = fields.value("tool_choice");
        let parallel = fields.bool("parallel_tool_calls")?.unwrap_or(true);
        let tools = definitions.iter().enumerate().map(|(index, tool)| read_tool(index, tool));
        let tools = tools.collect::<Result<Vec<_>>>()?;
        if tools.is_empty() {
            return match choice {
                None => Ok(Tools::default()),
                Some(Value::String(choice)) if choice == "none" || choice == "auto" => Ok(Tools::default()),
                Some(_) => {
                    let message = "'tool_choice' is only allowed when 'tools' are specified.";
                    Err(ApiError::field("tool_choice", "invalid_value", message))
                }
            };
        }
        let wanted: Option<Vec<(usize, &Tool)>> = match &choice {
            None => None,
            Some(Value::String(choice)) if choice == "auto" => None,
            // Without definitions, the model does not know that it could call anything.
            Some(Value::String(choice)) if choice == "none" => return Ok(Tools::default()),
            Some(Value::String(choice)) if choice == "required" => Some(tools.iter().enumerate().collect()),
            Some(choice) => Some(vec![named(choice, &tools)?]),
        };
        let Some(syntax) = syntax else {
            let message = "Invalid 'tools': this model's chat template has no place for tools.";
            return Err(ApiError::field("tools", "unsupported_value", message));
        };
        let wanted = wanted.map(|tools| tools.into_iter().map(enforceable).collect::<Result<Vec<_>>>());
        let wanted = wanted.transpose()?;
        Ok(Tools {
            definitions: Some(Value::Array(definitions.clone())),
            rule: wanted.map(|tools| syntax.rule(&tools)),
            syntax: Some(syntax),
            parallel,
        })
    }
}

fn read_tool(index: usize, tool: &Value) -> Result<Tool> {
    let path = format!("tools[{index}]");
    let mut tool = Fields::new(tool.clone(), &*path)?;
    let kind = tool.string("type")?;
    if kind.as_deref() != Some("function") {
        let name = format!("{path}.type");
        let message = format!("Invalid '{name}': expected 'function'.");
        return Err(ApiError::field(name, "invalid_value", message));
    }
    let function = tool.object("function")?;
    let mut function = tool.required("function", function)?;
    let name = function.string("name")?;
    let name = function.required("name", name)?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > 64 || !name.chars().all(is_name) {
        let field = function.name("name");
        let message =
            format!("Invalid '{field}': expected 1 to 64 letters, digits, dots, dashes and underscores.");
        return Err(ApiError::field(field, "invalid_value", message));
    }
    function.string("description")?;
    function.bool("strict")?;
    let parameters = match function.object("parameters")? {
        Some(parameters) => parameters.into_value(),
        None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
    };
    Ok(Tool { name, parameters })
}

/// A tool whose arguments must follow its schema, if that can be seen to.
fn enforceable((index, tool): (usize, &Tool)) -> Result<&Tool> {
    check_schema(&tool.parameters).map_err(|error| {
        let field = format!("tools[{index}].function.parameters");
        ApiError::field(&*field, "invalid_value", format!("Invalid '{field}': {error}."))
    })?;
    Ok(tool)
}

/// The tool that `tool_choice` names.
fn named<'a>(choice: &Value, tools: &'a [Tool]) -> Result<(usize, &'a Tool)> {
    let name = choice.pointer("/function/name").and_then(Value::as_str);
    let Some(name) = name else {
        let message =
            "Invalid 'tool_choice': expected 'none', 'auto', 'required', or an object that names a function.";
        return Err(ApiError::field("tool_choice", "invalid_value", message));
    };
    tools.iter().enumerate().find(|(_, tool)| tool.name == name).ok_or_else(|| {
        let message = format!("Invalid 'tool_choice': there is no function '{name}' in 'tools'.");
        ApiError::field("tool_choice", "invalid_value", message)
    })
}

/// The text of one call as it comes.
#[derive(Debug, Default)]
pub struct CallReader {
    text: String,
    /// Where the arguments begin, once the name is known.
    arguments: Option<usize>,
    /// Bytes of arguments that were given out.
    sent: usize,
    depth: i32,
    in_string: bool,
    escaped: bool,
    /// The arguments are complete.
    closed: bool,
}

/// What a piece of a call's text brings.
#[derive(Debug, PartialEq, Eq)]
pub enum CallPart {
    /// The function's name.
    Name(String),
    /// A piece of the arguments' JSON.
    Arguments(String),
}

impl CallReader {
    /// Whether the name was given out.
    pub fn is_open(&self) -> bool {
        self.arguments.is_some()
    }

    /// Takes text.
    pub fn push(&mut self, text: &str) -> Vec<CallPart> {
        self.text.push_str(text);
        let mut parts = Vec::new();
        if self.arguments.is_none()
            && let Some((name, at)) = beginning(&self.text)
        {
            self.arguments = Some(at);
            parts.push(CallPart::Name(name));
        }
        if let Some(at) = self.arguments {
            let new = self.more_arguments(at);
            if !new.is_empty() {
                parts.push(CallPart::Arguments(new));
            }
        }
        parts
    }

    /// Takes note that nothing follows: the call, if its form was not the usual one, or else the text, if it is none.
    pub fn finish(&mut self) -> std::result::Result<Vec<CallPart>, String> {
        if self.is_open() {
            return Ok(Vec::new());
        }
        let call: Option<(String, Value)> =
            serde_json::from_str::<Value>(self.text.trim()).ok().and_then(|call| {
                let name = call.get("name")?.as_str()?.to_owned();
                let arguments = call.get("arguments").or_else(|| call.get("parameters"))?;
                Some((name, arguments.clone()))
            });
        match call {
            Some((name, Value::String(arguments))) => {
                Ok(vec![CallPart::Name(name), CallPart::Arguments(arguments)])
            }
            Some((name, arguments)) => {
                Ok(vec![CallPart::Name(name), CallPart::Arguments(arguments.to_string())])
            }
            None => Err(std::mem::take(&mut self.text)),
        }
    }

    /// The arguments up to their end, as far as they were not given out.
    fn more_arguments(&mut self, at: usize) -> String {
        let start = at + self.sent;
        let mut end = start;
        for byte in self.text.as_bytes()[start..].iter() {
            if self.closed {
                break;
            }
            end += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth -= 1,
                _ => {}
            }
            self.closed = self.depth == 0 && !self.in_string;
        }
        self.sent += end - start;
        self.text[start..end].to_owned()
    }
}

/// The name of a call, and where its arguments' object begins, if the text has come so far and has the usual form.
fn beginning(text: &str) -> Option<(String, usize)> {
    let rest = text.trim_start().strip_prefix('{')?.trim_start().strip_prefix("\"name\"")?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    let mut values = serde_json::Deserializer::from_str(rest).into_iter::<String>();
    let name = values.next()?.ok()?;
    let rest = rest[values.byte_offset()..].trim_start().strip_prefix(',')?.trim_start();
    let rest = rest.strip_prefix("\"arguments\"").or_else(|| rest.strip_prefix("\"parameters\""))?;
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    rest.starts_with('{').then(|| (name, text.len() - rest.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, step: usize) -> (String, String) {
        let (mut name, mut arguments) = (String::new(), String::new());
        let mut reader = CallReader::default();
        let chars: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for piece in chars.chunks(step) {
            parts.extend(reader.push(&piece.iter().collect::<String>()));
        }
        parts.extend(reader.finish().unwrap());
        for part in parts {
            match part {
                CallPart::Name(text) => name.push_str(&text),
                CallPart::Arguments(text) => arguments.push_str(&text),
            }
        }
        (name, arguments)
    }

    #[test]
    fn a_call_is_read_however_it_is_cut() {
        let text = "\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": [1, {\"c\": \"é\"}]}}\n";
        for step in 1..=text.len() {
            let (name, arguments) = read(text, step);
            assert_eq!((&*name, &*arguments), ("f", "{\"a\": \"}\\\"{\", \"b\": [1, {\"c\": \"é\"}]}"));
        }
    }

    #[test]
    fn a_call_of_another_form_is_read_at_its_end() {
        assert_eq!(read(r#"{"arguments": {"a": 1}, "name": "f"}"#, 3), ("f".into(), r#"{"a":1}"#.into()));
        assert_eq!(read(r#"{"name": "f", "arguments": "{}"}"#, 3), ("f".into(), "{}".into()));
        assert_eq!(read(r#"{"name": "f", "parameters": {}}"#, 3), ("f".into(), "{}".into()));
    }

    #[test]
    fn what_is_no_call_is_given_back() {
        let mut reader = CallReader::default();
        assert!(reader.push("{\"name\": 3}").is_empty());
        assert_eq!(reader.finish(), Err("{\"name\": 3}".into()));
    }

    #[test]
    fn the_template_tells_how_calls_are_written() {
        assert_eq!(ToolSyntax::of_template("{{ messages }}"), None);
        assert_eq!(ToolSyntax::of_template("{{ tools }} <tool_call>"), Some(ToolSyntax::Tagged));
        assert_eq!(ToolSyntax::of_template("{{ tools }} \"parameters\": x"), Some(ToolSyntax::Bare));
        assert_eq!(ToolSyntax::of_template("{{ tools }} [TOOL_CALLS]"), None);
    }

    #[test]
    fn what_parameters_refer_to_is_found_where_they_are_put() {
        let tool = |name: &str| Tool {
            name: name.into(),
            parameters: json!({"$defs": {"a": {"enum": [{"$ref": "#"}]}}, "properties": {"x": {"$ref": "#/$defs/a"}}}),
        };
        let (f, g) = (tool("f"), tool("g"));
        for (syntax, tools, pointers) in [
            (ToolSyntax::Tagged, vec![&f], vec!["/properties/arguments"]),
            (
                ToolSyntax::Bare,
                vec![&f, &g],
                vec!["/anyOf/0/properties/parameters", "/anyOf/1/properties/parameters"],
            ),
        ] {
            let (Rule::Json(call) | Rule::JsonBetween(_, call, _)) = syntax.rule(&tools) else {
                panic!("no JSON")
            };
            for pointer in pointers {
                let parameters = call.pointer(pointer).unwrap();
                assert_eq!(parameters["properties"]["x"]["$ref"], format!("#{pointer}/$defs/a"));
                assert_eq!(parameters["$defs"]["a"]["enum"][0]["$ref"], "#", "a value, not a schema");
            }
        }
    }

    #[test]
    fn requests_are_checked() {
        let tool = json!({"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}});
        let read =
            |request: Value| Tools::read(&mut Fields::new(request, "").unwrap(), Some(ToolSyntax::Tagged));
        let auto = read(json!({"tools": [tool]})).unwrap();
        assert!(auto.rule.is_none() && auto.syntax.is_some() && auto.parallel);
        let required = read(json!({"tools": [tool], "tool_choice": "required"})).unwrap();
        let Some(Rule::JsonBetween("<tool_call>\n", call, "\n</tool_call>")) = required.rule else {
            panic!("{:?}", required.rule)
        };
        assert_eq!(call["properties"]["name"]["const"], "f");
        let none = read(json!({"tools": [tool], "tool_choice": "none"})).unwrap();
        assert!(none.definitions.is_none() && none.syntax.is_none());
        for (request, param) in [
            (json!({"tools": {}}), "tools"),
            (json!({"tools": [1]}), "tools[0]"),
            (json!({"tools": [{"type": "x"}]}), "tools[0].type"),
            (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
            (json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}), "tools[0].function.name"),
            (json!({"tools": [tool], "tool_choice": {"function": {"name": "g"}}}), "tool_choice"),
            (json!({"tools": [tool], "tool_choice": "maybe"}), "tool_choice"),
            (json!({"tool_choice": "required"}), "tool_choice"),
            (
                json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}],
                       "tool_choice": "required"}),
                "tools[0].function.parameters",
            ),
        ] {
            assert_eq!(read(request.clone()).unwrap_err().param.as_deref(), Some(param), "{request}");
        }
    }
}
