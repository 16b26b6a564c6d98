//! Guessing by prompt lookup: what followed the last time that the text ended like this.

/// Longest and shortest end of the text that is looked for.
const NGRAM: std::ops::RangeInclusive<usize> = 2..=4;

/// How far back it is looked for: the search goes over this many tokens in each step.
const WINDOW: usize = 8192;

/// At most `most` tokens that may come next: those that followed the latest earlier occurrence of the longest end of
/// `tokens` that occurs.
pub(super) fn draft(tokens: &[u32], most: usize) -> &[u32] {
    let tokens = &tokens[tokens.len().saturating_sub(WINDOW)..];
    for n in NGRAM.rev() {
        if tokens.len() <= n {
            continue;
        }
        let end = &tokens[tokens.len() - n..];
        let earlier = &tokens[..tokens.len() - 1];
        if let Some(at) = earlier.windows(n).rposition(|window| window == end) {
            let from = at + n;
            return &tokens[from..tokens.len().min(from + most)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::draft;

    #[test]
    fn the_latest_occurrence_of_the_longest_end_is_continued() {
        assert_eq!(draft(&[1, 2, 3, 4, 9, 2, 3, 5, 9, 2, 3], 2), [5, 9]);
        assert_eq!(draft(&[1, 2, 3, 4, 7, 3, 4, 8, 1, 2, 3, 4], 3), [7, 3, 4]);
        assert_eq!(draft(&[6, 6, 6], 4), [6]);
    }

    #[test]
    fn text_that_never_ended_so_is_not_continued() {
        assert!(draft(&[], 4).is_empty());
        assert!(draft(&[1], 4).is_empty());
        assert!(draft(&[1, 2, 3, 4, 5], 4).is_empty());
        assert!(draft(&[1, 2, 1, 2], 0).is_empty());
    }
}
