//! A short template cannot make a long render: what doubles at each step meets a bound, and soon.

mod common;

use std::time::{Duration, Instant};

use chat::Error;
use common::render;

/// A macro that passes itself `step`, `l` before, 40 times, and then writes `end`.
fn doubled(first: &str, step: &str, end: &str) -> String {
    format!(
        "{{% macro m(l, n) %}}{{% if n %}}{{{{ m({step}, n - 1) }}}}{{% else %}}{{{{ {end} }}}}{{% endif %}}\
         {{% endmacro %}}{{{{ m({first}, 40) }}}}"
    )
}

fn is_refused(source: &str) {
    let start = Instant::now();
    let error = render(source).expect_err(source);
    let told = match &error {
        Error::OutOfFuel { limit } => *limit >= 2_000_000 && error.to_string().contains(&limit.to_string()),
        Error::Failed { message, .. } => {
            message.contains("over 33554432 bytes")
                || message.contains("at most 65535")
                || message.contains("repeated sequence is too large")
        }
        _ => false,
    };
    assert!(told, "{source}: {error}");
    assert!(start.elapsed() < Duration::from_secs(60), "{source} took {:?}", start.elapsed());
}

#[test]
fn doubling_by_an_operator_is_paid_for() {
    for (first, step) in [
        ("[1]", "l + l"),
        ("[1]", "[] + l + l"),
        ("(1,)", "l + l"),
        ("'xx'", "l + l"),
        ("'xx'", "l ~ l"),
        ("[1]", "l * 2"),
        ("[1]", "[l, l] | sum(start=[])"),
        ("'xx'", "'%s%s' % (l, l)"),
        ("'xx'", "[l, l] | join"),
        ("'xx'", "l | replace(l, l + l)"),
    ] {
        is_refused(&doubled(first, step, "l | length"));
    }
}

#[test]
fn the_print_of_a_list_of_shared_parts_is_bounded() {
    for end in [
        "l",
        "l | tojson",
        "l | pprint",
        "l | upper",
        "[l] | join",
        "'x' | replace(l, 'y')",
        "'%s' | format(l)",
        "'{}'.format(l)",
    ] {
        is_refused(&doubled("['x' * 1000]", "[l, l]", end));
    }
}

#[test]
fn no_width_or_margin_is_free() {
    for source in [
        "{{ '{:>9999999999}'.format('x') }}",
        "{{ '{0:.99999999}'.format(1.5) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '%.999999999f' % 1 }}",
        "{{ '%*d' % (999999999, 1) }}",
        "{{ '%999999999d' | format(1) }}",
        "{{ ('x\\n' * 1000000) | indent('y' * 10000) }}",
        "{{ ('x ' * 30000000).split() | length }}",
        "{{ ('x ' * 30000000).rsplit(' ') | length }}",
    ] {
        is_refused(source);
    }
    // Only a width is a width.
    assert_eq!(
        render("{{ 'of 100000 {{200000}} {}'.format(300000) }}").unwrap(),
        "of 100000 {200000} 300000"
    );
}

#[test]
fn long_sums_stay_flat() {
    let sum = format!("{{{{ 1{} }}}}", " + 1".repeat(2000));
    assert_eq!(render(&sum).unwrap(), "2001");
    let text = format!("{{{{ 'a'{} | length }}}}", " ~ 'b'".repeat(2000));
    assert_eq!(render(&text).unwrap().len(), 2001);
}
