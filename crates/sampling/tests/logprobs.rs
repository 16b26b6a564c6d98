//! Log-probabilities of the model's own distribution.

use sampling::{LogProbs, log_prob_of, log_probs};

#[test]
fn values_match_a_direct_computation() {
    let row: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 4999) as f32 / 300.0 - 4.0).collect();
    let lse = row.iter().map(|&l| f64::from(l).exp()).sum::<f64>().ln();
    let scored = LogProbs::new(&row).unwrap();
    for id in [0u32, 17, 4999] {
        assert!((scored.of(id).unwrap() - (f64::from(row[id as usize]) - lse)).abs() < 1e-12);
        assert_eq!(scored.of(id).unwrap(), log_prob_of(&row, id).unwrap());
    }
    let total: f64 = log_probs(&row, row.len()).unwrap().iter().map(|t| t.log_prob.exp()).sum();
    assert!((total - 1.0).abs() < 1e-12, "{total}");
}

#[test]
fn top_is_highest_first_and_lowest_id_first_on_ties() {
    let top = log_probs(&[1.0, 3.0, 2.0, 3.0, -1.0], 4).unwrap();
    assert_eq!(top.iter().map(|t| t.id).collect::<Vec<_>>(), [1, 3, 2, 0]);
    assert_eq!(top[0].log_prob, top[1].log_prob);
    assert!(top[1].log_prob > top[2].log_prob && top[2].log_prob > top[3].log_prob);
    assert!(log_probs(&[1.0, 2.0], 0).unwrap().is_empty());
    assert_eq!(log_probs(&[1.0, 2.0], 99).unwrap().len(), 2);
}

#[test]
fn huge_logits_do_not_overflow() {
    let row = [1e30f32, 1e30, -1e30];
    assert!((log_prob_of(&row, 0).unwrap() + std::f64::consts::LN_2).abs() < 1e-15);
    assert!(log_prob_of(&row, 2).unwrap() < -1e29);
    let low = [-1e30f32, -1e30];
    assert!((log_prob_of(&low, 1).unwrap() + std::f64::consts::LN_2).abs() < 1e-15);
}

#[test]
fn infinities() {
    let inf = f32::INFINITY;
    let row = [0.0, inf, -inf, inf];
    assert!((log_prob_of(&row, 1).unwrap() + std::f64::consts::LN_2).abs() < 1e-15);
    assert_eq!(log_prob_of(&row, 0).unwrap(), f64::NEG_INFINITY);
    assert_eq!(log_probs(&row, 4).unwrap().len(), 2, "tokens of probability 0 are left out");
    assert_eq!(log_probs(&[0.0, -inf], 2).unwrap().len(), 1);
    assert_eq!(log_prob_of(&[0.0, -inf], 1).unwrap(), f64::NEG_INFINITY);
}

#[test]
fn a_certain_token_has_log_probability_zero() {
    let p = log_prob_of(&[5.0], 0).unwrap();
    assert_eq!(p, 0.0);
    assert!(p.is_sign_positive(), "printed as 0, not as -0");
}
