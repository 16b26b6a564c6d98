//! Which JSON schemas can be followed, told by keyword and place before anything is made of them.

use crate::{Error, check_regex};
use serde_json::{Map, Number, Value};
use std::collections::HashSet;

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

/// Most different patterns of a schema in which some may have to hold together: what is followed then are sets of their
/// states, which can double with each pattern.
const MAX_JOINED_PATTERNS: usize = 10;

/// Largest number that all of `multipleOf` divide: there are as many remainders to be told apart.
const MAX_MULTIPLE: u64 = 10_000;

/// Most decimal places of a `multipleOf`: the parser's power of ten has 32 bits.
const MAX_PLACES: u32 = 9;

/// Largest number that all of `multipleOf` divide, with as many zeros as one of them has decimal places, where they are
/// not all the same: the parser multiplies two such in 32 bits, and does not see if the product has more.
const MAX_SCALED_MULTIPLE: u64 = u16::MAX as u64;

/// What following a schema takes.
struct Cost {
    properties: usize,
    patterns: usize,
    different_patterns: HashSet<String>,
    /// Where schemas must hold together, if anywhere.
    joined: Option<String>,
    /// What all of `multipleOf` divide, without their points.
    multiple: u64,
    /// Most decimal places of a `multipleOf`.
    places: u32,
    /// The first `multipleOf`.
    first: Option<f64>,
    /// Whether another one is different.
    mixed: bool,
}

/// Refuses a schema with a keyword that would not be enforced, or that would take too much to enforce.
///
/// # Errors
/// [`Error::Keyword`], and [`Error::Invalid`] for what is no schema, is nested too deeply, or is too large.
pub fn check_schema(schema: &Value) -> Result<(), Error> {
    check_schemas(std::slice::from_ref(schema))
}

/// The same for several that are followed together.
pub(crate) fn check_schemas(schemas: &[Value]) -> Result<(), Error> {
    let mut cost = Cost {
        properties: 0,
        patterns: 0,
        different_patterns: HashSet::new(),
        joined: None,
        multiple: 1,
        places: 0,
        first: None,
        mixed: false,
    };
    schemas.iter().try_for_each(|schema| cost.check(schema, "", 0))?;
    let different = cost.different_patterns.len();
    if let Some(place) = cost.joined.filter(|_| different > MAX_JOINED_PATTERNS) {
        return Err(Error::Invalid(format!(
            "the schema has {different} different patterns, expected at most {MAX_JOINED_PATTERNS} where some may have to \
             hold together, as at {place}"
        )));
    }
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
        if joins(fields) {
            self.joined.get_or_insert_with(|| shown.to_owned());
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
                // A '$ref' could lead into what has not been looked at.
                (
                    "properties" | "patternProperties" | "$defs" | "definitions" | "anyOf" | "oneOf" | "allOf"
                    | "prefixItems",
                    _,
                ) => {
                    return Err(Error::Invalid(format!("expected schemas (a list or an object of them) at {place}")));
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
                schemas.keys().try_for_each(|pattern| check_regex(pattern))?;
            }
            ("required" | "prefixItems" | "items", Value::Array(items)) => self.properties += items.len(),
            ("pattern", Value::String(pattern)) => {
                self.patterns += pattern.len();
                check_regex(pattern)?;
                self.different_patterns.insert(pattern.clone());
            }
            ("multipleOf", Value::Number(number)) => self.add_multiple(number, place)?,
            ("$ref", Value::String(to)) if !leads_to_schema(to) => {
                return Err(Error::Invalid(format!(
                    "'$ref' to '{to}' at {place} is not supported: expected '#' or the path of a schema such as \
                     '#/$defs/name'"
                )));
            }
            _ => {}
        }
        Ok(())
    }

    /// What a `multipleOf` adds.
    fn add_multiple(&mut self, number: &Number, place: &str) -> Result<(), Error> {
        let refused = || {
            Error::Invalid(format!(
                "'multipleOf' {number} at {place} takes too much: expected numbers that all divide one up to \
                 {MAX_MULTIPLE}, and, where they differ, one up to {MAX_SCALED_MULTIPLE} with a zero for each decimal \
                 place"
            ))
        };
        let value = number.as_f64().ok_or_else(refused)?;
        let (digits, places) = decimal(value).ok_or_else(refused)?;
        // No overflow: both are at most MAX_MULTIPLE.
        self.multiple = self.multiple / common_divisor(self.multiple, digits) * digits;
        self.places = self.places.max(places);
        self.mixed |= *self.first.get_or_insert(value) != value;
        // Nor here: there are at most MAX_PLACES.
        let scaled = self.multiple * 10u64.pow(self.places);
        let is_small = self.multiple <= MAX_MULTIPLE && (!self.mixed || scaled <= MAX_SCALED_MULTIPLE);
        if is_small { Ok(()) } else { Err(refused()) }
    }
}

/// Whether a schema demands that several hold: by `allOf`, or by a reference beside other demands.
fn joins(fields: &Map<String, Value>) -> bool {
    let demands = fields.keys().filter(|keyword| ENFORCED.contains(&&***keyword)).count();
    fields.contains_key("allOf") || fields.contains_key("$ref") && demands > 1
}

