//! Attention over a paged cache: ragged batches, windows, soft caps, every cache type.

use crate::harness::*;
use graph::ops::Attention;
use graph::{Backend, BackendError, DType, GraphParams, GroupId, InputKind, Op, Shape, StatePart};
use metal::Switches;
use quant::Format;

/// A batch of sequences and what their caches hold.
#[derive(Clone)]
pub struct Scene {
    pub op: Attention,
    pub dtype: DType,
    pub page_len: usize,
    /// Keys of each sequence, its new tokens included, and how many of these there are.
    pub sequences: Vec<(usize, usize)>,
    /// Keys, values and queries of each sequence, by position.
    pub content: Vec<Content>,
    /// Physical page of each logical page; -1 for those that no query sees.
    pub pages: Vec<Vec<i32>>,
    pub physical_pages: usize,
    /// A logit for each head, where the operation has sinks.
    pub sinks: Option<Vec<f32>>,
}

/// A sequence's rows: decoded, as the cache's type holds them.
#[derive(Clone)]
pub struct Content {
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

pub fn encode(dtype: DType, x: &[f32]) -> Vec<u8> {
    match dtype {
        DType::F32 => bytemuck::cast_slice(x).to_vec(),
        DType::F16 => x.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect(),
        DType::BF16 => x.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::Packed(format) => {
            let mut bytes = vec![0; format.row_bytes(x.len()).unwrap()];
            quant::encode(format, x, &mut bytes).unwrap();
            bytes
        }
        DType::I32 => unreachable!(),
    }
}

pub fn decode(dtype: DType, bytes: &[u8], elements: usize) -> Vec<f32> {
    let format = match dtype {
        DType::F32 => Format::F32,
        DType::F16 => Format::F16,
        DType::BF16 => Format::BF16,
        DType::Packed(format) => format,
        DType::I32 => unreachable!(),
    };
    decoded(format, bytes, elements)
}

impl Scene {
    pub fn new(
        op: Attention,
        dtype: DType,
        page_len: usize,
        sequences: &[(usize, usize)],
        seed: u64,
    ) -> Scene {
        let mut random = Random::new(seed);
        let (key_cols, value_cols) = (op.kv_heads * op.head_dim, op.kv_heads * op.value_dim);
        let through = |x: Vec<f32>| decode(dtype, &encode(dtype, &x), x.len());
        let content = sequences
            .iter()
            .map(|&(len, _)| Content {
                keys: through(random.floats(len * key_cols)),
                values: through(random.floats(len * value_cols)),
                queries: random.floats(len * op.heads * op.head_dim),
            })
            .collect();
        let used: usize = sequences.iter().map(|(len, _)| len.div_ceil(page_len)).sum();
        let physical_pages = used + 2;
        // Pages lie anywhere: a shuffle.
        let mut free: Vec<i32> = (0..physical_pages as i32).collect();
        for i in (1..free.len()).rev() {
            free.swap(i, random.below(i + 1));
        }
        let mut pages = Vec::new();
        for &(len, new) in sequences {
            let first_seen = (len - new + 1).saturating_sub(op.window.unwrap_or(usize::MAX));
            let page = |logical| if (logical + 1) * page_len <= first_seen { -1 } else { free[logical] };
            let count = len.div_ceil(page_len);
            pages.push((0..count).map(page).collect());
            free.drain(..count);
        }
        let sequences = sequences.to_vec();
        Scene { op, dtype, page_len, sequences, content, pages, physical_pages, sinks: None }
    }

    pub fn params(&self) -> GraphParams {
        let mut params = params(self.sequences.iter().map(|(_, new)| new).sum());
        params.sequences = self.sequences.len();
        params.max_pages = self.pages.iter().map(Vec::len).max().unwrap();
        params.cache.page_len = self.page_len;
        params.cache.pages = vec![self.physical_pages];
        params
    }

    /// A part of the state: the visible rows, and what must not be read as NaN.
    fn state(&self, part: StatePart, cols: usize) -> Vec<u8> {
        let row_bytes = self.dtype.row_bytes(cols).unwrap();
        // All ones is a NaN in every float type, and makes the scale of a block one.
        let mut bytes = vec![0xff; self.physical_pages * self.page_len * row_bytes];
        for (content, pages) in self.content.iter().zip(&self.pages) {
            let rows = if part == StatePart::Key { &content.keys } else { &content.values };
            for (position, row) in rows.chunks(cols).enumerate() {
                let page = pages[position / self.page_len];
                if page >= 0 {
                    let at = (page as usize * self.page_len + position % self.page_len) * row_bytes;
                    bytes[at..at + row_bytes].copy_from_slice(&encode(self.dtype, row));
                }
            }
        }
        bytes
    }

