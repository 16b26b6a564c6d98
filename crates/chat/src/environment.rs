//! The template engine, set up as Python's transformers sets up Jinja: an immutable sandbox with
//! `trim_blocks`, `lstrip_blocks`, loop controls, and its own `tojson`, `raise_exception` and `strftime_now`.

use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Value, ValueKind};
use minijinja::{Environment, Error, UndefinedBehavior};

use crate::objects::{Named, is_list};
use crate::python::{self, type_error};
use crate::{filters, methods, operators, text};
use minijinja_contrib::globals;

/// The name that the one template has in its environment.
pub(crate) const NAME: &str = "chat_template";

/// The words of a template that called `raise_exception`, carried as the source of the engine's error.
#[derive(Debug)]
pub(crate) struct Raised(pub(crate) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

/// An environment that holds the template, under [`NAME`].
pub(crate) fn compile(source: String) -> Result<Environment<'static>, Error> {
    let mut env = Environment::new();
    env.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    env.set_undefined_behavior(UndefinedBehavior::Lenient);
    env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    env.set_unknown_method_callback(methods::call);
    env.set_formatter(|out, _, value| {
        out.write_str(&python::str(value)?)?;
        Ok(())
    });
    add_globals(&mut env);
    filters::add(&mut env);
    text::add(&mut env);
    add_tests(&mut env);
    env.add_template_owned(NAME, source)?;
    Ok(env)
}

fn add_globals(env: &mut Environment<'_>) {
    operators::add(env);
    // Not in Jinja, and it prints the whole context.
    env.remove_global("debug");
    let cycler = |items: Rest<Value>| {
        globals::cycler(items.0).map(|cycler| Named::value("<jinja2.utils.Cycler object>", cycler))
    };
    let joiner =
        |separator: Option<Value>| Named::value("<jinja2.utils.Joiner object>", globals::joiner(separator));
    let raise_exception = |message: &Value| -> Result<Value, Error> {
        let message = python::str(message)?.into_owned();
        Err(type_error("raise_exception").with_source(Raised(message)))
    };
    env.add_function("cycler", cycler);
    env.add_function("joiner", joiner);
    env.add_function("raise_exception", raise_exception);
    let shown: Vec<_> = env
        .globals()
        .map(|(name, value)| {
            let shown = match name {
                "cycler" => "<class 'jinja2.utils.Cycler'>",
                "joiner" => "<class 'jinja2.utils.Joiner'>",
                "namespace" => "<class 'jinja2.utils.Namespace'>",
                "dict" => "<class 'dict'>",
                // Python adds the place in memory.
                "range" => "<function range>",
                "raise_exception" => "<function raise_exception>",
                _ => "<function>",
            };
            (name.to_owned(), Named::value(shown, value))
        })
        .collect();
    for (name, value) in shown {
        env.add_global(name, value);
    }
}

fn add_tests(env: &mut Environment<'_>) {
    // What has a length and can be indexed, texts and dicts too. An undefined value has a length.
    env.add_test("sequence", |value: &Value| match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map => true,
        ValueKind::Iterable => is_list(value),
        _ => false,
    });
    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("callable", |value: &Value| value.kind() == ValueKind::Plain);
    for test in ["startingwith", "endingwith", "int", "safe"] {
        env.remove_test(test);
    }
}
