//! The tensors of a file: looked up by name, checked against the shape that the hyper-parameters give, and ticked
//! off, so that what nobody reads can be told.

use crate::Error;
use gguf::File;
use graph::WeightInfo;
use quant::Format;
use std::collections::{BTreeMap, HashSet};

pub(crate) struct Tensors<'a> {
    file: &'a File,
    /// In the order of names, so that the result does not depend on the order of reading.
    read: BTreeMap<String, WeightInfo>,
    /// Read as hyper-parameters, not as weights of the graph.
    consumed: HashSet<String>,
}

impl<'a> Tensors<'a> {
    pub fn new(file: &'a File) -> Tensors<'a> {
        Tensors { file, read: BTreeMap::new(), consumed: HashSet::new() }
    }

    /// A matrix of `rows` output and `cols` input features.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightInfo, Error> {
        self.optional(name, rows, cols)?.ok_or_else(|| Error::MissingTensor { name: name.into() })
    }

    /// A matrix whose rows only the file knows: the embedding.
    pub fn rows_of(&mut self, name: &str, cols: usize) -> Result<WeightInfo, Error> {
        let info = self.file.tensor(name).ok_or_else(|| Error::MissingTensor { name: name.into() })?;
        let rows = usize::try_from(info.shape.get(1).copied().unwrap_or(1)).unwrap_or(usize::MAX);
        self.matrix(name, rows, cols)
    }

    /// A vector.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<WeightInfo, Error> {
        self.matrix(name, 1, len)
    }

    /// A vector that may be missing.
    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<WeightInfo>, Error> {
        self.optional(name, 1, len)
    }

    /// A matrix that may be missing.
    pub fn optional(&mut self, name: &str, rows: usize, cols: usize) -> Result<Option<WeightInfo>, Error> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        let expected: Vec<u64> = if rows == 1 { vec![cols as u64] } else { vec![cols as u64, rows as u64] };
        // Trailing dimensions of 1 say nothing.
        let used = info.shape.iter().rposition(|&d| d != 1).map_or(1, |last| last + 1);
        let mut found = info.shape[..used].to_vec();
        found.resize(expected.len().max(used), 1);
        if found != expected {
            return Err(Error::Shape { name: name.into(), found: info.shape.clone(), expected });
        }
        let weight = WeightInfo { name: name.into(), format: info.format, rows, cols };
        self.read.insert(name.into(), weight.clone());
        Ok(Some(weight))
    }

    /// The numbers of a small f32 vector that may be missing.
    pub fn numbers(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, Error> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        if info.shape != [len as u64] {
            return Err(Error::Shape {
                name: name.into(),
                found: info.shape.clone(),
                expected: vec![len as u64],
            });
        }
        if info.format != Format::F32 {
            return Err(Error::Unsupported {
                what: format!("tensor '{name}' of format {}, not F32", info.format),
            });
        }
        self.consumed.insert(name.into());
        let bytes = self.file.data(info);
        Ok(Some(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()))
    }

    /// All weights that were read, and the names of all tensors that were not.
    pub fn finish(self) -> (Vec<WeightInfo>, Vec<String>) {
        let unused = self.file.tensors().iter().map(|t| &t.name);
        let unused = unused.filter(|name| !self.read.contains_key(*name) && !self.consumed.contains(*name));
        let unused = unused.cloned().collect();
        (self.read.into_values().collect(), unused)
    }
}
