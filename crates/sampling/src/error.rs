use std::fmt;

/// What can go wrong while a sampler is made or used.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A parameter is outside of its range.
    Parameter {
        /// The field of [`SamplerParams`](crate::SamplerParams).
        name: &'static str,
        /// The value that was given.
        value: f32,
        /// The accepted range, in words.
        expected: &'static str,
    },
    /// A bias is not a number.
    BiasNan {
        /// The token that the bias was meant for.
        id: u32,
    },
    /// A bias names a token that the vocabulary does not have.
    BiasOutOfVocab {
        /// The token that the bias was meant for.
        id: u32,
        /// How many logits there are.
        vocab: usize,
    },
    /// A log-probability was asked for a token that the vocabulary does not have.
    TokenOutOfVocab {
        /// The token asked for.
        id: u32,
        /// How many logits there are.
        vocab: usize,
    },
    /// The model produced a logit that is not a number.
    NanLogit {
        /// Token id of the first one.
        index: usize,
        /// How many logits there are.
        vocab: usize,
    },
    /// Every logit is `-inf`: no token may follow.
    NoCandidate {
        /// How many logits there are.
        vocab: usize,
    },
    /// There are no logits at all.
    EmptyLogits,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter { name, value, expected } => {
                write!(f, "sampling parameter {name} is {value}, expected {expected}")
            }
            Self::BiasNan { id } => {
                write!(f, "sampling parameter logit_bias is NaN for token {id}, expected a number")
            }
            Self::BiasOutOfVocab { id, vocab } => write!(
                f,
                "sampling parameter logit_bias names token {id}, expected an id below the vocabulary size {vocab}"
            ),
            Self::TokenOutOfVocab { id, vocab } => write!(
                f,
                "log-probability asked for token {id}, expected an id below the vocabulary size {vocab}"
            ),
            Self::NanLogit { index, vocab } => {
                write!(
                    f,
                    "the model's logits contain NaN, first at token {index} of {vocab}; generation cannot go on"
                )
            }
            Self::NoCandidate { vocab } => {
                write!(f, "all {vocab} logits are -inf, so no token can be chosen")
            }
            Self::EmptyLogits => {
                write!(f, "the row of logits is empty, expected one per token of the vocabulary")
            }
        }
    }
}

impl std::error::Error for Error {}
