//! Every check of the Metal backend before a launch: operands that do not fit their node are refused by name, and no kernel
//! sees them. The graph's builder lets none of these through; a plan with a fault would.

use crate::harness::*;
use graph::ops::{
    Activation, BatchMatMul, ClampedSwiGlu, ExpertMatMul, FusedFfn, FusedQkv, GetRows, KvLoad, KvStore,
    MatMul, Permute, QkNorm, QkvBiasRopeStore, RmsNorm, Rope, RopeStyle, Softmax, TopK, View,
};
use graph::{Backend, BackendError, DType, GroupId, InputKind, NodeId, Op, Shape, StatePart, StateSpec};
use metal::device::{Limits, Size};
use metal::{MetalBackend, Switches};
use metal_sim::device::{Settings, SimDevice};
use metal_sim::profile::Profile;
use quant::Format;

const STORE: KvStore = KvStore { layer: 0, group: GroupId(0) };

/// Of two rows.
fn two(cols: usize) -> Shape {
    Shape::new(2, cols)
}

/// Runs a node whose operands were changed; it is refused for `what`.
#[track_caller]
fn refused(
    backend: &mut dyn Backend,
    state: Option<StateSpec>,
    what: &str,
    bend: Option<Bend>,
    node: impl FnOnce(&mut Case<'_>) -> (Op, Vec<NodeId>),
) {
    let mut case = match state {
        Some(spec) => Case::with_state(backend, &params(2), spec),
        None => Case::new(backend, &params(2)),
    };
    (case.bend, case.unclaimed) = (bend, true);
    let (op, inputs) = node(&mut case);
    let name = op.name();
    match case.try_run(op, &inputs) {
        Err(BackendError::Invariant { what: found, .. }) => assert_eq!(found, what, "{name}"),
        other => panic!("{name}: expected to be refused for '{what}', found {other:?}"),
    }
}

/// The largest number of rows or columns is two, four or eight, so that all fit.
fn input(case: &mut Case<'_>, shape: Shape) -> NodeId {
    case.floats(shape, &vec![0.5; shape.elements()])
}

#[test]
fn operands_of_elementwise_operations() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let shorter: Bend = |_, y| y.shape = Shape::new(1, 8);
    for op in [
        Op::Scale(2.0),
        Op::SoftCap(3.0),
        Op::Activation(Activation::Silu),
        Op::Softmax(Softmax { scale: 1.0 }),
        Op::RmsNorm(RmsNorm { weight: None, epsilon: 1e-5 }),
        Op::Permute(Permute { heads: 2 }),
    ] {
        refused(backend, None, "elements of the result", Some(shorter), |case| {
            (op, vec![input(case, two(8))])
        });
    }
    refused(backend, None, "soft cap", None, |case| (Op::SoftCap(-1.0), vec![input(case, two(8))]));
    let clamped = Op::ClampedSwiGlu(ClampedSwiGlu { alpha: 1.7, limit: 7.0 });
    for op in [Op::Add, Op::Mul, Op::Gated(Activation::Gelu), clamped] {
        let pair = |case: &mut Case<'_>| vec![input(case, two(8)), input(case, two(8))];
        refused(backend, None, "elements of the result", Some(shorter), |case| (op.clone(), pair(case)));
        for bend in
            [|inputs, _| inputs[1].shape = Shape::new(4, 4), |inputs, _| inputs[1].shape = Shape::new(1, 4)]
                as [Bend; 2]
        {
            refused(backend, None, "input 1", Some(bend), |case| (op.clone(), pair(case)));
        }
    }
}

#[test]
fn operands_of_windows_and_permutations() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let view = |case: &mut Case<'_>| {
        let op = View { first_row: 1, rows: 1, first_col: 2, cols: 4 };
        (Op::View(op), vec![input(case, two(8))])
    };
    refused(backend, None, "window", Some(|inputs, _| inputs[0].shape = Shape::new(1, 8)), view);
    refused(backend, None, "window", Some(|inputs, _| inputs[0].shape = two(5)), view);
    refused(backend, None, "elements of the result", Some(|_, y| y.shape = Shape::new(1, 3)), view);
    refused(backend, None, "type of the result", Some(|_, y| y.dtype = DType::I32), view);
    let permute = |case: &mut Case<'_>| (Op::Permute(Permute { heads: 4 }), vec![input(case, two(8))]);
    let narrower: Bend = |inputs, y| (inputs[0].shape, y.shape) = (two(6), two(6));
    refused(backend, None, "columns", Some(narrower), permute);
}

