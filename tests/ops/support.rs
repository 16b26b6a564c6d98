//! What backends refuse at build time.

use crate::harness::*;
use graph::ops::{Attention, ClampedSwiGlu, ExpertMatMul, GetRows, KvLoad, MatMul, TopK};
use graph::{DType, Op, OpQuery, Shape, StatePart, WeightId, WeightInfo};
use quant::Format;

fn query<'q>(op: &'q Op, inputs: &'q [DType], weights: &'q [&'q WeightInfo]) -> OpQuery<'q> {
    OpQuery { op, output: DType::F32, shape: Shape::new(1, 1), inputs, weights, state: None }
}

#[test]
fn every_format_but_the_activations_own() {
    for tested in backends() {
        for format in Format::ALL {
            let info = WeightInfo { name: "w".into(), format, rows: 256, cols: 256 };
            let matmul = Op::MatMul(MatMul { weight: WeightId(0), bias: None, logits: false });
            let supported = tested.backend.supports_op(&query(&matmul, &[DType::F32], &[&info]));
            assert_eq!(supported, format != Format::Q8_K || tested.is_metal(), "{} {format}", tested.name);
            let rows = Op::GetRows(GetRows { table: Some(WeightId(0)) });
            assert!(tested.backend.supports_op(&query(&rows, &[DType::I32], &[&info])), "{format}");
        }
    }
}

/// What a backend has is what the harness tests it for.
#[test]
fn operations_that_some_backends_lack() {
    let matrix = WeightInfo { name: "w".into(), format: Format::MXFP4, rows: 64, cols: 64 };
    let vector = WeightInfo { name: "s".into(), format: Format::F32, rows: 1, cols: 2 };
    let spec = kv_state(8, 128, 128, DType::F16);
    let attention = crate::attention::attention(2, 2, 64, None);
    let (floats, chosen) = ([DType::F32; 2], [DType::F32, DType::I32]);
    let of_attention = [DType::F32, DType::F32, DType::I32, DType::I32, DType::I32, DType::I32];
    let expert = ExpertMatMul { weight: WeightId(0), bias: None, experts: 4, used: 2 };
    let cases: [(&str, Op, &[DType], &[&WeightInfo]); 6] = [
        ("ClampedSwiGlu", Op::ClampedSwiGlu(ClampedSwiGlu { alpha: 1.0, limit: 1.0 }), &floats, &[]),
        ("TopK", Op::TopK(TopK { k: 1 }), &[DType::F32], &[]),
        ("GatherCols", Op::GatherCols, &chosen, &[]),
        ("ExpertMatMul", Op::ExpertMatMul(expert), &chosen, &[&matrix]),
        ("CombineExperts", Op::CombineExperts, &floats, &[]),
        (
            SINKS,
            Op::Attention(Attention { sinks: Some(WeightId(0)), ..attention }),
            &of_attention,
            &[&vector],
        ),
    ];
    for tested in backends() {
        for (name, op, inputs, weights) in &cases {
            let output = if matches!(op, Op::TopK(_)) { DType::I32 } else { DType::F32 };
            let state = matches!(op, Op::Attention(_)).then_some(&spec);
            let found = tested.backend.supports_op(&OpQuery { output, state, ..query(op, inputs, weights) });
            assert_eq!(found, tested.has(name), "{} {name}", tested.name);
        }
    }
}

#[test]
fn types_that_no_kernel_has_are_refused() {
    for tested in backends() {
        let supports = |query: OpQuery<'_>| tested.backend.supports_op(&query);
        assert!(supports(query(&Op::Add, &[DType::F32, DType::F32], &[])));
        assert!(!supports(query(&Op::Add, &[DType::F32, DType::F16], &[])));
        assert!(!supports(OpQuery { output: DType::F16, ..query(&Op::Add, &[DType::F32, DType::F32], &[]) }));

        let matrix = WeightInfo { name: "w".into(), format: Format::Q4_0, rows: 8, cols: 32 };
        let bias = WeightInfo { name: "b".into(), format: Format::Q8_0, rows: 1, cols: 8 };
        let matmul = Op::MatMul(MatMul { weight: WeightId(0), bias: Some(WeightId(1)), logits: false });
        assert!(!supports(query(&matmul, &[DType::F32], &[&matrix, &bias])), "a quantised bias");

        let load = Op::KvLoad(KvLoad { layer: 0, part: StatePart::Key });
        let inputs = [DType::F32, DType::I32];
        for (dtype, expected) in [
            (DType::F16, true),
            (DType::Packed(Format::Q8_0), true),
            (DType::Packed(Format::Q4_0), false),
            (DType::I32, false),
        ] {
            let spec = kv_state(8, 64, 64, dtype);
            assert_eq!(
                supports(OpQuery { state: Some(&spec), ..query(&load, &inputs, &[]) }),
                expected,
                "{dtype}"
            );
        }
        assert!(!supports(query(&load, &inputs, &[])), "no state");
        let attention = Op::Attention(crate::attention::attention(2, 2, 80, None));
        let spec = kv_state(8, 160, 160, DType::Packed(Format::Q8_0));
        let found = supports(OpQuery { state: Some(&spec), ..query(&attention, &[DType::F32; 2], &[]) });
        // Metal's kernels take elements by fours, wherever blocks begin.
        assert_eq!(found, tested.is_metal(), "blocks of 32 across heads of 80: {}", tested.name);
    }
}
