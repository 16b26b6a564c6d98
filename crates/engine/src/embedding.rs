//! From the hidden states of a text to one vector.

use crate::Error;
use gguf::Metadata;

/// Which hidden states of a text make its embedding. They are those after the last norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all tokens'.
    Mean,
    /// The first token's.
    First,
    /// The last token's, which has seen all of the text.
    Last,
}

impl Pooling {
    /// What a model's file says in `ARCHITECTURE.pooling_type`. Files of models that were not trained for embeddings
    /// say nothing, and get the mean.
    ///
    /// # Errors
    /// [`Error::Option`] for what makes no embedding of a text (`rank`) or is not known, [`Error::File`] for a value
    /// of another type.
    pub fn of_model(metadata: &Metadata) -> Result<Pooling, Error> {
        let architecture = metadata.str("general.architecture")?.unwrap_or_default();
        let key = format!("{architecture}.pooling_type");
        // The numbers are those of `gguf.PoolingType`; 0 leaves it to whoever asks.
        match metadata.u32(&key)? {
            None | Some(0 | 1) => Ok(Pooling::Mean),
            Some(2) => Ok(Pooling::First),
            Some(3) => Ok(Pooling::Last),
            Some(other) => Err(Error::Option {
                name: "pooling",
                message: format!("expected {key} to be 1 (mean), 2 (first) or 3 (last), found {other}"),
            }),
        }
    }

    /// The name, as in `gguf.PoolingType`.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
        }
    }
}

/// Takes the hidden states of a text as they come.
#[derive(Debug)]
pub(crate) struct Pooler {
    pooling: Pooling,
    /// Sums of the columns, for the mean; else the row that counts.
    columns: Vec<f64>,
    rows: usize,
}

impl Pooler {
    pub fn new(pooling: Pooling) -> Pooler {
        Pooler { pooling, columns: Vec::new(), rows: 0 }
    }

    /// How many rows at the end of the next `tokens` are wanted; `last` tells that no others follow.
    pub fn wanted(&self, tokens: usize, last: bool) -> usize {
        match self.pooling {
            Pooling::Mean => tokens,
            Pooling::First if self.rows == 0 => tokens,
            Pooling::Last if last => 1,
            Pooling::First | Pooling::Last => 0,
        }
    }

    /// Takes a row that was wanted.
    pub fn push(&mut self, row: &[f32]) {
        self.rows += 1;
        match self.pooling {
            Pooling::Mean => {
                self.columns.resize(row.len(), 0.0);
                self.columns.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
            }
            Pooling::First if self.rows > 1 => {}
            Pooling::First | Pooling::Last => self.columns = row.iter().map(|&value| value.into()).collect(),
        }
    }

    /// The embedding, of whatever length its direction has.
    pub fn finish(self) -> Result<Vec<f32>, Error> {
        let rows = if self.pooling == Pooling::Mean { self.rows.max(1) as f64 } else { 1.0 };
        let embedding: Vec<f32> = self.columns.iter().map(|&sum| (sum / rows) as f32).collect();
        match embedding.iter().position(|value| !value.is_finite()) {
            None => Ok(embedding),
            Some(column) => {
                Err(Error::NotFiniteEmbedding { column, value: embedding[column], columns: embedding.len() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of rows that are fed `chunk` at a time.
    fn pooled(pooling: Pooling, chunk: usize) -> Vec<f32> {
        let rows = [[1.0, 2.0], [3.0, 5.0], [8.0, 8.0]];
        let mut pooler = Pooler::new(pooling);
        for (index, part) in rows.chunks(chunk).enumerate() {
            let last = (index + 1) * chunk >= rows.len();
            let wanted = pooler.wanted(part.len(), last);
            part[part.len() - wanted..].iter().for_each(|row| pooler.push(row));
        }
        pooler.finish().unwrap()
    }

    #[test]
    fn each_kind_takes_its_rows_however_they_are_cut() {
        for chunk in 1..=4 {
            assert_eq!(pooled(Pooling::Mean, chunk), [4.0, 5.0]);
            assert_eq!(pooled(Pooling::First, chunk), [1.0, 2.0]);
            assert_eq!(pooled(Pooling::Last, chunk), [8.0, 8.0]);
        }
    }

    #[test]
    fn the_file_says_how_or_the_mean_is_taken() {
        let of = |value: Option<gguf::Value>| {
            let mut file = gguf::Writer::new();
            file.metadata("general.architecture", gguf::Value::String("qwen3".into()));
            if let Some(value) = value {
                file.metadata("qwen3.pooling_type", value);
            }
            Pooling::of_model(gguf::Header::parse(&file.to_bytes().unwrap()).unwrap().metadata())
        };
        let number = |number| Some(gguf::Value::U32(number));
        for (value, pooling) in [
            (None, Pooling::Mean),
            (number(0), Pooling::Mean),
            (number(1), Pooling::Mean),
            (number(2), Pooling::First),
            (number(3), Pooling::Last),
        ] {
            assert_eq!(of(value.clone()).unwrap(), pooling, "{value:?}");
        }
        let rank = of(number(4)).unwrap_err().to_string();
        assert_eq!(
            rank,
            "pooling: expected qwen3.pooling_type to be 1 (mean), 2 (first) or 3 (last), found 4"
        );
        assert!(matches!(of(Some(gguf::Value::String("mean".into()))), Err(Error::File(_))));
    }

    #[test]
    fn what_has_no_direction_is_an_error() {
        let mut pooler = Pooler::new(Pooling::Last);
        pooler.push(&[1.0, f32::NAN]);
        let error = pooler.finish().unwrap_err();
        assert!(matches!(error, Error::NotFiniteEmbedding { column: 1, columns: 2, .. }), "{error}");
        assert!(error.to_string().contains("NaN in column 1 of 2"), "{error}");
    }
}