#[test]
fn operands_of_norms_and_rotations() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let narrower: Bend = |inputs, y| (inputs[0].shape, y.shape) = (two(7), two(7));
    let norm = |format| {
        move |case: &mut Case<'_>| {
            let weight = case.weight("n", format, 1, 8, vec![0; format.row_bytes(8).unwrap()]);
            (Op::RmsNorm(RmsNorm { weight: Some(weight), epsilon: 1e-5 }), vec![input(case, two(8))])
        }
    };
    refused(backend, None, "elements of the norm's weight", Some(narrower), norm(Format::F32));
    refused(backend, None, "format of the norm's weight", None, norm(Format::F16));
    refused(backend, None, "columns", Some(narrower), |case| {
        let weight = case.vector("n", &[1.0; 4]);
        (Op::QkNorm(QkNorm { weight, epsilon: 1e-5, head_dim: 4 }), vec![input(case, two(8))])
    });
    let rope = |case: &mut Case<'_>| {
        let rope = Rope { head_dim: 4, style: RopeStyle::SplitHalf, table: crate::rope::table(4, 1e4, 1.0) };
        (Op::Rope(rope), vec![input(case, two(8)), case.ints(InputKind::Positions, &[0, 1])])
    };
    refused(backend, None, "columns", Some(narrower), rope);
    refused(backend, None, "positions", Some(|inputs, _| inputs[1].shape = Shape::new(1, 1)), rope);
    refused(backend, None, "shape of the result", Some(|_, y| y.shape = Shape::new(4, 4)), rope);
}

#[test]
fn operands_of_products() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let product = |bias_format: Format| {
        move |case: &mut Case<'_>| {
            let weight = case.weight("w", Format::F32, 4, 8, vec![0; 128]);
            let bytes = vec![0; bias_format.row_bytes(4).unwrap()];
            let bias = Some(case.weight("b", bias_format, 1, 4, bytes));
            (Op::MatMul(MatMul { weight, bias, logits: false }), vec![input(case, two(8))])
        }
    };
    let plain = product(Format::F32);
    refused(backend, None, "columns of the weight", Some(|inputs, _| inputs[0].shape = two(7)), plain);
    refused(backend, None, "columns of the result", Some(|_, y| y.shape = two(3)), plain);
    refused(backend, None, "columns of the result", Some(|_, y| y.shape = Shape::new(1, 8)), plain);
    refused(backend, None, "rows of the result", Some(|_, y| y.shape = Shape::new(1, 4)), plain);
    refused(backend, None, "format of the bias", None, product(Format::F16));
    let batched = |case: &mut Case<'_>| {
        let inputs = vec![input(case, Shape::new(4, 8)), input(case, Shape::new(4, 8))];
        (Op::BatchMatMul(BatchMatMul { batch: 2 }), inputs)
    };
    refused(
        backend,
        None,
        "columns of input 1",
        Some(|inputs, _| inputs[1].shape = Shape::new(4, 7)),
        batched,
    );
    for bend in
        [|inputs, _| inputs[0].shape = Shape::new(3, 8), |inputs, _| inputs[1].shape = Shape::new(3, 8)]
            as [Bend; 2]
    {
        refused(backend, None, "rows", Some(bend), batched);
    }
    let gated = |rows: [usize; 2]| {
        move |case: &mut Case<'_>| {
            let [gate, up] =
                [0, 1].map(|i| case.weight(&format!("w{i}"), Format::F32, rows[i], 8, vec![0; rows[i] * 32]));
            let op = FusedFfn { weights: [gate, up], activation: Activation::Silu };
            (Op::FusedFfn(op), vec![input(case, two(8))])
        }
    };
    refused(backend, None, "columns of the result", Some(|_, y| y.shape = two(3)), gated([4, 4]));
}

