//! The backend on the simulator: splits, recording, submission.

use cpu::{CpuBackend, CpuOptions};
use graph::ops::GetRows;
use graph::{
    Batch, CacheParams, DType, GraphBuilder, GraphParams, InputKind, Op, Participation, Scheduler,
    WeightData, WeightInfo,
};
use metal::{MetalBackend, MetalOptions, Switches, TIMEOUT};
use metal_sim::device::SimDevice;
use quant::Format;

const NAME: &str = "metal-sim";

fn start() -> MetalBackend<SimDevice> {
    let device = SimDevice::from_environment().expect("clang is installed");
    MetalBackend::new(device, MetalOptions { name: NAME, timeout: TIMEOUT, switches: Switches::default() })
        .expect("the kernels compile")
}

fn params(tokens: usize) -> GraphParams {
    GraphParams {
        tokens,
        outputs: tokens,
        sequences: 1,
        max_pages: 1,
        cache: CacheParams { key: DType::F32, value: DType::F32, page_len: 16, pages: vec![1] },
        participation: Participation { accelerators: vec![NAME.into()], layers: None },
        fuse_qkv: false,
        fuse_ffn: false,
    }
}

#[test]
fn a_graph_runs_and_gives_what_its_operations_say() {
    let (rows, cols) = (5, 33);
    let cpu = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let mut scheduler = Scheduler::new(vec![Box::new(start()), Box::new(cpu)]);
    let table: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let bytes: Vec<u8> = table.iter().flat_map(|x| x.to_le_bytes()).collect();
    let data = WeightData { format: Format::F32, rows, cols, bytes: bytes.into(), release: None };
    scheduler.register_weight("table", data).unwrap();
    let info = WeightInfo { name: "table".into(), format: Format::F32, rows, cols };
    let build = |params: &GraphParams| {
        let mut b = GraphBuilder::new(params, vec![]);
        let table = Some(b.weight(&info));
        let tokens = b.input(InputKind::Tokens);
        let x = b.op("rows", Op::GetRows(GetRows { table }), &[tokens])?;
        let x = b.op("doubled", Op::Scale(2.0), &[x])?;
        let x = b.op("halved", Op::Scale(0.25), &[x])?;
        Ok(b.finish(&[x]))
    };
    scheduler.prepare(&params(2), build).unwrap();
    let batch = Batch { tokens: vec![4, 1], ..Batch::default() };
    scheduler.run(&batch).unwrap();
    let mut found = vec![0.0; 2 * cols];
    scheduler.read_output(0, 0..2, &mut found).unwrap();
    let expected: Vec<f32> =
        [4, 1].iter().flat_map(|row| (0..cols).map(move |c| (row * cols + c) as f32 / 2.0)).collect();
    assert_eq!(found, expected);
}
