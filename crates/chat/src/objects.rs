//! Python's containers, which print as in Python wherever the engine prints them.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::vec;

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, Tuple};
use minijinja::{Error, State, Value};
use serde_json::{Map, Value as Json};

use crate::python;

/// A value of the conversation as templates see it.
pub(crate) fn from_json(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            _ => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(&**text),
        Json::Array(items) => Value::from_object(List(items.iter().map(from_json).collect())),
        Json::Object(map) => Value::from_object(Dict::new(map)),
    }
}

fn print(object: Value, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(&python::str(&object).map_err(|_| fmt::Error)?)
}

/// A list of the conversation.
#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(Value::from_dyn_object(Arc::clone(self)), f)
    }
}

/// A dict of the conversation. The index finds keys; the order is that of the pairs.
#[derive(Debug)]
struct Dict {
    pairs: Vec<(Value, Value)>,
    index: std::collections::HashMap<String, usize>,
}

impl Dict {
    fn new(map: &Map<String, Json>) -> Self {
        Self {
            pairs: map.iter().map(|(key, value)| (Value::from(&**key), from_json(value))).collect(),
            index: map.keys().enumerate().map(|(index, key)| (key.clone(), index)).collect(),
        }
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        Some(self.pairs[*self.index.get(key)?].1.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_rev_enumerator(|this| Box::new(this.pairs.iter().map(|(key, _)| key.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.pairs.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(Value::from_dyn_object(Arc::clone(self)), f)
    }
}

/// What `dict.keys()`, `dict.values()` and `dict.items()` give: it has a length and can be iterated over, and
/// is neither a list nor anything that JSON knows.
#[derive(Debug)]
pub(crate) struct DictView {
    name: &'static str,
    items: Vec<Value>,
}

impl DictView {
    /// The view that the method gives, if it is one of the three and the value is a dict.
    pub(crate) fn new(dict: &Value, method: &str) -> Option<Self> {
        let pairs = dict.as_object()?.try_iter_pairs()?;
        let (name, items) = match method {
            "keys" => ("dict_keys", pairs.map(|(key, _)| key).collect()),
            "values" => ("dict_values", pairs.map(|(_, value)| value).collect()),
            "items" => {
                ("dict_items", pairs.map(|(key, value)| Value::from(Tuple::from([key, value]))).collect())
            }
            _ => return None,
        };
        Some(Self { name, items })
    }
}

impl Object for DictView {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.items.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.name)?;
        print(Value::from(self.items.clone()), f)?;
        f.write_str(")")
    }
}

/// A generator, which filters such as `map` give: it has no length and can be gone through once.
#[derive(Debug)]
pub(crate) struct Generator(Mutex<vec::IntoIter<Value>>);

impl Generator {
    pub(crate) fn new(items: Vec<Value>) -> Self {
        Self(Mutex::new(items.into_iter()))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let this = Arc::clone(self);
        // A poisoned lock still holds the items.
        let next = move || this.0.lock().unwrap_or_else(|e| e.into_inner()).next();
        Enumerator::Iter(Box::new(std::iter::from_fn(next)))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<generator object>")
    }
}

/// A function or object of the engine, which would print its Rust name, printed as in Python.
pub(crate) struct Named {
    shown: &'static str,
    inner: Value,
}

impl Named {
    pub(crate) fn value(shown: &'static str, inner: Value) -> Value {
        Value::from_object(Self { shown, inner })
    }
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shown)
    }
}

impl Object for Named {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        self.inner.call(state, args)
    }

    fn call_method(
        self: &Arc<Self>,
        state: &mut State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        self.inner.call_method(state, method, args)
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.inner.get_item(key).ok().filter(|value| !value.is_undefined())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.shown)
    }
}

/// How Python prints an object of the engine that looks like a dict, before its items; `None` for what is a dict.
pub(crate) fn shown_as(value: &Value) -> Option<Shown> {
    let object = value.as_object()?;
    // The engine keeps these types to itself.
    let name = object.type_name().rsplit("::").next()?;
    match name {
        "Loop" => {
            // What the loop goes through may have no length.
            let number = |key| match value.get_attr(key).ok().filter(|number| !number.is_undefined()) {
                Some(number) => number.to_string(),
                None => "?".to_owned(),
            };
            Some(Shown::Text(format!("<LoopContext {}/{}>", number("index"), number("length"))))
        }
        "Macro" => Some(Shown::Text(match value.get_attr("name").ok()?.as_str()? {
            "caller" => "<Macro anonymous>".to_owned(),
            name => format!("<Macro '{name}'>"),
        })),
        "Namespace" => Some(Shown::Namespace),
        _ => None,
    }
}

/// What [`shown_as`] finds.
pub(crate) enum Shown {
    /// The whole text.
    Text(String),
    /// `<Namespace {...}>`, with the items.
    Namespace,
}

/// Whether Python would call the value a sequence: it has a length and its items can be had by number.
pub(crate) fn is_list(value: &Value) -> bool {
    value.downcast_object_ref::<DictView>().is_none() && value.len().is_some()
}
