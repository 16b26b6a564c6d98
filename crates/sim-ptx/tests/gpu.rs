//! On a GPU. Ignored without being asked for: scripts/test.sh asks where there is one.

use std::time::Duration;

use metal::device::*;
use sim_ptx::{PtxBuffer, PtxDevice};

const SOURCE: &str = "
#include <metal_stdlib>
using namespace metal;
constant float FACTOR [[function_constant(0)]];
kernel void scale(device float* values [[buffer(0)]], constant float& shift [[buffer(1)]],
                  uint i [[thread_position_in_grid]]) {
    values[i] = values[i] * FACTOR + shift;
}
kernel void sums(device float* values [[buffer(0)]], threadgroup float* parts [[threadgroup(0)]],
                 uint i [[thread_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                 uint group [[simdgroup_index_in_threadgroup]], uint thread_index [[thread_index_in_threadgroup]]) {
    float sum = simd_sum(values[i]);
    if (lane == 0) parts[group] = sum;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0) values[i] = parts[0] + parts[1];
}";

struct Bench {
    device: PtxDevice,
    library: sim_ptx::PtxLibrary,
    queue: sim_ptx::PtxQueue,
}

fn bench() -> Bench {
    let device = PtxDevice::first().unwrap();
    let library = device.new_library("gpu.metal", SOURCE, &CompileOptions::default()).unwrap();
    let queue = device.new_queue("test").unwrap();
    Bench { device, library, queue }
}

fn floats(buffer: &PtxBuffer) -> Vec<f32> {
    let mut bytes = vec![0; buffer.length()];
    buffer.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn dispatches_copies_and_constants() {
    let Bench { device, library, queue } = bench();
    let constants = FunctionConstants::new().set(0, ConstantValue::F32(3.0));
    let scale = device.new_pipeline(&library, "scale", &constants).unwrap();
    let (values, copy) = (device.new_buffer("values", 400).unwrap(), device.new_buffer("copy", 400).unwrap());
    values.write(0, &2f32.to_le_bytes().repeat(100)).unwrap();
    let mut command_buffer = queue.new_command_buffer("test").unwrap();
    let mut encoder = command_buffer.compute_encoder("", DispatchMode::Serial);
    encoder.set_pipeline(&scale);
    encoder.set_buffer(0, &values, 0).unwrap();
    encoder.set_bytes(1, &1f32.to_le_bytes()).unwrap();
    encoder.dispatch_threads(Size::width(70), Size::width(32)).unwrap();
    encoder.dispatch_threads(Size::width(10), Size::width(10)).unwrap();
    drop(encoder);
    command_buffer.copy(&values, 0, &copy, 40, 360).unwrap();
    command_buffer.commit().unwrap().wait(Duration::from_secs(60)).unwrap();
    let (values, copy) = (floats(&values), floats(&copy));
    assert_eq!((values[9], values[10], values[69], values[70]), (22.0, 7.0, 7.0, 2.0));
    assert_eq!((copy[9], copy[10], copy[99]), (0.0, 22.0, 2.0));
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn threadgroup_memory_and_refusals() {
    let Bench { device, library, queue } = bench();
    let sums = device.new_pipeline(&library, "sums", &FunctionConstants::new()).unwrap();
    let values = device.new_buffer("values", 4 * 128).unwrap();
    let bytes: Vec<u8> = (0..128u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    values.write(0, &bytes).unwrap();
    let mut command_buffer = queue.new_command_buffer("test").unwrap();
    let mut encoder = command_buffer.compute_encoder("", DispatchMode::Serial);
    assert_eq!(encoder.dispatch_threads(Size::width(1), Size::width(1)), Err(Error::NoPipeline));
    encoder.set_pipeline(&sums);
    encoder.set_buffer(0, &values, 0).unwrap();
    let unbound = encoder.dispatch_threadgroups(Size::width(2), Size::width(64));
    assert!(matches!(unbound, Err(Error::Unbound { .. })), "{unbound:?}");
    encoder.set_threadgroup_memory(0, 16).unwrap();
    encoder.dispatch_threadgroups(Size::width(2), Size::width(64)).unwrap();
    drop(encoder);
    command_buffer.commit().unwrap().wait(Duration::from_secs(60)).unwrap();
    let values = floats(&values);
    assert_eq!((values[0], values[64]), (2016.0, 6112.0));
    assert!(matches!(device.new_library_with_data("w", b"SIMPTX1\nx"), Err(Error::Compile { .. })));
}
