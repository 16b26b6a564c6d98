//! Draws follow the weights: chi-squared tests with fixed seeds.

use sampling::{Sampler, SamplerParams};

/// Draws `n` tokens and returns the chi-squared statistic against `want` (which sums to 1).
fn chi_squared(params: SamplerParams, logits: &[f32], want: &[f64], n: usize) -> f64 {
    let mut sampler = Sampler::new(params).unwrap();
    let mut counts = vec![0usize; logits.len()];
    for _ in 0..n {
        counts[sampler.sample(logits).unwrap().id as usize] += 1;
    }
    let mut sum = 0.0;
    for (&count, &p) in counts.iter().zip(want) {
        let expected = p * n as f64;
        if p == 0.0 {
            assert_eq!(count, 0);
        } else {
            sum += (count as f64 - expected).powi(2) / expected;
        }
    }
    sum
}

const P: [f64; 6] = [0.3, 0.05, 0.2, 0.25, 0.12, 0.08];

fn logits() -> Vec<f32> {
    P.iter().map(|p| p.ln() as f32 + 3.0).collect()
}

fn normalised(weights: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let weights: Vec<f64> = weights.into_iter().collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

// The 99.9 % point of chi-squared is 20.5 for 5 degrees of freedom, 13.8 for 2. The seeds are fixed, so
// a correct draw passes always and a wrong one (say, a tempered distribution) fails by thousands.

#[test]
fn the_model_distribution() {
    for seed in 0..5 {
        let params = SamplerParams { seed: Some(seed), ..SamplerParams::unmodified() };
        let x = chi_squared(params, &logits(), &P, 100_000);
        assert!(x < 20.5, "seed {seed}: {x}");
    }
}

#[test]
fn temperature_two() {
    let params = SamplerParams { seed: Some(9), temperature: 2.0, ..SamplerParams::unmodified() };
    let x = chi_squared(params, &logits(), &normalised(P.map(f64::sqrt)), 100_000);
    assert!(x < 20.5, "{x}");
}

#[test]
fn top_k_renormalises() {
    let params = SamplerParams { seed: Some(9), top_k: 3, ..SamplerParams::unmodified() };
    let x = chi_squared(params, &logits(), &normalised([0.3, 0.0, 0.2, 0.25, 0.0, 0.0]), 100_000);
    assert!(x < 13.8, "{x}");
}

#[test]
fn top_p_of_a_flat_row() {
    // 512 equal tokens: half of them, the lower ids, reach 0.5.
    let params = SamplerParams { seed: Some(9), top_p: 0.5, ..SamplerParams::unmodified() };
    let mut want = vec![1.0 / 256.0; 256];
    want.resize(512, 0.0);
    let x = chi_squared(params, &[1.5; 512], &want, 50_000);
    // 255 degrees of freedom: mean 255, standard deviation 22.6.
    assert!((x - 255.0).abs() < 3.5 * 22.6, "{x}");
}
