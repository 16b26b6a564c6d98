//! Model architectures: hyper-parameters, tensor names and graph builders.
