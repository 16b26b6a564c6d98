//! Libraries and pipelines.

use std::ptr::NonNull;
use std::sync::Arc;

use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2::{available, msg_send};
use objc2_foundation::{NSDictionary, NSError, NSObject, NSString};
use objc2_metal::{
    MTLBinding, MTLBindingType, MTLCompileOptions, MTLComputePipelineState, MTLDataType, MTLDevice,
    MTLFunctionConstantValues, MTLLanguageVersion, MTLLibrary, MTLMathFloatingPointFunctions, MTLMathMode,
    MTLPipelineOption,
};

use super::describe;
use crate::device::{
    CompileOptions, ConstantValue, Error, FunctionConstants, Interface, MathMode, Parameter, ParameterSpace,
    Pipeline, Result,
};

/// Compiled MSL.
#[derive(Clone)]
pub struct ObjcLibrary {
    raw: Retained<ProtocolObject<dyn MTLLibrary>>,
    label: Arc<str>,
}

impl ObjcLibrary {
    pub(super) fn new(
        label: &str,
        library: std::result::Result<Retained<ProtocolObject<dyn MTLLibrary>>, Retained<NSError>>,
    ) -> Result<Self> {
        let raw = library.map_err(|error| Error::compile(label, error.localizedDescription()))?;
        raw.setLabel(Some(&NSString::from_str(label)));
        Ok(Self { raw, label: label.into() })
    }

    pub(super) fn pipeline(
        &self,
        device: &ProtocolObject<dyn MTLDevice>,
        name: &str,
        constants: &FunctionConstants,
    ) -> Result<ObjcPipeline> {
        autoreleasepool(|_| {
            let ns_name = NSString::from_str(name);
            if !self.raw.functionNames().iter().any(|known| known == ns_name) {
                return Err(Error::KernelNotFound { name: name.to_owned(), library: self.label.to_string() });
            }
            let refused = |error: Retained<NSError>| Error::FunctionConstant {
                kernel: name.to_owned(),
                reason: describe(&error),
            };
            let values = constant_values(constants);
            let kernel =
                self.raw.newFunctionWithName_constantValues_error(&ns_name, &values).map_err(refused)?;
            let mut reflection = None;
            // SAFETY: binding information is one of the reflections that a compute pipeline has.
            let raw = unsafe {
                device.newComputePipelineStateWithFunction_options_reflection_error(
                    &kernel,
                    MTLPipelineOption::BindingInfo,
                    Some(&mut reflection),
                )
            }
            .map_err(|error| Error::compile(format!("{}/{name}", self.label), describe(&error)))?;
            let bindings = reflection.map(|reflection| reflection.bindings().to_vec()).unwrap_or_default();
            let interface = Interface {
                name: name.to_owned(),
                parameters: bindings.iter().filter_map(|binding| parameter(binding)).collect(),
                max_threads: raw.maxTotalThreadsPerThreadgroup(),
                static_memory: raw.staticThreadgroupMemoryLength(),
            };
            Ok(ObjcPipeline { raw, interface: Arc::new(interface) })
        })
    }
}

pub(super) fn compile_options(options: &CompileOptions) -> Retained<MTLCompileOptions> {
    let raw = MTLCompileOptions::new();
    let (major, minor) = options.version.number();
    raw.setLanguageVersion(MTLLanguageVersion(major << 16 | minor));
    let is_fast = options.math == MathMode::Fast;
    if available!(macos = 15.0) {
        use MTLMathFloatingPointFunctions as Functions;
        raw.setMathMode(if is_fast { MTLMathMode::Fast } else { MTLMathMode::Safe });
        raw.setMathFloatingPointFunctions(if is_fast { Functions::Fast } else { Functions::Precise });
    } else {
        #[expect(deprecated, reason = "all that systems before macOS 15 have")]
        raw.setFastMathEnabled(is_fast);
    }
    let names: Vec<_> = options.macros.keys().map(|name| NSString::from_str(name)).collect();
    let names: Vec<&NSString> = names.iter().map(|name| &**name).collect();
    let values: Vec<Retained<NSObject>> =
        options.macros.values().map(|value| Retained::into_super(NSString::from_str(value))).collect();
    let macros = NSDictionary::from_retained_objects(&names, &values);
    // SAFETY: names and values are strings, as the property wants them.
    unsafe { raw.setPreprocessorMacros(Some(&macros)) };
    raw
}

fn constant_values(constants: &FunctionConstants) -> Retained<MTLFunctionConstantValues> {
    let raw = MTLFunctionConstantValues::new();
    for (index, value) in constants.iter() {
        let kind = match value {
            ConstantValue::Bool(_) => MTLDataType::Bool,
            ConstantValue::I8(_) => MTLDataType::Char,
            ConstantValue::U8(_) => MTLDataType::UChar,
            ConstantValue::I16(_) => MTLDataType::Short,
            ConstantValue::U16(_) => MTLDataType::UShort,
            ConstantValue::I32(_) => MTLDataType::Int,
            ConstantValue::U32(_) => MTLDataType::UInt,
            ConstantValue::I64(_) => MTLDataType::Long,
            ConstantValue::U64(_) => MTLDataType::ULong,
            ConstantValue::F32(_) => MTLDataType::Float,
            ConstantValue::F16(_) => MTLDataType::Half,
        };
        // Low end first, so that a narrow value's bytes are the first ones.
        let mut bits = value.bits().to_le_bytes();
        // SAFETY: the value is copied in the call, and no type above is longer than the eight bytes.
        unsafe { raw.setConstantValue_type_atIndex(NonNull::from(&mut bits).cast(), kind, index as usize) };
    }
    raw
}

/// A parameter that a kernel reads through, as the compiler found it.
fn parameter(binding: &ProtocolObject<dyn MTLBinding>) -> Option<Parameter> {
    let (space, size) = match binding.r#type() {
        _ if !binding.isUsed() || !binding.isArgument() => return None,
        MTLBindingType::ThreadgroupMemory => (ParameterSpace::Threadgroup, 0),
        // SAFETY: a binding of this type conforms to `MTLBufferBinding`, whose property this is.
        MTLBindingType::Buffer => (ParameterSpace::Buffer, unsafe { msg_send![binding, bufferDataSize] }),
        _ => return None,
    };
    let (name, slot) = (binding.name().to_string(), binding.index());
    // Bindings are listed for what is used alone; their alignment is Metal's to check.
    Some(Parameter { name, space, slot, is_optional: false, size, alignment: 1 })
}

/// One kernel with its function constants.
#[derive(Clone)]
pub struct ObjcPipeline {
    pub(super) raw: Retained<ProtocolObject<dyn MTLComputePipelineState>>,
    interface: Arc<Interface>,
}

impl Pipeline for ObjcPipeline {
    fn interface(&self) -> &Interface {
        &self.interface
    }

    fn simd_width(&self) -> usize {
        self.raw.threadExecutionWidth()
    }
}
