//! What the lexer of a grammar takes, counted before it is made: making it cannot be interrupted.

use crate::Error;
use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::{ExprRef, RegexBuilder};

/// Most alternatives of all expressions of a lexer together. A chain of parts each of which may be left out has half the
/// square of its length, so this allows two thousand of them.
const MAX_WORK: u64 = 2_000_000;

/// Refuses the expressions of a lexer if they take too long.
///
/// # Errors
/// [`Error::TooMuch`].
pub fn check_expressions(set: &ExprSet) -> Result<(), Error> {
    let work = alternatives(set);
    if work > MAX_WORK { Err(Error::TooMuch { work, most: MAX_WORK }) } else { Ok(()) }
}

/// How many alternatives there are where the derivatives of all expressions are made, each of which is to be visited.
///
/// The derivative of `ab` is `a'b`, or, where `a` may be empty, `a'b | b'`: as many alternatives as there are parts that
/// may be left out, and one. An alternation has those of all its parts; in an intersection, each of one part meets each of
/// the others (Brzozowski, "Derivatives of Regular Expressions", 1964).
fn alternatives(set: &ExprSet) -> u64 {
    // The kinds of expressions have no public names, so they are told by samples.
    let mut samples = RegexBuilder::new();
    let concatenation = samples.mk_regex("[ab]*[cd]*");
    let alternation = samples.mk_regex("[ab]*|[cd]*");
    let intersection = samples.mk_regex_and(&["[ab]*c", "a[bc]*"]);
    let bytes = samples.mk_regex("abc");
    let (Ok(concatenation), Ok(alternation), Ok(intersection), Ok(bytes)) =
        (concatenation, alternation, intersection, bytes)
    else {
        return u64::MAX;
    };
    let tag = |sample| samples.exprset().get_tag(sample);
    let [concatenation, alternation, intersection, bytes] =
        [concatenation, alternation, intersection, bytes].map(tag);
    // Parts come before what they are part of.
    let mut counts: Vec<u64> = vec![1];
    for id in 1..set.len() as u32 {
        let id = ExprRef::new(id);
        let tag = set.get_tag(id);
        let parts = || set.get_args(id).iter().map(|part| counts.get(part.as_usize()).copied().unwrap_or(1));
        let count = if tag == bytes {
            1
        } else if tag == concatenation {
            let is_optional = set.get_args(id).first().is_some_and(|&first| set.is_nullable(first));
            parts().take(if is_optional { 2 } else { 1 }).fold(0, u64::saturating_add)
        } else if tag == alternation {
            parts().fold(0, u64::saturating_add)
        } else if tag == intersection {
            parts().fold(1, u64::saturating_mul)
        } else {
            // A repetition or a negation of one part, or a byte.
            parts().fold(0, u64::saturating_add).max(1)
        };
        counts.push(count);
    }
    counts.into_iter().fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(regexes: &[&str]) -> u64 {
        let mut builder = RegexBuilder::new();
        let empty = alternatives(builder.exprset());
        builder.mk_regex_and(regexes).unwrap();
        alternatives(builder.exprset()) - empty
    }

    #[test]
    fn chains_of_optional_parts_take_the_square_of_their_length() {
        let chain = |n: usize| of(&[&"[ab]*c?".repeat(n)]);
        assert!((150_000..450_000).contains(&chain(400)), "{}", chain(400));
        assert!((15..17).contains(&(chain(400) / chain(100))));
        // What must be there ends a chain.
        assert!(of(&[&"[ab]*c?d".repeat(400)]) < 5000);
        assert!(of(&[&"abcdefgh".repeat(400)]) < 5000);
        assert!(of(&[&"[a-z]{1,9}|".repeat(400)]) < 5000);
    }

    #[test]
    fn intersections_take_the_product_of_their_parts() {
        let part = |end: char| format!("{}{end}", "[ab]*c?".repeat(5));
        let [x, y, z] = ['x', 'y', 'z'].map(part);
        assert!(of(&[&x]) < 100 && of(&[&x, &y]) < 1000);
        assert!((1000..2000).contains(&of(&[&x, &y, &z])), "{}", of(&[&x, &y, &z]));
    }
}
