//! Reading a request's JSON field by field, with errors that name the field as OpenAI's API names it.

use crate::error::ApiError;
use serde_json::{Map, Value};
use std::fmt::Display;
use std::ops::RangeInclusive;

type Result<T> = std::result::Result<T, ApiError>;

/// An object whose fields are taken out one after the other; null counts as missing.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    path: String,
}

impl Fields {
    /// The fields of an object. `path` is what its name is in errors; empty for the whole request.
    pub fn new(value: Value, path: impl Into<String>) -> Result<Fields> {
        let path = path.into();
        match value {
            Value::Object(map) => Ok(Fields { map, path }),
            other => Err(wrong_type(&path, "an object", &other)),
        }
    }

    /// What is left, as an object.
    pub fn into_value(self) -> Value {
        Value::Object(self.map)
    }

    /// The name of a field in errors.
    pub fn name(&self, field: &str) -> String {
        if self.path.is_empty() { field.to_owned() } else { format!("{}.{field}", self.path) }
    }

    /// A field of any type.
    pub fn value(&mut self, field: &str) -> Option<Value> {
        // The order of the others stays: what is left may go into a prompt.
        self.map.shift_remove(field).filter(|value| !value.is_null())
    }

    /// A text.
    pub fn string(&mut self, field: &str) -> Result<Option<String>> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.name(field), "a string", &other)),
        }
    }

    /// A boolean.
    pub fn bool(&mut self, field: &str) -> Result<Option<bool>> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(wrong_type(&self.name(field), "a boolean", &other)),
        }
    }

    /// A number in a range.
    pub fn number(&mut self, field: &str, range: RangeInclusive<f64>) -> Result<Option<f32>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let Some(number) = value.as_f64() else {
            return Err(wrong_type(&self.name(field), "a number", &value));
        };
        if range.contains(&number) {
            Ok(Some(number as f32))
        } else {
            Err(self.outside(field, &range, number < *range.start(), &value))
        }
    }

    /// A whole number in a range.
    pub fn integer(&mut self, field: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let Some(value) = self.value(field) else { return Ok(None) };
        let number = match (value.as_i64(), value.as_f64()) {
            (Some(number), _) => number,
            // Some clients send whole numbers as 5.0. `i64::MAX as f64` is 2^63, which is no `i64`.
            (None, Some(number)) if number.fract() == 0.0 => {
                let most = (*range.end() as f64).min((i64::MAX as f64).next_down());
                if !(*range.start() as f64..=most).contains(&number) {
                    return Err(self.outside(field, &range, number < *range.start() as f64, &value));
                }
                number as i64
            }
            _ => return Err(wrong_type(&self.name(field), "an integer", &value)),
        };
        if range.contains(&number) {
            Ok(Some(number))
        } else {
            Err(self.outside(field, &range, number < *range.start(), &value))
        }
    }

    /// A whole number that counts something.
    pub fn count(&mut self, field: &str, range: RangeInclusive<u32>) -> Result<Option<usize>> {
        let range = i64::from(*range.start())..=i64::from(*range.end());
        Ok(self.integer(field, range)?.and_then(|number| usize::try_from(number).ok()))
    }

    /// A text or a list of texts.
    pub fn strings(&mut self, field: &str) -> Result<Vec<String>> {
        let name = self.name(field);
        match self.value(field) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(vec![text]),
            Some(Value::Array(items)) => items
                .into_iter()
                .enumerate()
                .map(|(index, item)| match item {
                    Value::String(text) => Ok(text),
                    other => Err(wrong_type(&format!("{name}[{index}]"), "a string", &other)),
                })
                .collect(),
            Some(other) => Err(wrong_type(&name, "a string or an array of strings", &other)),
        }
    }

    /// A list.
    pub fn array(&mut self, field: &str) -> Result<Option<Vec<Value>>> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(wrong_type(&self.name(field), "an array", &other)),
        }
    }

    /// An object.
    pub fn object(&mut self, field: &str) -> Result<Option<Fields>> {
        let name = self.name(field);
        self.value(field).map(|value| Fields::new(value, name)).transpose()
    }

    /// A field that must be there.
    pub fn required<T>(&self, field: &str, value: Option<T>) -> Result<T> {
        value.ok_or_else(|| {
            let name = self.name(field);
            ApiError::field(
                &name,
                "missing_required_parameter",
                format!("Missing required parameter: '{name}'."),
            )
        })
    }

    /// Refuses what was not taken and is not among the names that may be there without effect.
    pub fn finish(self, ignored: &[&str]) -> Result<()> {
        match self.map.keys().find(|key| !ignored.contains(&key.as_str())) {
            None => Ok(()),
            Some(key) => {
                let name = self.name(key);
                let message = format!("Unrecognized request argument supplied: {name}");
                Err(ApiError::field(name, "unknown_parameter", message))
            }
        }
    }

    fn outside(
        &self,
        field: &str,
        range: &RangeInclusive<impl Display>,
        is_below: bool,
        found: &Value,
    ) -> ApiError {
        let name = self.name(field);
        let (least, most) = (range.start(), range.end());
        let message =
            format!("Invalid '{name}': expected a value from {least} to {most}, but got {found} instead.");
        ApiError::field(name, if is_below { "below_min_value" } else { "above_max_value" }, message)
    }
}

