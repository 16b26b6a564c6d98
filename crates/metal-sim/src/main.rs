//! The command line of the simulator.
use std::path::PathBuf;
use metal_sim::compile::{Clang, Source, check};
fn main() {
    let clang = Clang::find().unwrap();
    for path in std::env::args().skip(1) {
        let path = PathBuf::from(path);
        let text = std::fs::read_to_string(&path).unwrap();
        let mut dirs = vec![path.parent().unwrap().to_path_buf()];
        if let Some(d) = std::env::var_os("INC") { dirs.extend(std::env::split_paths(&d)); }
        let t = std::time::Instant::now();
        match check(&clang, Source { name: &path.display().to_string(), text: &text, include_directories: &dirs }, &Default::default()) {
            Ok(names) => println!("OK {} {} kernels {:?}", path.display(), names.len(), t.elapsed()),
            Err(e) => println!("FAIL {} {:?}\n{}", path.display(), t.elapsed(), e.to_string().lines().take(std::env::var("N").map_or(12, |n| n.parse().unwrap())).collect::<Vec<_>>().join("\n")),
        }
    }
}
