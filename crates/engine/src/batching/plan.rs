//! How many tokens each sequence contributes to a step.

/// For each sequence, tokens that are still to go into the cache, of which at least one; the answer is how many of
/// them go into this step, possibly none.
///
/// Sequences with one token are decoding (or as good as) and always take part. What they leave of `budget`, at least
/// one token, is for the others: equal shares, and what one does not need is for the next. `turn` says which of them
/// is first, and so who gets what cannot be shared.
pub(super) fn shares(pending: &[usize], budget: usize, turn: usize) -> Vec<usize> {
    let mut shares = vec![0; pending.len()];
    let mut prefill = Vec::new();
    let mut decoding = 0;
    for (at, &tokens) in pending.iter().enumerate() {
        if tokens == 1 {
            shares[at] = 1;
            decoding += 1;
        } else {
            prefill.push(at);
        }
    }
    if prefill.is_empty() {
        return shares;
    }
    let mut left = budget.saturating_sub(decoding).max(1);
    let first = turn % prefill.len();
    prefill.rotate_left(first);
    for (done, &at) in prefill.iter().enumerate() {
        let share = left.div_ceil(prefill.len() - done).min(pending[at]);
        shares[at] = share;
        left -= share;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn decoding_sequences_always_take_part_and_prompts_share_the_rest() {
        assert_eq!(shares(&[1, 1, 1], 2, 0), [1, 1, 1]);
        assert_eq!(shares(&[1, 500, 1], 10, 0), [1, 8, 1]);
        assert_eq!(shares(&[500, 500], 10, 0), [5, 5]);
        assert_eq!(shares(&[3, 500], 10, 0), [3, 7]);
    }

    #[test]
    fn whose_turn_it_is_gets_what_cannot_be_shared() {
        assert_eq!(shares(&[500, 500, 500], 1, 0), [1, 0, 0]);
        assert_eq!(shares(&[500, 500, 500], 1, 1), [0, 1, 0]);
        assert_eq!(shares(&[500, 500, 500], 4, 5), [1, 1, 2]);
    }

    #[test]
    fn a_prompt_goes_on_even_where_decoding_takes_all() {
        assert_eq!(shares(&[1, 1, 9], 2, 7), [1, 1, 1]);
    }
}
