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

/// Most properties, required names and items with schemas of their own.
const MAX_PROPERTIES: usize = 2000;

/// Most bytes of all patterns together.
const MAX_PATTERNS: usize = 4 << 10;

/// Largest number that all of `multipleOf` divide: there are as many remainders to be told apart.
const MAX_MULTIPLE: u64 = 10_000;

/// What following a schema takes.
struct Cost {
    properties: usize,
    patterns: usize,
    multiple: u64,
}

/// Refuses a schema with a keyword that would not be enforced, or that would take too much to enforce.
///
/// # Errors
/// [`Error::Keyword`], and [`Error::Invalid`] for what is no schema, is nested too deeply, or is too large.
pub fn check_schema(schema: &Value) -> Result<(), Error> {
    let mut cost = Cost { properties: 0, patterns: 0, multiple: 1 };
    cost.check(schema, "", 0)?;
    let limits =
        [("properties", cost.properties, MAX_PROPERTIES), ("bytes of patterns", cost.patterns, MAX_PATTERNS)];
    match limits.iter().find(|(_, found, most)| found > most) {
        None => Ok(()),
        Some((what, found, most)) => {
            Err(Error::Invalid(format!("the schema has {found} {what}, expected at most {most}")))
        }
    }
}

impl Cost {
    fn check(&mut self, schema: &Value, place: &str, depth: usize) -> Result<(), Error> {
        let shown = if place.is_empty() { "/" } else { place };
        let fields = match schema {
            Value::Object(fields) => fields,
            // All and nothing.
            Value::Bool(_) => return Ok(()),
            _ => {
                return Err(Error::Invalid(format!("expected a schema (an object or a boolean) at {shown}")));
            }
        };
        if depth == MAX_DEPTH {
            return Err(Error::Invalid(format!("schemas are nested more than {MAX_DEPTH} deep at {shown}")));
        }
        let is_known = |keyword: &String| ENFORCED.contains(&&**keyword) || ANNOTATIONS.contains(&&**keyword);
        if let Some(keyword) = fields.keys().find(|keyword| !is_known(keyword)) {
            return Err(Error::Keyword { keyword: keyword.clone(), place: shown.to_owned() });
        }
        for (keyword, value) in fields {
            self.add(keyword, value, shown)?;
            let place = format!("{place}/{keyword}");
            match (&**keyword, value) {
                ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(schemas)) => schemas
                    .iter()
                    .try_for_each(|(name, schema)| self.check(schema, &format!("{place}/{name}"), depth + 1))?,
                ("anyOf" | "oneOf" | "allOf" | "prefixItems", Value::Array(schemas))
                // The older form of `prefixItems`.
                | ("items", Value::Array(schemas)) => schemas
                    .iter()
                    .enumerate()
                    .try_for_each(|(index, schema)| self.check(schema, &format!("{place}/{index}"), depth + 1))?,
                ("items" | "additionalItems" | "additionalProperties", schema) => {
                    self.check(schema, &place, depth + 1)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a keyword adds.
    fn add(&mut self, keyword: &str, value: &Value, place: &str) -> Result<(), Error> {
        match (keyword, value) {
            ("properties", Value::Object(schemas)) => self.properties += schemas.len(),
            ("patternProperties", Value::Object(schemas)) => {
                self.properties += schemas.len();
                self.patterns += schemas.keys().map(String::len).sum::<usize>();
            }
            ("required" | "prefixItems" | "items", Value::Array(items)) => self.properties += items.len(),
            ("pattern", Value::String(pattern)) => self.patterns += pattern.len(),
            ("multipleOf", Value::Number(number)) => {
                let digits = number.as_f64().and_then(digits).filter(|&digits| digits <= MAX_MULTIPLE);
                // No overflow: both are at most MAX_MULTIPLE.
                let multiple =
                    digits.map(|digits| self.multiple / common_divisor(self.multiple, digits) * digits);
                let multiple = multiple.filter(|&multiple| multiple <= MAX_MULTIPLE);
                self.multiple = multiple.ok_or_else(|| {
                    Error::Invalid(format!(
                        "'multipleOf' {number} at {place} takes too much: expected numbers that all divide one up \
                         to {MAX_MULTIPLE}"
                    ))
                })?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// The digits of a decimal number without its point; none if there are too many, or it is not above 0.
fn digits(number: f64) -> Option<u64> {
    let mut scaled = (0..=9).map(|places| number * 10f64.powi(places));
    let whole = scaled.find(|scaled| (scaled - scaled.round()).abs() < 1e-6)?;
    (0.5..1e15).contains(&whole).then(|| whole.round() as u64)
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
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

    #[test]
    fn what_takes_too_much_is_refused() {
        let check = |schema: Value| check_schema(&schema).map_err(|error| error.to_string());
        let many = |n: usize| (0..n).map(|i| (format!("p{i}"), json!({}))).collect::<serde_json::Map<_, _>>();
        assert_eq!(check(json!({"properties": many(2000)})), Ok(()));
        let error = check(json!({"properties": many(1500), "required": vec!["a"; 501]})).unwrap_err();
        assert!(error.contains("has 2001 properties, expected at most 2000"), "{error}");
        let error = check(json!({"items": {"pattern": "x".repeat(5000)}})).unwrap_err();
        assert!(error.contains("5000 bytes of patterns"), "{error}");
        let multiples = |numbers: &[f64]| {
            let schemas: Vec<_> = numbers.iter().map(|number| json!({"multipleOf": number})).collect();
            check(json!({"anyOf": schemas}))
        };
        assert_eq!(multiples(&[0.01, 5.0, 0.25, 100.0, 1e-6]), Ok(()));
        assert!(multiples(&[1_000_003.0]).unwrap_err().contains("'multipleOf' 1000003.0 at /anyOf/0"));
        assert!(multiples(&[97.0, 89.0, 83.0]).unwrap_err().contains("at /anyOf/2"));
        for number in [0.0, -1.0, 1e-12, 1e300] {
            assert!(multiples(&[number]).is_err(), "{number}");
        }
    }
}