#[test]
fn operands_of_products_with_experts() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    // Two of three experts for each of two tokens.
    let product = |bias_format: Format| {
        move |case: &mut Case<'_>| {
            let weight = case.weight("w", Format::F32, 12, 8, vec![0; 384]);
            let bytes = vec![0; 3 * bias_format.row_bytes(4).unwrap()];
            let bias = Some(case.weight("b", bias_format, 3, 4, bytes));
            let inputs = vec![input(case, two(8)), case.indices(two(2), &[0, 1, 2, 0])];
            (Op::ExpertMatMul(ExpertMatMul { weight, bias, experts: 3, used: 2 }), inputs)
        }
    };
    let plain = product(Format::F32);
    refused(backend, None, "type of the indices", Some(|inputs, _| inputs[1].dtype = DType::F32), plain);
    refused(backend, None, "columns of the indices", Some(|inputs, _| inputs[1].shape = two(1)), plain);
    refused(backend, None, "columns of the weight", Some(|inputs, _| inputs[0].shape = two(7)), plain);
    refused(backend, None, "rows of the result", Some(|_, y| y.shape = Shape::new(3, 4)), plain);
    refused(backend, None, "columns of the result", Some(|_, y| y.shape = Shape::new(4, 3)), plain);
    refused(backend, None, "rows of input 0", Some(|inputs, _| inputs[0].shape = Shape::new(1, 8)), plain);
    refused(backend, None, "format of the bias", None, product(Format::F16));

    let sum =
        |case: &mut Case<'_>| (Op::CombineExperts, vec![input(case, Shape::new(4, 8)), input(case, two(2))]);
    refused(backend, None, "rows of input 0", Some(|inputs, _| inputs[0].shape = Shape::new(3, 8)), sum);
    refused(backend, None, "rows of the result", Some(|_, y| y.shape = Shape::new(1, 8)), sum);
    refused(backend, None, "columns of the result", Some(|_, y| y.shape = two(7)), sum);
}

#[test]
fn operands_of_choices() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let top = |case: &mut Case<'_>| (Op::TopK(TopK { k: 3 }), vec![input(case, two(8))]);
    refused(backend, None, "k", Some(|inputs, _| inputs[0].shape = two(2)), top);
    refused(backend, None, "type of the result", Some(|_, y| y.dtype = DType::F32), top);
    refused(backend, None, "rows of the result", Some(|_, y| y.shape = Shape::new(1, 3)), top);
    refused(backend, None, "columns of the result", Some(|_, y| y.shape = two(2)), top);
    let gather = |case: &mut Case<'_>| {
        (Op::GatherCols, vec![input(case, two(8)), case.indices(two(2), &[0, 1, 2, 0])])
    };
    refused(backend, None, "type of the columns", Some(|inputs, _| inputs[1].dtype = DType::F32), gather);
    let fewer: Bend = |inputs, y| (inputs[1].shape, y.shape) = (Shape::new(1, 2), Shape::new(1, 2));
    refused(backend, None, "rows of the columns", Some(fewer), gather);
    refused(backend, None, "shape of the result", Some(|_, y| y.shape = two(1)), gather);
}

/// What the host fills in, in place of what a router would choose.
#[test]
fn choices_that_are_not_there() {
    let mut backend = metal(Switches::default());
    for found in [-1, 8] {
        let expected = |what: &str, limit| {
            Err(BackendError::BadInput { what: what.into(), row: 1, found: found.into(), limit })
        };
        let mut case = Case::new(&mut backend, &params(2));
        let inputs = [input(&mut case, two(8)), case.ints(InputKind::Tokens, &[0, found])];
        assert_eq!(case.try_run(Op::GatherCols, &inputs), expected("column", 8));
        let mut case = Case::new(&mut backend, &params(2));
        let inputs = [input(&mut case, two(8)), case.ints(InputKind::Tokens, &[0, found])];
        let weight = case.weight("w", Format::F32, 8, 8, vec![0; 256]);
        let op = ExpertMatMul { weight, bias: None, experts: 8, used: 1 };
        assert_eq!(case.try_run(Op::ExpertMatMul(op), &inputs), expected("expert", 8));
    }
}