/// The digits of a decimal number without its point, and how many are behind it; none if the digits make more than
/// [`MAX_MULTIPLE`], more than [`MAX_PLACES`] are behind it, or the number is not above 0. Step by step as the parser
/// does it: where the steps' rounding errors leave digits at the end, they are there for the parser too.
fn decimal(number: f64) -> Option<(u64, u32)> {
    let (mut value, mut places) = (number, 0);
    while value.fract() != 0.0 && places < MAX_PLACES {
        value *= 10.0;
        places += 1;
    }
    let is_usable = value.fract() == 0.0 && (1.0..=MAX_MULTIPLE as f64).contains(&value);
    is_usable.then_some((value as u64, places))
}

/// Whether a reference leads, if anywhere, to a schema that [`Cost::check`] looks at, by the only way to write its
/// path. (Each way would be compiled on its own, and go deeper.)
fn leads_to_schema(reference: &str) -> bool {
    // The number of an item is read with leading zeros and a sign, too.
    let is_index = |segment: &str| {
        segment.bytes().all(|byte| byte.is_ascii_digit())
            && (segment == "0" || !segment.is_empty() && !segment.starts_with('0'))
    };
    let path = match reference.strip_prefix('#') {
        Some("") => return true,
        Some(path) => path.strip_prefix('/'),
        None => None,
    };
    let Some(path) = path else { return false };
    let mut segments = path.split('/').peekable();
    while let Some(keyword) = segments.next() {
        let leads_on = match keyword {
            "properties" | "patternProperties" | "$defs" | "definitions" => segments.next().is_some(),
            "anyOf" | "oneOf" | "allOf" | "prefixItems" => segments.next().is_some_and(is_index),
            "items" => {
                // One schema for all, or one for each.
                segments.next_if(|segment| is_index(segment));
                true
            }
            "additionalItems" | "additionalProperties" => true,
            _ => false,
        };
        if !leads_on {
            return false;
        }
    }
    true
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
        assert_eq!(multiples(&[0.01, 5.0, 0.25, 100.0]), Ok(()));
        assert_eq!(multiples(&[0.0001, 0.0001]), Ok(()));
        assert!(multiples(&[1_000_003.0]).unwrap_err().contains("'multipleOf' 1000003.0 at /anyOf/0"));
        assert!(multiples(&[97.0, 89.0, 83.0]).unwrap_err().contains("at /anyOf/2"));
        // With these ends, the parser's numbers have eight digits.
        for number in [0.0, -1.0, 1e-12, 1e300, 1.0000009, 7.0000009] {
            assert!(multiples(&[number]).is_err(), "{number}");
        }
        // Their least common multiple has more than 32 bits where the parser computes it.
        assert!(multiples(&[0.000003, 3331.0]).unwrap_err().contains("'multipleOf' 3331.0 at /anyOf/1"));
    }

    #[test]
    fn many_patterns_are_refused_where_some_may_have_to_hold_together() {
        let patterns = |n: usize| {
            (0..n).map(|n| (n.to_string(), json!({"pattern": format!("x{n}")}))).collect::<Map<_, _>>()
        };
        let check = |n: usize, more: Value| {
            let schema = json!({"$defs": patterns(n), "properties": {"a": more}});
            check_schema(&schema).map_err(|error| error.to_string())
        };
        assert_eq!(check(200, json!({"$ref": "#/$defs/0", "description": "one of them"})), Ok(()));
        for more in [json!({"allOf": [{"$ref": "#/$defs/0"}]}), json!({"$ref": "#/$defs/0", "minLength": 1})]
        {
            assert_eq!(check(10, more.clone()), Ok(()));
            let error = check(11, more).unwrap_err();
            assert!(error.contains("has 11 different patterns, expected at most 10"), "{error}");
            assert!(error.contains("hold together, as at /properties/a"), "{error}");
        }
    }

    #[test]
    fn references_lead_to_schemas_that_are_looked_at() {
        let check = |schema: Value| check_schema(&schema).map_err(|error| error.to_string());
        for to in [
            "#",
            "#/$defs/a",
            "#/definitions/a/items",
            "#/properties/anyOf/anyOf/10",
            "#/items/0/additionalProperties/prefixItems/2",
            "#/patternProperties/^x/oneOf/1/allOf/0/additionalItems",
        ] {
            assert_eq!(check(json!({"$ref": to})), Ok(()), "{to}");
        }
        for to in [
            "",
            "#/",
            "#a",
            "a#/$defs/a",
            "http://a.example/b",
            "#/examples/0",
            "#/default",
            "#/$defs",
            "#/$defs/a/const",
            // Other names of the first item.
            "#/anyOf/00",
            "#/anyOf/+0",
            "#/items/00",
            "#/anyOf/",
        ] {
            let error = check(json!({"items": {"$ref": to}})).unwrap_err();
            assert!(error.contains(&format!("'$ref' to '{to}' at /items is not supported")), "{error}");
        }
        // Found by the paths '#/$defs/a/anyOf/0' and '#/$defs/0'.
        let hidden = json!({"multipleOf": 1_000_003});
        let error = check(json!({"$defs": {"a": {"anyOf": {"0": hidden}}}})).unwrap_err();
        assert!(
            error.contains("expected schemas (a list or an object of them) at /$defs/a/anyOf"),
            "{error}"
        );
        assert!(check(json!({"$defs": [hidden]})).is_err());
    }
}