/// A field has a value of a wrong type.
pub fn wrong_type(name: &str, expected: &str, found: &Value) -> ApiError {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a decimal",
        Value::Number(_) => "an integer",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    let what = if name.is_empty() { "the request".to_owned() } else { format!("'{name}'") };
    let message = format!("Invalid type for {what}: expected {expected}, but got {found} instead.");
    let error = ApiError::field(name, "invalid_type", message);
    ApiError { param: error.param.filter(|param| !param.is_empty()), ..error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: Value) -> Fields {
        Fields::new(value, "").unwrap()
    }

    #[test]
    fn values_are_taken_and_null_is_missing() {
        let mut fields = fields(json!({"a": 1, "b": null, "c": "x", "d": ["y"], "e": true, "f": 2.0}));
        assert_eq!(fields.integer("a", 0..=9), Ok(Some(1)));
        assert_eq!(fields.string("b"), Ok(None));
        assert_eq!(fields.strings("c"), Ok(vec!["x".into()]));
        assert_eq!(fields.strings("d"), Ok(vec!["y".into()]));
        assert_eq!(fields.bool("e"), Ok(Some(true)));
        assert_eq!(fields.count("f", 0..=9), Ok(Some(2)));
        assert_eq!(fields.finish(&[]), Ok(()));
    }

    #[test]
    fn what_is_left_keeps_its_order() {
        let mut fields = fields(json!({"type": "function", "name": "f", "description": "d", "strict": true}));
        fields.string("type").unwrap();
        let left = fields.into_value().to_string();
        assert_eq!(left, r#"{"name":"f","description":"d","strict":true}"#);
    }

    #[test]
    fn errors_name_the_field_and_both_what_was_found_and_expected() {
        let error = |value: Value, read: &dyn Fn(&mut Fields) -> Result<()>| {
            let error = read(&mut Fields::new(value, "outer").unwrap()).unwrap_err();
            (error.param.unwrap(), error.code.unwrap(), error.message)
        };
        let read = error(json!({"t": "hot"}), &|fields| fields.number("t", 0.0..=2.0).map(drop));
        assert_eq!((&*read.0, read.1), ("outer.t", "invalid_type"));
        assert!(read.2.contains("expected a number, but got a string"), "{}", read.2);
        let read = error(json!({"t": 3}), &|fields| fields.number("t", 0.0..=2.0).map(drop));
        assert_eq!((&*read.0, read.1), ("outer.t", "above_max_value"));
        assert!(read.2.contains("from 0 to 2, but got 3"), "{}", read.2);
        for huge in [json!(1e20), json!(u64::MAX), json!(9_223_372_036_854_775_808u64)] {
            let read =
                error(json!({"n": huge}), &|fields| fields.integer("n", i64::MIN..=i64::MAX).map(drop));
            assert_eq!((&*read.0, read.1), ("outer.n", "above_max_value"));
            let range = "from -9223372036854775808 to 9223372036854775807, ";
            assert!(read.2.contains(range), "{}", read.2);
        }
        let read = error(json!({"n": 1.5}), &|fields| fields.count("n", 1..=9).map(drop));
        assert!(read.2.contains("expected an integer, but got a decimal"), "{}", read.2);
        let read = error(json!({"s": ["a", 1]}), &|fields| fields.strings("s").map(drop));
        assert_eq!(read.0, "outer.s[1]");
        let read = error(json!({}), &|fields| fields.required("m", None::<()>));
        assert_eq!((&*read.0, read.1), ("outer.m", "missing_required_parameter"));
    }

    #[test]
    fn what_nobody_asked_for_is_refused_unless_it_may_be_there() {
        let error = fields(json!({"user": "me", "temprature": 1})).finish(&["user"]).unwrap_err();
        assert_eq!((error.param.as_deref(), error.code), (Some("temprature"), Some("unknown_parameter")));
    }
}