#[test]
fn operands_of_gathers_and_stores() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let rows = |case: &mut Case<'_>| {
        let table = Some(case.weight("t", Format::F32, 4, 8, vec![0; 128]));
        (Op::GetRows(GetRows { table }), vec![case.ints(InputKind::Tokens, &[0, 1])])
    };
    refused(backend, None, "columns of the result", Some(|_, y| y.shape = two(7)), rows);
    refused(backend, None, "indices", Some(|inputs, _| inputs[0].shape = Shape::new(1, 1)), rows);
    refused(backend, None, "type of input 0", Some(|inputs, _| inputs[0].dtype = DType::I32), |case| {
        (
            Op::GetRows(GetRows { table: None }),
            vec![input(case, two(8)), case.ints(InputKind::Tokens, &[0, 1])],
        )
    });

    let state = Some(kv_state(4, 8, 8, DType::F32));
    let store = |case: &mut Case<'_>| {
        let rows = case.ints(InputKind::CacheRows(GroupId(0)), &[0, 1]);
        (Op::KvStore(STORE), vec![input(case, two(8)), input(case, two(8)), rows])
    };
    refused(backend, state, "columns of the keys", Some(|inputs, _| inputs[0].shape = two(7)), store);
    refused(backend, state, "columns of the values", Some(|inputs, _| inputs[1].shape = two(7)), store);
    refused(
        backend,
        state,
        "rows of the values",
        Some(|inputs, _| inputs[1].shape = Shape::new(1, 8)),
        store,
    );
    refused(backend, state, "cache rows", Some(|inputs, _| inputs[2].shape = Shape::new(1, 1)), store);
    let mixed = StateSpec::Kv {
        group: GroupId(0),
        rows: 4,
        key_cols: 8,
        value_cols: 8,
        key: DType::F32,
        value: DType::F16,
    };
    refused(backend, Some(mixed), "type of the values", None, store);
}

#[test]
fn operands_of_attention() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let state = Some(kv_state(64 * 32, 8, 8, DType::F32));
    let with = |change: fn(&mut graph::ops::Attention)| {
        move |case: &mut Case<'_>| {
            let mut op = crate::attention::attention(2, 1, 8, None);
            change(&mut op);
            let queries = input(case, two(16));
            let inputs = vec![
                queries,
                queries,
                case.ints(InputKind::Positions, &[0, 1]),
                case.ints(InputKind::QueryRanges, &[0, 2]),
                case.ints(InputKind::KvLens, &[2]),
                case.ints(InputKind::PageTable(GroupId(0)), &[0]),
            ];
            (Op::Attention(op), inputs)
        }
    };
    let plain = with(|_| ());
    refused(backend, state, "columns of the queries", Some(|inputs, _| inputs[0].shape = two(15)), plain);
    refused(backend, state, "columns of the result", Some(|_, y| y.shape = two(15)), plain);
    refused(backend, state, "rows of the result", Some(|_, y| y.shape = Shape::new(1, 16)), plain);
    refused(backend, state, "positions", Some(|inputs, _| inputs[2].shape = Shape::new(1, 1)), plain);
    refused(backend, state, "query ranges", Some(|inputs, _| inputs[3].shape = Shape::new(1, 1)), plain);
    refused(backend, state, "soft cap", None, with(|op| op.soft_cap = Some(0.0)));
    refused(backend, state, "format of the sinks", None, |case| {
        let (Op::Attention(op), inputs) = plain(case) else { unreachable!("attention") };
        let sinks = Some(case.weight("sinks", Format::F16, 1, 2, vec![0; 4]));
        (Op::Attention(graph::ops::Attention { sinks, ..op }), inputs)
    });
    let wide = Some(kv_state(64, 513, 8, DType::F32));
    for (state, change) in [
        (wide, (|op| (op.heads, op.head_dim) = (1, 513)) as fn(&mut graph::ops::Attention)),
        (Some(kv_state(64, 8, 513, DType::F32)), |op| op.value_dim = 513),
    ] {
        refused(backend, state, "head dims", None, move |case| {
            let mut op = crate::attention::attention(2, 1, 8, None);
            change(&mut op);
            let queries = input(case, two(op.heads * op.head_dim));
            let inputs = vec![
                queries,
                queries,
                case.ints(InputKind::Positions, &[0, 1]),
                case.ints(InputKind::QueryRanges, &[0, 2]),
                case.ints(InputKind::KvLens, &[2]),
                case.ints(InputKind::PageTable(GroupId(0)), &[0]),
            ];
            (Op::Attention(op), inputs)
        });
    }
}

