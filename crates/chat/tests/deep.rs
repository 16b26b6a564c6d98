//! Templates that make deep recursion of parsing, comparing and dropping must not overflow the stack.

mod common;

use chat::Error;
use common::render;

#[test]
fn comparing_deeply_nested_values_ends() {
    let source = "{% set n=namespace(a=[],b=[]) %}{% for i in range(40000) %}{% set n.a=[n.a] %}\
                  {% set n.b=[n.b] %}{% endfor %}{{ n.a==n.b }}";
    match render(source) {
        Ok(text) => assert_eq!(text, "True"),
        Err(error) => assert!(matches!(error, Error::OutOfFuel { .. } | Error::TooDeep { .. }), "{error}"),
    }
}

#[test]
fn long_chains_of_operators_end() {
    for link in ["-", "not "] {
        // Either a result or an error of the template, but no overflow.
        let _ = render(&format!("{{{{ {}1 }}}}", link.repeat(100_000)));
    }
    let _ = render(&format!("{{{{ 1{} }}}}", "+1".repeat(100_000)));
}

#[test]
fn a_template_of_more_than_a_mebibyte_is_refused() {
    let error = render(&"x".repeat((1 << 20) + 1)).unwrap_err();
    assert!(error.to_string().contains("1048576"), "{error}");
}
