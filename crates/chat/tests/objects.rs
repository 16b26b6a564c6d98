//! Functions and objects print as in Python, less their place in memory, and never under a name from Rust.

mod common;

fn text(source: &str) -> String {
    common::render(source).unwrap_or_else(|error| panic!("{source}: {error}"))
}

#[test]
fn globals_and_objects_have_their_names_of_python() {
    for (source, expected) in [
        ("{{ cycler }}", "<class 'jinja2.utils.Cycler'>"),
        ("{{ joiner }}", "<class 'jinja2.utils.Joiner'>"),
        ("{{ namespace }}", "<class 'jinja2.utils.Namespace'>"),
        ("{{ dict }}", "<class 'dict'>"),
        ("{{ range }}", "<function range>"),
        ("{{ raise_exception }}", "<function raise_exception>"),
        ("{{ strftime_now }}", "<function strftime_now>"),
        ("{{ cycler('a') }}", "<jinja2.utils.Cycler object>"),
        ("{{ joiner() }}", "<jinja2.utils.Joiner object>"),
        ("{{ namespace(a=1, b=['x']) }}", "<Namespace {'a': 1, 'b': ['x']}>"),
        ("{% for x in [1, 2] %}{{ loop }}{% endfor %}", "<LoopContext 1/2><LoopContext 2/2>"),
        ("{% macro m(a) %}{% endmacro %}{{ m }}", "<Macro 'm'>"),
        ("{% macro m() %}{{ caller }}{% endmacro %}{% call m() %}{% endcall %}", "<Macro anonymous>"),
        ("{{ [1] | map('string') }}", "<generator object>"),
        ("{{ {'a': 1}.items() }}", "dict_items([('a', 1)])"),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}

#[test]
fn no_way_of_printing_shows_a_name_from_rust() {
    let values = [
        "cycler",
        "joiner",
        "namespace",
        "dict",
        "range",
        "raise_exception",
        "strftime_now",
        "__fold",
        "cycler('a')",
        "joiner()",
        "namespace(a=range)",
        "[cycler]",
        "{'a': joiner()}",
        "(range,)",
        "[1] | map('string')",
        "'a'.upper",
        "messages.append",
        "messages[0].items",
        "[cycler] | batch(1)",
        "[1] | groupby('a')",
        "self",
    ];
    for value in values {
        for print in
            ["X", "X ~ ''", "X | string", "[X] | join", "X | pprint", "'%r' % [X]", "'{}'.format(X)", "[X]"]
        {
            let source = format!("{{{{ {} }}}}", print.replace('X', &format!("({value})")));
            let text = text(&source);
            assert!(!text.contains("::") && !text.contains("closure"), "{source}: {text}");
        }
    }
    for inside in ["loop", "loop.cycle", "loop.changed", "[loop]", "'{}'.format(loop)", "loop | pprint"] {
        let text = text(&format!("{{% for x in [1] %}}{{{{ {inside} }}}}{{% endfor %}}"));
        assert!(!text.contains("::"), "{inside}: {text}");
    }
}

#[test]
fn what_is_named_still_works() {
    for (source, expected) in [
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}", "aba"),
        ("{% set j = joiner('|') %}{{ j() }}a{{ j() }}b", "a|b"),
        ("{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "2"),
        ("{{ range(3) | list }}{{ dict(a=1) }}", "[0, 1, 2]{'a': 1}"),
        ("{{ cycler is callable }}{{ 'a' is callable }}", "TrueFalse"),
    ] {
        assert_eq!(text(source), expected, "{source}");
    }
}