#[test]
fn pages_of_no_rows() {
    let mut backend = metal(Switches::default());
    let mut params = params(1);
    params.cache.page_len = 0;
    let mut case = Case::with_state(&mut backend, &params, kv_state(4, 8, 8, DType::F32));
    let queries = input(&mut case, Shape::new(1, 16));
    let inputs = [
        queries,
        queries,
        case.ints(InputKind::Positions, &[0]),
        case.ints(InputKind::QueryRanges, &[0, 1]),
        case.ints(InputKind::KvLens, &[1]),
        case.ints(InputKind::PageTable(GroupId(0)), &[0]),
    ];
    let error = case.try_run(Op::Attention(crate::attention::attention(2, 1, 8, None)), &inputs).unwrap_err();
    assert!(matches!(&error, BackendError::Invariant { what, .. } if what == "page length"), "{error}");
}

/// What the host fills in: positions past the pages, and ranges past the queries.
#[test]
fn indices_of_attention() {
    let mut backend = metal(Switches::default());
    for (positions, ranges, what, row, found, limit) in [
        ([0, 32], [0, 2], "position", 1, 32, 32),
        ([-1, 1], [0, 2], "position", 0, -1, 32),
        ([0, 1], [0, 3], "query range", 1, 3, 3),
        ([0, 1], [0, -1], "query range", 1, -1, 3),
        ([0, 1], [2, 1], "query range", 0, 2, 2),
        ([0, 1], [-5, 1], "query range", 0, -5, 2),
    ] {
        let mut case = Case::with_state(&mut backend, &params(2), kv_state(64 * 32, 8, 8, DType::F32));
        let queries = input(&mut case, two(16));
        let inputs = [
            queries,
            queries,
            case.ints(InputKind::Positions, &positions),
            case.ints(InputKind::QueryRanges, &ranges),
            case.ints(InputKind::KvLens, &[2]),
            case.ints(InputKind::PageTable(GroupId(0)), &[0]),
        ];
        let op = Op::Attention(crate::attention::attention(2, 1, 8, None));
        let expected = BackendError::BadInput { what: what.into(), row, found, limit };
        assert_eq!(case.try_run(op, &inputs), Err(expected));
    }
}

