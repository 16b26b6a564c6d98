//! Which JSON schemas can be followed, told by keyword and place before anything is made of them.

use crate::Error;
use serde_json::Value;

/// Keywords that are enforced.
const ENFORCED: [&str; 27] = [
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "items",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "required",
    "type",
];

/// Keywords that demand nothing of a value.
const ANNOTATIONS: [&str; 15] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// Deepest nesting of schemas.
const MAX_DEPTH: usize = 64;

/// Refuses a schema with a keyword that would not be enforced.
///
/// # Errors
/// [`Error::Keyword`], and [`Error::Invalid`] for what is no schema or is nested too deeply.
pub fn check_schema(schema: &Value) -> Result<(), Error> {
    check(schema, "", 0)
}

fn check(schema: &Value, place: &str, depth: usize) -> Result<(), Error> {
    let shown = if place.is_empty() { "/" } else { place };
    let fields = match schema {
        Value::Object(fields) => fields,
        // All and nothing.
        Value::Bool(_) => return Ok(()),
        _ => return Err(Error::Invalid(format!("expected a schema (an object or a boolean) at {shown}"))),
    };
    if depth == MAX_DEPTH {
        return Err(Error::Invalid(format!("schemas are nested more than {MAX_DEPTH} deep at {shown}")));
    }
    let is_known = |keyword: &String| ENFORCED.contains(&&**keyword) || ANNOTATIONS.contains(&&**keyword);
    if let Some(keyword) = fields.keys().find(|keyword| !is_known(keyword)) {
        return Err(Error::Keyword { keyword: keyword.clone(), place: shown.to_owned() });
    }
    for (keyword, value) in fields {
        let place = format!("{place}/{keyword}");
        match (&**keyword, value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => schemas
                .iter()
                .try_for_each(|(name, schema)| check(schema, &format!("{place}/{name}"), depth + 1))?,
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas))
            // The older form of `prefixItems`.
            | ("items", Value::Array(schemas)) => schemas
                .iter()
                .enumerate()
                .try_for_each(|(index, schema)| check(schema, &format!("{place}/{index}"), depth + 1))?,
            ("items" | "additionalItems" | "additionalProperties", schema) => {
                check(schema, &place, depth + 1)?;
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keywords_that_are_not_enforced_are_told_with_their_place() {
        let check = |schema: Value| check_schema(&schema).unwrap_err().to_string();
        assert_eq!(
            check(json!({"type": "array", "uniqueItems": true})),
            "the schema's keyword 'uniqueItems' at / is not supported"
        );
        for (schema, place) in [
            (json!({"properties": {"a": {"not": {}}}}), "/properties/a"),
            (json!({"$defs": {"b": {"not": {}}}}), "/$defs/b"),
            (json!({"anyOf": [{}, {"not": {}}]}), "/anyOf/1"),
            (json!({"items": {"not": {}}}), "/items"),
            (json!({"items": [{"not": {}}]}), "/items/0"),
            (json!({"additionalProperties": {"allOf": [{"not": {}}]}}), "/additionalProperties/allOf/0"),
        ] {
            assert_eq!(check(schema), format!("the schema's keyword 'not' at {place} is not supported"));
        }
        // Not the user's to set.
        assert!(check(json!({"x-guidance": {}})).contains("'x-guidance'"));
    }

    #[test]
    fn what_is_no_schema_is_told_with_its_place() {
        let check = |schema: Value| check_schema(&schema).unwrap_err().to_string();
        assert!(check(json!(1)).contains("expected a schema (an object or a boolean) at /"));
        assert!(check(json!({"properties": {"a": "string"}})).contains("at /properties/a"));
        let deep = (0..100).fold(json!({}), |schema, _| json!({"items": schema}));
        assert!(check(deep).contains("nested more than 64 deep"));
    }

    #[test]
    fn names_and_values_are_no_keywords() {
        for schema in [
            json!(true),
            json!({"properties": {"not": {"type": "string"}}, "required": ["not"]}),
            json!({"enum": [{"not": 1}], "default": {"uniqueItems": 1}, "title": "x"}),
            json!({"additionalProperties": false}),
        ] {
            assert_eq!(check_schema(&schema), Ok(()), "{schema}");
        }
    }
}
