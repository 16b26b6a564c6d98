//! What projects write around their kernels.

mod common;

use common::{Lab, read};
use metal::device::{ConstantValue, Device, FunctionConstants, Pipeline, Size};

const SOURCE: &str = include_str!("msl/projects.metal");

#[test]
fn slots_and_sizes_have_names() {
    let lab = Lab::new("projects.metal", SOURCE);
    let input: Vec<i32> = (0..8).collect();
    let (out, input) = (lab.buffer(&[0i32; 8]), lab.buffer(&input));
    let launch = lab.launch("slots_by_name").buffer(0, &out).buffer(2, &input).bytes(4, &[8i32]);
    launch.threadgroup(2, 32).threads(Size::width(8), Size::width(8)).unwrap();
    assert_eq!(read::<i32>(&out), [7, 6, 5, 4, 3, 2, 1, 0]);
    for (kernel, threads) in [("slots_by_name", 64), ("attribute_at_the_end", 32)] {
        let pipeline = lab.device.new_pipeline(&lab.library, kernel, &FunctionConstants::new()).unwrap();
        assert_eq!(pipeline.max_threads_per_threadgroup(), threads, "{kernel}");
    }
}

#[test]
fn attributes_stand_behind_the_parameters_too() {
    let lab = Lab::new("projects.metal", SOURCE);
    let (out, input) = (lab.buffer(&[0i32; 2]), lab.buffer(&[1i32, 2]));
    let launch = lab.launch("attribute_at_the_end").buffer(0, &out).buffer(1, &input);
    launch.threads(Size::width(2), Size::width(2)).unwrap();
    assert_eq!(read::<i32>(&out), [65, 66]);
}

#[test]
fn constants_of_a_launch_work_with_every_operator() {
    let lab = Lab::new("projects.metal", SOURCE);
    let out = lab.buffer(&[0f32; 14]);
    let launch = lab.launch("narrow_constants").buffer(0, &out).constant(0, ConstantValue::F16(0x3800));
    let launch = launch.constant(1, ConstantValue::F32(2.5)).constant(2, ConstantValue::U8(3));
    launch.threads(Size::width(1), Size::width(1)).unwrap();
    let expected = [1.5, 2.5, 1.0, 1.5, -0.5, 2.0, 1.0, 2.0, 5.0, 3.5, 3.5, 0.75, 2.5, 1.0];
    assert_eq!(read::<f32>(&out), expected);
}

#[test]
fn kernels_share_their_names_with_functions() {
    let lab = Lab::new("projects.metal", SOURCE);
    for (kernel, expected) in [("sign_of", [-1, 1]), ("abs", [3, 4])] {
        let out = lab.buffer(&[-3i32, 4]);
        lab.launch(kernel).buffer(0, &out).threads(Size::width(2), Size::width(2)).unwrap();
        assert_eq!(read::<i32>(&out), expected, "{kernel}");
    }
}

#[test]
fn loops_heed_their_directives() {
    let lab = Lab::new("projects.metal", SOURCE);
    let out = lab.buffer(&[1f32, 2.0, 3.0, 4.0]);
    lab.launch("unrolled").buffer(0, &out).threads(Size::width(1), Size::width(1)).unwrap();
    assert_eq!(read::<f32>(&out)[0], 18.0);
}

#[test]
fn members_are_chosen_by_the_type_of_their_result() {
    let lab = Lab::new("projects.metal", SOURCE);
    let out = lab.buffer(&[0f32; 2]);
    lab.launch("chosen").buffer(0, &out).threads(Size::width(1), Size::width(1)).unwrap();
    assert_eq!(read::<f32>(&out), [1.5, 101.0]);
}
