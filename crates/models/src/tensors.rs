//! The tensors of a file: looked up by name, checked against the shape that the hyper-parameters give, and ticked
//! off, so that what nobody reads can be told.

use crate::Error;
use gguf::{File, TensorInfo};
use graph::WeightInfo;
use quant::Format;
use std::collections::{BTreeMap, HashSet};

/// Formats whose elements stand alone.
static FLOATS: [Format; 3] = [Format::F32, Format::F16, Format::BF16];

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
        self.optional_matrix(name, rows, cols)?.ok_or_else(|| missing(name))
    }

    /// A matrix that may be missing.
    pub fn optional_matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<WeightInfo>, Error> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        check_shape(info, &[cols as u64, rows as u64])?;
        Ok(Some(self.tick_off(info, rows, cols)))
    }

    /// A matrix of `rows` by `cols` for each of `count` experts, one below the other.
    pub fn stack(&mut self, name: &str, count: usize, rows: usize, cols: usize) -> Result<WeightInfo, Error> {
        let info = self.file.tensor(name).ok_or_else(|| missing(name))?;
        check_shape(info, &[cols as u64, rows as u64, count as u64])?;
        Ok(self.tick_off(info, count.saturating_mul(rows), cols))
    }

    /// `count` vectors, one below the other, that may be missing. They are not in a packed format.
    pub fn optional_vectors(
        &mut self,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<Option<WeightInfo>, Error> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        check_shape(info, &[len as u64, count as u64])?;
        check_format(info, &FLOATS)?;
        Ok(Some(self.tick_off(info, count, len)))
    }

    /// A matrix whose rows only the file knows: the embedding.
    pub fn rows_of(&mut self, name: &str, cols: usize) -> Result<WeightInfo, Error> {
        let info = self.file.tensor(name).ok_or_else(|| missing(name))?;
        let rows = usize::try_from(info.shape.get(1).copied().unwrap_or(1)).unwrap_or(usize::MAX);
        self.matrix(name, rows, cols)
    }

    /// A vector: the weights of a norm, or a bias. It is not in a packed format.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<WeightInfo, Error> {
        self.optional_vector(name, len)?.ok_or_else(|| missing(name))
    }

    /// A vector that may be missing.
    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<WeightInfo>, Error> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        check_shape(info, &[len as u64])?;
        check_format(info, &FLOATS)?;
        Ok(Some(self.tick_off(info, 1, len)))
    }

    fn tick_off(&mut self, info: &TensorInfo, rows: usize, cols: usize) -> WeightInfo {
        let weight = WeightInfo { name: info.name.clone(), format: info.format, rows, cols };
        self.read.insert(info.name.clone(), weight.clone());
        weight
    }

    /// The numbers of a small f32 vector that may be missing.
    pub fn numbers(&mut self, name: &str, len: usize) -> Result<Option<Vec<f32>>, Error> {
        let Some(info) = self.file.tensor(name) else { return Ok(None) };
        check_shape(info, &[len as u64])?;
        check_format(info, &[Format::F32])?;
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

fn missing(name: &str) -> Error {
    Error::MissingTensor { name: name.into() }
}

/// Checks a shape, innermost dimension first. Trailing dimensions of 1 say nothing.
fn check_shape(info: &TensorInfo, expected: &[u64]) -> Result<(), Error> {
    let dimension = |shape: &[u64], at: usize| shape.get(at).copied().unwrap_or(1);
    let all = info.shape.len().max(expected.len());
    if (0..all).all(|at| dimension(&info.shape, at) == dimension(expected, at)) {
        return Ok(());
    }
    Err(Error::Shape { name: info.name.clone(), found: info.shape.clone(), expected: expected.to_vec() })
}

fn check_format(info: &TensorInfo, expected: &'static [Format]) -> Result<(), Error> {
    if expected.contains(&info.format) {
        return Ok(());
    }
    Err(Error::Format { name: info.name.clone(), found: info.format, expected })
}
