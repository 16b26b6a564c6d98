//! What backends refuse at build time.

use crate::harness::*;
use graph::ops::{GetRows, KvLoad, MatMul};
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