#[test]
fn operands_of_fused_projections() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let state = Some(kv_state(4, 8, 8, DType::F32));
    let rope = || Rope { head_dim: 8, style: RopeStyle::SplitHalf, table: crate::rope::table(8, 1e4, 1.0) };
    let whole = |norm: Format, elements: usize, rotary: usize| {
        move |case: &mut Case<'_>| {
            let weights = [16, 8, 8]
                .map(|rows| case.weight(&format!("w{rows}"), Format::F32, rows, 8, vec![0; rows * 32]));
            let bytes = vec![0; norm.row_bytes(elements).unwrap()];
            let norms = [0, 1].map(|i| case.weight(&format!("n{i}"), norm, 1, elements, bytes.clone()));
            let table = crate::rope::table(rotary, 1e4, 1.0);
            let op = FusedQkv {
                weights,
                biases: None,
                norms: Some((norms, 1e-5)),
                rope: Some(Rope { table, ..rope() }),
                store: STORE,
            };
            let inputs = vec![
                input(case, two(8)),
                case.ints(InputKind::Positions, &[0, 1]),
                case.ints(InputKind::CacheRows(GroupId(0)), &[0, 1]),
            ];
            (Op::FusedQkv(op), inputs)
        }
    };
    let plain = whole(Format::F32, 8, 8);
    refused(backend, state, "columns of the weight", Some(|inputs, _| inputs[0].shape = two(7)), plain);
    refused(backend, state, "columns of the products", Some(|_, y| y.shape = two(8)), plain);
    refused(backend, state, "columns of query, key and value", Some(|_, y| y.shape = two(15)), plain);
    refused(backend, state, "rows of the result", Some(|_, y| y.shape = Shape::new(1, 16)), plain);
    refused(backend, state, "positions", Some(|inputs, _| inputs[1].shape = Shape::new(1, 1)), plain);
    refused(backend, state, "cache rows", Some(|inputs, _| inputs[2].shape = Shape::new(1, 1)), plain);
    refused(backend, state, "format of the norm's weight", None, whole(Format::F16, 8, 8));
    refused(backend, state, "elements of the norm's weight", None, whole(Format::F32, 4, 8));
    refused(backend, state, "rotated elements", None, whole(Format::F32, 8, 16));

    let finish = |bias: Format, positions: [i32; 2], rows: [i32; 2]| {
        move |case: &mut Case<'_>| {
            let biases = [16, 8, 8].map(|cols| {
                case.weight(&format!("b{cols}"), bias, 1, cols, vec![0; bias.row_bytes(cols).unwrap()])
            });
            let op =
                QkvBiasRopeStore { query_cols: 16, biases: Some(biases), rope: Some(rope()), store: STORE };
            let inputs = vec![
                input(case, two(32)),
                case.ints(InputKind::Positions, &positions),
                case.ints(InputKind::CacheRows(GroupId(0)), &rows),
            ];
            (Op::QkvBiasRopeStore(op), inputs)
        }
    };
    let plain = finish(Format::F32, [0, 1], [0, 1]);
    refused(backend, state, "columns of the result", Some(|_, y| y.shape = two(8)), plain);
    refused(backend, state, "columns of the products", Some(|inputs, _| inputs[0].shape = two(31)), plain);
    refused(backend, state, "format of the bias", None, finish(Format::F16, [0, 1], [0, 1]));
    for (position, row, what, limit) in
        [(-1, 1, "position", i64::from(i32::MAX)), (1, 4, "cache row", 4), (1, -1, "cache row", 4)]
    {
        let spec = kv_state(4, 8, 8, DType::F32);
        let mut case = Case::with_state(backend, &params(2), spec);
        let (op, inputs) = finish(Format::F32, [0, position], [0, row])(&mut case);
        let found = i64::from(if what == "position" { position } else { row });
        let expected = BackendError::BadInput { what: what.into(), row: 1, found, limit };
        assert_eq!(case.try_run(op, &inputs), Err(expected));
    }
}

#[test]
fn rows_that_are_not_there() {
    let mut backend = metal(Switches::default());
    for row in [-1, 2] {
        let mut case = Case::new(&mut backend, &params(2));
        let inputs = [input(&mut case, two(8)), case.ints(InputKind::Tokens, &[0, row])];
        let expected =
            BackendError::BadInput { what: "token".into(), row: 1, found: i64::from(row), limit: 2 };
        assert_eq!(case.try_run(Op::GetRows(GetRows { table: None }), &inputs), Err(expected));
    }
    for row in [-1, 4] {
        let mut case = Case::with_state(&mut backend, &params(2), kv_state(4, 8, 8, DType::F32));
        let x = input(&mut case, two(8));
        let rows = case.ints(InputKind::CacheRows(GroupId(0)), &[0, row]);
        let op = Op::KvLoad(KvLoad { layer: 0, part: StatePart::Key });
        let expected =
            BackendError::BadInput { what: "cache row".into(), row: 1, found: i64::from(row), limit: 4 };
        assert_eq!(case.try_run(op, &[x, rows]), Err(expected));
    }
}

/// A result over an input that is not exactly there, or that the operation still reads.
#[test]
fn results_over_inputs() {
    let mut backend = metal(Switches::default());
    let backend: &mut dyn Backend = &mut backend;
    let add = |case: &mut Case<'_>| (Op::Add, vec![input(case, two(8)), input(case, two(8))]);
    for (bend, refuse) in [
        ((|inputs, y| *y = inputs[0]) as Bend, false),
        // Of another size.
        (
            |inputs, y| {
                *y = inputs[0];
                y.shape = Shape::new(1, 8);
            },
            true,
        ),
        // One float further on, and one before.
        (
            |inputs, y| {
                (y.buffer, y.offset, inputs[0].shape, inputs[1].shape, y.shape) =
                    (inputs[0].buffer, 68, two(7), two(7), two(7))
            },
            true,
        ),
        (|inputs, y| (y.buffer, y.offset) = (inputs[0].buffer, 60), true),
        // Behind it, where nothing is of it.
        (
            |inputs, y| {
                (inputs[0].shape, inputs[1].shape, y.shape) =
                    (Shape::new(1, 8), Shape::new(1, 8), Shape::new(1, 8));
                (y.buffer, y.offset) = (inputs[0].buffer, 96);
            },
            false,
        ),
        (
            |inputs, y| {
                (inputs[0].shape, inputs[1].shape, y.shape) =
                    (Shape::new(1, 8), Shape::new(1, 8), Shape::new(1, 8));
                (y.buffer, y.offset) = (inputs[0].buffer, 32);
            },
            false,
        ),
    ] {
        if refuse {
            refused(backend, None, "output", Some(bend), add);
        } else {
            let mut case = Case::new(backend, &params(2));
            case.bend = Some(bend);
            let (op, inputs) = add(&mut case);
            case.try_run(op, &inputs).unwrap();
        }
    }
}

