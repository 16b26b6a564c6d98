//! The sampler chain: temperature, truncation, penalties, log-probabilities.