    /// The new queries of all sequences, side by side.
    pub fn queries(&self) -> Vec<f32> {
        let cols = self.op.heads * self.op.head_dim;
        let pairs = self.content.iter().zip(&self.sequences);
        pairs.flat_map(|(content, (len, new))| content.queries[(len - new) * cols..].to_vec()).collect()
    }

    pub fn run(&self, backend: &mut dyn Backend) -> Result<Vec<f32>, BackendError> {
        self.timed(backend).map(|(result, _)| result)
    }

    /// The result, and how long the node ran.
    pub fn timed(&self, backend: &mut dyn Backend) -> Result<(Vec<f32>, f64), BackendError> {
        let params = self.params();
        let (key_cols, value_cols) =
            (self.op.kv_heads * self.op.head_dim, self.op.kv_heads * self.op.value_dim);
        let spec = kv_state(self.physical_pages * self.page_len, key_cols, value_cols, self.dtype);
        let mut case = Case::with_state(backend, &params, spec);
        case.set_state(StatePart::Key, &self.state(StatePart::Key, key_cols));
        case.set_state(StatePart::Value, &self.state(StatePart::Value, value_cols));
        let positions: Vec<i32> =
            self.sequences.iter().flat_map(|&(len, new)| (len - new) as i32..len as i32).collect();
        let mut ranges = vec![0];
        for (_, new) in &self.sequences {
            ranges.push(ranges.last().unwrap() + *new as i32);
        }
        let lens: Vec<i32> = self.sequences.iter().map(|(len, _)| *len as i32).collect();
        let mut table = Vec::new();
        for pages in &self.pages {
            table.extend(pages);
            table.resize(table.len().next_multiple_of(params.max_pages), -1);
        }
        let queries = self.queries();
        let queries = case.floats(Shape::new(positions.len(), self.op.heads * self.op.head_dim), &queries);
        let inputs = [
            queries,
            queries,
            case.ints(InputKind::Positions, &positions),
            case.ints(InputKind::QueryRanges, &ranges),
            case.ints(InputKind::KvLens, &lens),
            case.ints(InputKind::PageTable(GroupId(0)), &table),
        ];
        let sinks = self.sinks.as_ref().map(|sinks| case.vector("sinks", sinks));
        let op = Attention { sinks, ..self.op };
        let result = case.run_in_place(Op::Attention(op), &inputs)?;
        Ok((result, case.seconds))
    }

