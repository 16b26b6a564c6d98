//! The part of a model that one of several devices has where they share every layer.
//!
//! Projections to heads and features are cut by what they give, those back to the hidden size by what they take: what the
//! latter give is summed over the devices. The head is cut by the vocabulary. Norms and the embedding every device has
//! whole.

use super::{Attention, Dense, FeedForward, Layer, Linear, Network, Transformer};
use crate::Error;
use graph::{Cut, WeightInfo};

/// A weight of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightCut {
    /// Its name in graphs.
    pub name: String,
    /// The tensor of the file that it is cut from: another one where the head is the embedding, which is needed whole.
    pub tensor: String,
    /// The part.
    pub cut: Cut,
}

/// The name of a head of its own.
const HEAD: &str = "output.weight";

/// Cuts weights for a number of devices, and notes how.
struct Cutter {
    devices: usize,
    cuts: Vec<WeightCut>,
}

impl Transformer {
    /// The part of one of so many devices, and how the weights in it are cut. Weights that are not listed are whole.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a model that so many devices cannot share.
    pub(crate) fn shard(&self, devices: usize) -> Result<(Transformer, Vec<WeightCut>), Error> {
        let mut cutter = Cutter { devices, cuts: Vec::new() };
        let layers = self.layers.iter().enumerate().map(|(il, layer)| {
            Ok(Layer {
                attention: cutter.attention(il, &layer.attention)?,
                feed_forward: cutter.feed_forward(il, &layer.feed_forward)?,
            })
        });
        let layers = layers.collect::<Result<_, Error>>()?;
        let tensor = self.output.weight.name.clone();
        let mut head = self.output.clone();
        if tensor == self.embedding.name {
            head.weight.name = HEAD.into();
        }
        let output = cutter.by_rows(&head, self.output.weight.rows.div_ceil(devices.max(1)));
        for cut in cutter.cuts.iter_mut().filter(|cut| cut.name == output.weight.name) {
            cut.tensor.clone_from(&tensor);
        }
        Ok((Transformer { layers, output, ..self.clone() }, cutter.cuts))
    }
}

impl Cutter {
    fn unsupported(&self, il: usize, what: &str) -> Error {
        let what =
            format!("layer {il}: {what}, which {} devices cannot share (tensor parallel)", self.devices);
        Error::Unsupported { what }
    }

    fn attention(&mut self, il: usize, whole: &Attention) -> Result<Attention, Error> {
        let (heads, kv_heads) = (whole.heads, whole.kv_heads);
        if self.devices == 0 || !kv_heads.is_multiple_of(self.devices) {
            return Err(self.unsupported(il, &format!("{heads} heads over {kv_heads} KV heads")));
        }
        let (heads, kv_heads) = (heads / self.devices, kv_heads / self.devices);
        let [q, k, v] = &whole.qkv;
        let values = heads * whole.value_dim;
        let gate = whole.gate.as_ref().map(|gate| self.by_rows(gate, values));
        let sinks = whole.sinks.as_ref().map(|sinks| {
            self.note(sinks, Cut::Cols(heads));
            WeightInfo { rows: 1, cols: heads, ..sinks.clone() }
        });
        Ok(Attention {
            qkv: [
                self.by_rows(q, heads * whole.head_dim),
                self.by_rows(k, kv_heads * whole.head_dim),
                self.by_rows(v, kv_heads * whole.value_dim),
            ],
            gate,
            sinks,
            output: self.by_cols(il, &whole.output, values)?,
            heads,
            kv_heads,
            ..whole.clone()
        })
    }

    fn feed_forward(&mut self, il: usize, whole: &FeedForward) -> Result<FeedForward, Error> {
        let Network::Dense(dense) = &whole.network else {
            return Err(self.unsupported(il, "a mixture of experts"));
        };
        // Whole blocks of the projection back: the last device can have fewer features, and zeros after them.
        let block = dense.down.weight.format.block_len();
        let features = dense.down.weight.cols.div_ceil(block).div_ceil(self.devices.max(1)) * block;
        let network = Network::Dense(Box::new(Dense {
            gate: self.by_rows(&dense.gate, features),
            up: self.by_rows(&dense.up, features),
            down: self.by_cols(il, &dense.down, features)?,
        }));
        Ok(FeedForward { network, ..whole.clone() })
    }

    fn note(&mut self, weight: &WeightInfo, cut: Cut) {
        self.cuts.push(WeightCut { name: weight.name.clone(), tensor: weight.name.clone(), cut });
    }

    /// A projection to so many of the features.
    fn by_rows(&mut self, whole: &Linear, rows: usize) -> Linear {
        self.note(&whole.weight, Cut::Rows(rows));
        let bias = whole.bias.as_ref().map(|bias| {
            self.note(bias, Cut::Cols(rows));
            WeightInfo { rows: 1, cols: rows, ..bias.clone() }
        });
        Linear { weight: WeightInfo { rows, ..whole.weight.clone() }, bias }
    }

    /// A projection from so many of the features. The bias is added once.
    fn by_cols(&mut self, il: usize, whole: &Linear, cols: usize) -> Result<Linear, Error> {
        let WeightInfo { format, name, .. } = &whole.weight;
        if format.row_bytes(cols).is_none() {
            let block = format.block_len();
            let what = format!("'{name}' in blocks of {block}, {cols} columns for each");
            return Err(self.unsupported(il, &what));
        }
        self.note(&whole.weight, Cut::Cols(cols));
        if let Some(bias) = &whole.bias {
            self.note(bias, Cut::First);
        }
        Ok(Linear { weight: WeightInfo { cols, ..whole.weight.clone() }, bias: whole.bias.clone() })
    }
}
