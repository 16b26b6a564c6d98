//! Function constants without a value.

mod common;

use metal::device::*;

use common::Lab;

const SOURCE: &str = "
#include <metal_stdlib>
using namespace metal;
constant int DIRECT [[function_constant(0)]];
constant int INSIDE [[function_constant(1)]];
constant int BASE [[function_constant(2)]];
constant int DERIVED = BASE * 2;
constant int ASKED [[function_constant(3)]];
constant int CHOSEN = is_function_constant_defined(ASKED) ? ASKED : 7;
constant bool HAS_BIAS [[function_constant(4)]];
static int inside(int x) { return x + INSIDE; }
kernel void direct(device int* out [[buffer(0)]]) { out[0] = DIRECT; }
kernel void through_a_function(device int* out [[buffer(0)]]) { out[0] = inside(1); }
kernel void derived(device int* out [[buffer(0)]]) { out[0] = DERIVED; }
kernel void asked(device int* out [[buffer(0)]]) { out[0] = CHOSEN; }
kernel void parameter(device int* out [[buffer(0)]], device int* bias [[buffer(1), function_constant(HAS_BIAS)]]) { out[0] = 1; }
kernel void none(device int* out [[buffer(0)]]) { out[0] = 1; }";

#[test]
fn a_constant_that_a_kernel_uses_needs_a_value() {
    let lab = Lab::new("constants.metal", SOURCE);
    let pipeline = |kernel: &str, constants: &FunctionConstants| {
        lab.device.new_pipeline(&lab.library, kernel, constants)
    };
    for (kernel, index, name) in [
        ("direct", 0, "DIRECT"),
        ("through_a_function", 1, "INSIDE"),
        ("derived", 2, "BASE"),
        ("parameter", 4, "HAS_BIAS"),
    ] {
        let Err(Error::FunctionConstant { kernel: named, reason }) =
            pipeline(kernel, &FunctionConstants::new())
        else {
            panic!("{kernel} needs no constant")
        };
        assert_eq!(named, kernel);
        assert_eq!(
            reason,
            format!("function constant {index} ('{name}') has no value, and the kernel uses it")
        );
        let value = if index == 4 { ConstantValue::Bool(false) } else { ConstantValue::I32(1) };
        assert!(pipeline(kernel, &FunctionConstants::new().set(index, value)).is_ok(), "{kernel}");
    }
    for kernel in ["asked", "none"] {
        assert!(pipeline(kernel, &FunctionConstants::new()).is_ok(), "{kernel}");
    }
}