    pub fn reference(&self) -> Vec<f64> {
        let op = &self.op;
        let mut out = Vec::new();
        for (content, &(len, new)) in self.content.iter().zip(&self.sequences) {
            let (keys, values, queries) =
                (wide(&content.keys), wide(&content.values), wide(&content.queries));
            for position in len - new..len {
                for head in 0..op.heads {
                    let kv = head / (op.heads / op.kv_heads);
                    let query = &queries[(position * op.heads + head) * op.head_dim..][..op.head_dim];
                    let first = (position + 1).saturating_sub(op.window.unwrap_or(usize::MAX));
                    let scores: Vec<f64> = (first..=position)
                        .map(|j| {
                            let key = &keys[(j * op.kv_heads + kv) * op.head_dim..][..op.head_dim];
                            let dot: f64 = key.iter().zip(query).map(|(k, q)| k * q).sum();
                            let score = dot * f64::from(op.scale);
                            op.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
                        })
                        .collect();
                    let sink = self.sinks.as_ref().map(|sinks| f64::from(sinks[head]));
                    let all = || scores.iter().copied().chain(sink);
                    let top = all().fold(f64::MIN, f64::max);
                    let sum: f64 = all().map(|s| (s - top).exp()).sum();
                    let mut result = vec![0.0; op.value_dim];
                    for (score, j) in scores.iter().zip(first..) {
                        let value = &values[(j * op.kv_heads + kv) * op.value_dim..][..op.value_dim];
                        for (r, v) in result.iter_mut().zip(value) {
                            *r += (score - top).exp() / sum * v;
                        }
                    }
                    out.extend(result);
                }
            }
        }
        out
    }
}

/// Grouped heads of one width.
pub fn attention(heads: usize, kv_heads: usize, head_dim: usize, window: Option<usize>) -> Attention {
    Attention {
        layer: 0,
        group: GroupId(0),
        heads,
        kv_heads,
        head_dim,
        value_dim: head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
        soft_cap: None,
        sinks: None,
    }
}

/// Metal's tiled kernel rounds keys and values of a packed cache to half precision, which f16 ones are in already. That of
/// CUDA, for prompts, rounds queries and the weights of values too.
fn bound(tested: &Tested, scene: &Scene) -> f64 {
    let tokens: usize = scene.sequences.iter().map(|(_, new)| new).sum();
    match scene.dtype {
        DType::F16 | DType::Packed(_) if tested.half && tokens > scene.sequences.len() => 5e-7,
        DType::Packed(_) if !tested.is_cpu() => 2e-7,
        _ => 1e-11,
    }
}

#[test]
fn heads_windows_and_caches() {
    let sequences: [&[(usize, usize)]; 6] = [
        &[(1, 1)],
        &[(33, 33)],
        &[(300, 1)],
        &[(600, 7)],
        &[(40, 40), (513, 1), (7, 2)],
        &[(1100, 1), (3, 3)],
    ];
    for mut tested in backends() {
        for (heads, kv_heads, head_dim) in
            [(1, 1, 64), (9, 3, 64), (4, 1, 256), (14, 2, 64), (2, 2, 80), (4, 2, 128)]
        {
            for window in [None, Some(1), Some(37), Some(512)] {
                for (i, sequences) in sequences.iter().enumerate() {
                    let op = attention(heads, kv_heads, head_dim, window);
                    let types = [DType::F16, DType::F32, DType::BF16, DType::Packed(Format::Q8_0)];
                    let mut dtype = types[(i + heads) % 4];
                    if dtype.row_bytes(head_dim).is_none() {
                        dtype = DType::F16;
                    }
                    let scene = Scene::new(op, dtype, [16, 32, 7][i % 3], sequences, i as u64);
                    let what = format!("{} {op:?} {dtype} {sequences:?}", tested.name);
                    let found = scene.run(tested.backend.as_mut()).unwrap();
                    check(&what, &found, &scene.reference(), bound(&tested, &scene));
                }
            }
        }
    }
}

#[test]
fn one_new_token_for_each_sequence() {
    // Up to and past a warp's keys, a block's, and those that are shared out over blocks; and some side by side.
    let sequences: [&[(usize, usize)]; 6] =
        [&[(1, 1)], &[(18, 1)], &[(129, 1)], &[(258, 1)], &[(2100, 1)], &[(33, 1), (1, 1), (520, 1)]];
    for mut tested in backends() {
        for (i, (heads, kv_heads, head_dim, value_dim)) in
            [(7, 1, 64, 64), (6, 2, 128, 128), (10, 1, 80, 96), (2, 1, 256, 256), (2, 2, 96, 64)]
                .into_iter()
                .enumerate()
        {
            for (j, sequences) in sequences.iter().enumerate() {
                let mut op = attention(heads, kv_heads, head_dim, [None, Some(100), None][(i + j) % 3]);
                (op.value_dim, op.soft_cap) = (value_dim, [None, None, None, Some(1.5)][(i + j) % 4]);
                let scene = Scene::new(op, DType::F16, [64, 7][(i + j) % 2], sequences, (i * 8 + j) as u64);
                let found = scene.run(tested.backend.as_mut()).unwrap();
                let what = format!("{} {op:?} {sequences:?}", tested.name);
                check(&what, &found, &scene.reference(), bound(&tested, &scene));
            }
        }
    }
}

#[test]
fn every_tier_of_metal() {
    let simple = Switches { flash: false, prefill_flash: false, ..Switches::default() };
    let one_pass = Switches { prefill_flash: false, split_attention: false, ..Switches::default() };
    let split = Switches { prefill_flash: false, attention_chunks: Some(3), ..Switches::default() };
    for (tier, switches) in
        [("classic", simple), ("flash", one_pass), ("split", split), ("tiles", Switches::default())]
    {
        let mut backend = metal_on_any(switches);
        for (i, head_dim) in [64, 80, 96, 128, 192, 256].into_iter().enumerate() {
            for dtype in [DType::F32, DType::F16, DType::Packed(Format::Q8_0)] {
                let mut op = attention(4, 2, head_dim, [None, Some(13)][i % 2]);
                op.soft_cap = [None, None, Some(1.5)][i % 3];
                // Ends of tiles and of pages, one key for three splits, and a tile that is whole.
                let sequences = [(1, 1), (33, 17), (21, 2), (48, 16), (37, 37)];
                let scene = Scene::new(op, dtype, [16, 5][i % 2], &sequences, 3);
                let found = scene.run(backend.as_mut()).unwrap();
                let bound = if tier == "tiles" && matches!(dtype, DType::Packed(_)) { 2e-7 } else { 1e-11 };
                check(&format!("{tier} {op:?} {dtype}"), &found, &scene.reference(), bound);
            }
        }
    }
}

#[test]
fn soft_caps_and_narrow_values() {
    for mut tested in backends() {
        for (head_dim, value_dim) in [(64, 64), (96, 64), (20, 12)] {
            let mut op = attention(4, 2, head_dim, None);
            (op.value_dim, op.soft_cap, op.scale) = (value_dim, Some(2.5), 0.8);
            let scene = Scene::new(op, DType::F32, 16, &[(290, 3), (20, 20)], 5);
            let found = scene.run(tested.backend.as_mut()).unwrap();
            check(&tested.name, &found, &scene.reference(), 1e-11);
        }
    }
}

/// Sinks below and above all scores, over every way that a result is put together.
#[test]
fn sinks_take_part_in_the_softmax() {
    let sequences: [&[(usize, usize)]; 5] =
        [&[(1, 1)], &[(40, 40), (513, 1), (7, 2)], &[(600, 7)], &[(2100, 1)], &[(300, 1), (33, 1), (1, 1)]];
    for mut tested in backends_with(SINKS) {
        for (i, (heads, kv_heads, head_dim, value_dim)) in
            [(8, 1, 64, 64), (6, 2, 64, 64), (4, 2, 128, 128), (2, 2, 80, 80), (4, 1, 96, 64)]
                .into_iter()
                .enumerate()
        {
            for (j, sequences) in sequences.iter().enumerate() {
                let mut op = attention(heads, kv_heads, head_dim, [None, Some(128), Some(5)][(i + j) % 3]);
                op.value_dim = value_dim;
                let dtype = [DType::F16, DType::F32, DType::Packed(Format::Q8_0)][(i + j) % 3];
                let dtype = if dtype.row_bytes(head_dim).is_some() { dtype } else { DType::F16 };
                let mut scene = Scene::new(op, dtype, [64, 7][(i + j) % 2], sequences, (i * 8 + j) as u64);
                let sinks = Random::new(9).floats(heads);
                scene.sinks = Some(sinks.iter().map(|sink| [1.0, 0.1, 40.0][j % 3] * sink).collect());
                let found = scene.run(tested.backend.as_mut()).unwrap();
                let what = format!("{} {op:?} {dtype} {sequences:?}", tested.name);
                check(&what, &found, &scene.reference(), bound(&tested, &scene));
                // No sink at all.
                scene.sinks = Some(vec![f32::NEG_INFINITY; heads]);
                let found = scene.run(tested.backend.as_mut()).unwrap();
                scene.sinks = None;
                check(&what, &found, &scene.reference(), bound(&tested, &scene));
            }
        }
    }
}

/// Tiles of rows that begin and end anywhere, of every width of heads, with a window and a soft cap.
#[test]
fn prompts_of_many_widths() {
    for mut tested in backends().into_iter().filter(|tested| !tested.is_metal()) {
        for (i, (head_dim, value_dim)) in
            [(64, 64), (80, 80), (96, 64), (128, 128), (192, 128), (256, 256)].into_iter().enumerate()
        {
            for dtype in [DType::F16, DType::Packed(Format::Q8_0)] {
                if dtype.row_bytes(head_dim).is_none() {
                    continue;
                }
                let mut op = attention(7, 1, head_dim, [None, Some(50)][i % 2]);
                (op.value_dim, op.soft_cap) = (value_dim, [None, None, Some(1.5)][i % 3]);
                let sequences = [(90, 70), (1, 1), (70, 37), (9, 9)];
                let scene = Scene::new(op, dtype, [16, 7][i % 2], &sequences, 4);
                let found = scene.run(tested.backend.as_mut()).unwrap();
                check(
                    &format!("{} {op:?} {dtype}", tested.name),
                    &found,
                    &scene.reference(),
                    bound(&tested, &scene),
                );
            }
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_batch_pages_or_chunks() {
    for mut tested in backends().into_iter().filter(Tested::is_cpu) {
        // A single token reads the cache's own type, several share decoded tiles.
        for (window, dtype) in [
            (None, DType::F16),
            (Some(37), DType::F16),
            (Some(300), DType::F16),
            (None, DType::Packed(Format::Q8_0)),
        ] {
            let op = attention(6, 2, 64, window);
            let scene = Scene::new(op, dtype, 16, &[(550, 550), (70, 70)], 9);
            let all = scene.run(tested.backend.as_mut()).unwrap();
            let cols = op.heads * op.value_dim;
            for (sequence, first_row, ends) in
                [(0, 0, vec![1, 2, 255, 256, 257, 512, 550]), (1, 550, vec![33, 70])]
            {
                let mut start = 0;
                for end in ends {
                    let mut part = scene.clone();
                    part.sequences = vec![(end, end - start)];
                    let mut content = scene.content[sequence].clone();
                    content.keys.truncate(end * op.kv_heads * op.head_dim);
                    content.values.truncate(end * op.kv_heads * op.value_dim);
                    content.queries.truncate(end * op.heads * op.head_dim);
                    part.content = vec![content];
                    // Other pages, of another length.
                    part.page_len = 32;
                    part.physical_pages = end.div_ceil(32);
                    part.pages = vec![(0..part.physical_pages as i32).rev().collect()];
                    let found = part.run(tested.backend.as_mut()).unwrap();
                    let expected = &all[(first_row + start) * cols..(first_row + end) * cols];
                    assert!(
                        found == expected,
                        "{} {dtype} {window:?} {sequence} {start}..{end}",
                        tested.name
                    );
                    start = end;
                }
            }
        }
    }
}

/// Scores of minus infinity have no weight, wherever they lie; a row with nothing else, or with a NaN or plus infinity,
/// has no answer, and says so instead of giving a number. No other row is touched.
#[test]
fn scores_that_are_no_numbers() {
    for mut tested in backends().into_iter().filter(Tested::is_cpu) {
        for (heads, kv_heads, head_dim) in [(2, 2, 20), (2, 1, 64)] {
            let op = attention(heads, kv_heads, head_dim, None);
            // Three segments; the second sequence decodes a token beside the first one.
            let scene = Scene::new(op, DType::F32, 16, &[(600, 9), (40, 1)], 7);
            let (cols, rows) = (kv_heads * head_dim, heads * head_dim);
            // What the scores become where the first element of queries is positive and huge.
            let with = |positions: std::ops::Range<usize>, key: f32| {
                let mut scene = scene.clone();
                for position in 0..600 {
                    for head in 0..heads {
                        scene.content[0].queries[position * rows + head * head_dim] = 1e30;
                    }
                    for head in 0..kv_heads {
                        let first = &mut scene.content[0].keys[position * cols + head * head_dim];
                        *first = if positions.contains(&position) { key } else { 0.0 };
                    }
                }
                scene
            };
            let plain = with(0..0, 0.0);
            let expected = plain.run(tested.backend.as_mut()).unwrap();
            check(&tested.name, &expected, &plain.reference(), 1e-11);
            for hidden in [0..300, 256..512, 300..592, 3..4] {
                let what = format!("{} {op:?} {hidden:?}", tested.name);
                let some = with(hidden.clone(), -1e30);
                let found = some.run(tested.backend.as_mut()).unwrap();
                // In double precision these scores are no infinities, but have no weight either.
                check(&what, &found, &some.reference(), 1e-11);
            }
            for (bad, key) in [(0..600, -1e30), (5..6, 1e30), (550..551, f32::NAN), (0..600, f32::NAN)] {
                let found = with(bad.clone(), key).run(tested.backend.as_mut()).unwrap();
                let (first, second) = found.split_at(9 * rows);
                assert!(first.iter().all(|y| y.is_nan()), "{} {op:?} {bad:?} {key}", tested.name);
                assert!(second == &expected[9 * rows..], "{} {op:?} {bad:?} {key}", tested.name);
            }
        }
    }
}

#[test]
fn pages_that_are_not_there_are_errors() {
    for mut tested in backends() {
        let scene = Scene::new(attention(2, 1, 32, None), DType::F16, 16, &[(40, 1)], 1);
        for (page, found) in [(0, -1), (2, -7), (1, scene.physical_pages as i32), (1, i32::MAX)] {
            let mut broken = scene.clone();
            // Only the table is broken: the contents are placed by the good one.
            broken.content[0].keys.clear();
            broken.content[0].values.clear();
            broken.pages[0][page] = found;
            let error = broken.run(tested.backend.as_mut()).unwrap_err();
            let expected = BackendError::BadInput {
                what: "page table".into(),
                row: page,
                found: i64::from(found),
                limit: scene.physical_pages as i64,
            };
            assert_eq!(error, expected, "{}", tested.name);
        }
    }
}