/// A device that has less than any Mac.
fn smaller(change: impl FnOnce(&mut Limits)) -> MetalBackend<SimDevice> {
    let mut profile = Profile::default();
    change(&mut profile.limits);
    metal_on(SimDevice::new(profile, Settings::default()).unwrap(), METAL, Switches::default())
}

/// Nine tokens, so that tiles serve, whose threadgroup memory is given at the launch.
fn tiled(case: &mut Case<'_>) -> (Op, Vec<NodeId>) {
    let weight = case.weight("w", Format::F16, 4, 32, vec![0; 256]);
    (Op::MatMul(MatMul { weight, bias: None, logits: false }), vec![input(case, Shape::new(9, 32))])
}

#[test]
fn a_launch_past_a_limit_of_the_device_is_refused_before_it() {
    let scale = |case: &mut Case<'_>| (Op::Scale(2.0), vec![input(case, Shape::new(9, 256))]);
    let product = |case: &mut Case<'_>| {
        let weight = case.weight("w", Format::F32, 4, 8, vec![0; 128]);
        (Op::MatMul(MatMul { weight, bias: None, logits: false }), vec![input(case, two(8))])
    };
    type Node = fn(&mut Case<'_>) -> (Op, Vec<NodeId>);
    type Change = fn(&mut Limits);
    let cases: [(Change, Node, &str); 6] = [
        (
            |limits| limits.max_threadgroup_size = Size::new(16, 1024, 1024),
            scale,
            "threadgroup of 256x1x1 threads",
        ),
        (|limits| limits.max_inline_bytes = 16, scale, "16"),
        // The arguments, and then a buffer.
        (|limits| limits.buffer_slots = 2, scale, "slot 2"),
        (|limits| limits.buffer_slots = 5, product, "slot 5"),
        (|limits| limits.max_threadgroup_memory = 4096, tiled, "8192 bytes of threadgroup memory"),
        (|limits| limits.threadgroup_slots = 0, tiled, "slot 0"),
    ];
    for (change, node, expected) in cases {
        let mut backend = smaller(change);
        let mut case = Case::new(&mut backend, &params(9));
        let (op, inputs) = node(&mut case);
        match case.try_run(op, &inputs) {
            Err(BackendError::Invariant { what, found, .. }) => {
                assert!(
                    what.starts_with("dispatch of kernel '") && found.contains(expected),
                    "{what}: {found}"
                );
            }
            other => panic!("expected to be refused for '{expected}', found {other:?}"),
        }
    }
}

#[test]
fn threadgroup_memory_is_rounded_to_what_the_device_hands_out() {
    let mut backend = smaller(|limits| limits.threadgroup_memory_alignment = 3 << 12);
    let mut case = Case::new(&mut backend, &params(9));
    let (op, inputs) = tiled(&mut case);
    assert_eq!(case.try_run(op, &inputs).unwrap(), vec![0.0; 36]);
}

#[test]
fn a_dispatch_of_nothing_is_none() {
    let mut backend = metal(Switches::default());
    let before = backend.counts().dispatches;
    let mut case = Case::new(&mut backend, &params(2));
    case.bend = Some(|inputs, y| (inputs[0].shape, y.shape) = (Shape::new(0, 8), Shape::new(0, 8)));
    let x = input(&mut case, two(8));
    case.try_run(Op::Scale(2.0), &[x]).unwrap();
    assert_eq!(backend.counts().dispatches, before);
}
