//! The block structures: what Rust, the layout table and a C compiler say about them.

use std::collections::HashMap;
use std::fmt::Write;
use std::process::Command;

use quant::{
    BlockMXFP4, BlockQ4_0, BlockQ4_K, BlockQ6_K, BlockQ8_K, Element, Error, Format, Layout, c_header,
    cast_blocks,
};

#[test]
fn every_block_format_has_a_layout_without_gaps() {
    for format in Format::ALL {
        let Some(layout) = Layout::of(format) else {
            assert_eq!(format.block_len(), 1, "{format} has blocks and needs a layout");
            continue;
        };
        let mut end = 0;
        for field in layout.fields {
            assert_eq!(field.offset, end, "{format}: {}", field.name);
            end += field.element.size() * field.count.unwrap_or(1);
        }
        assert_eq!(end, layout.size, "{format}");
        assert_eq!(layout.size, format.block_bytes(), "{format}");
    }
}

#[test]
fn a_layout_names_types_and_offsets() {
    let layout = Layout::of(Format::Q6_K).unwrap();
    assert_eq!(layout.name, "BlockQ6_K");
    let fields: Vec<_> = layout.fields.iter().map(|f| (f.name, f.element, f.count, f.offset)).collect();
    assert_eq!(
        fields,
        [
            ("ql", Element::U8, Some(128), 0),
            ("qh", Element::U8, Some(64), 128),
            ("scales", Element::I8, Some(16), 192),
            ("d", Element::F16, None, 208),
        ]
    );
}

/// Compiles the header as C and lets the compiled program print what it sees. This test fails without a C
/// compiler: set `CC` to one, or install gcc or clang.
#[test]
fn a_c_compiler_sees_the_same_layouts() {
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n#include \"blocks.h\"\n");
    program.push_str("static const signed char iq4_nl[] = QUANT_IQ4_NL_VALUES;\n");
    program.push_str("static const signed char e2m1[] = QUANT_E2M1_DOUBLED_VALUES;\nint main(void) {\n");
    let mut expected = HashMap::new();
    let mut ask = |expression: String, value: usize| {
        writeln!(program, "    printf(\"%s=%zu\\n\", \"{expression}\", (size_t)({expression}));").unwrap();
        expected.insert(expression, value);
    };
    for layout in Layout::ALL {
        let name = layout.name;
        ask(format!("sizeof({name})"), layout.size);
        ask(format!("QUANT_{}_LEN", layout.format), layout.format.block_len());
        for field in layout.fields {
            ask(format!("offsetof({name}, {})", field.name), field.offset);
            let size = field.element.size() * field.count.unwrap_or(1);
            ask(format!("sizeof((({name} *)0)->{})", field.name), size);
        }
    }
    for (i, &value) in quant::IQ4_NL_VALUES.iter().enumerate() {
        ask(format!("iq4_nl[{i}] + 128"), (i32::from(value) + 128) as usize);
    }
    for (i, &value) in quant::E2M1_DOUBLED_VALUES.iter().enumerate() {
        ask(format!("e2m1[{i}] + 128"), (i32::from(value) + 128) as usize);
    }
    ask("sizeof(iq4_nl)".into(), 16);
    ask("sizeof(e2m1)".into(), 16);
    program.push_str("    return 0;\n}\n");

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("blocks.h"), c_header()).unwrap();
    std::fs::write(dir.path().join("main.c"), program).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let output = Command::new(&compiler)
        .args(["-std=c11", "-Wall", "-Werror", "main.c", "-o", "main"])
        .current_dir(dir.path())
        .output()
        .unwrap_or_else(|error| panic!("this test needs a C compiler; cannot run `{compiler}`: {error}"));
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));

    let output = Command::new(dir.path().join("main")).output().unwrap();
    let mut found = HashMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let (expression, value) = line.rsplit_once('=').unwrap();
        found.insert(expression.to_owned(), value.parse::<usize>().unwrap());
    }
    assert_eq!(found, expected);
}

#[test]
fn the_header_knows_each_language() {
    let header = c_header();
    for text in [
        "defined(__METAL_VERSION__)\n#define QUANT_F16 half\n",
        "defined(__CUDACC__)\n#define QUANT_F16 __half\n",
    ] {
        assert!(header.contains(text), "{text}");
    }
    let block = "typedef struct {\n    QUANT_F16 d;\n    unsigned char qs[16];\n} BlockQ4_0;\n\
                 QUANT_ASSERT(sizeof(BlockQ4_0) == 18, \"BlockQ4_0 has 18 bytes\");\n";
    assert!(header.contains(block), "{header}");
}

#[test]
fn blocks_ask_for_no_more_alignment_than_rows_have() {
    assert_eq!(align_of::<BlockQ4_K>(), 2);
    assert_eq!(align_of::<BlockQ6_K>(), 2);
    assert_eq!(align_of::<BlockMXFP4>(), 1);
    assert_eq!(align_of::<BlockQ8_K>(), 4);
    // Every block of a tensor that starts aligned is aligned.
    assert_eq!(size_of::<BlockQ6_K>() % align_of::<BlockQ6_K>(), 0);
    assert_eq!(size_of::<BlockQ8_K>() % align_of::<BlockQ8_K>(), 0);
}

#[test]
fn bytes_are_cast_to_blocks_in_place() {
    let words = [0x1234u16; 18];
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let blocks = cast_blocks::<BlockQ4_0>(bytes).unwrap();
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks.as_ptr().addr(), bytes.as_ptr().addr());
    assert_eq!(blocks[1].d.to_bits(), 0x1234);
    // No bytes are no blocks, wherever they are.
    assert_eq!(cast_blocks::<BlockQ4_0>(&bytes[1..1]), Ok(&[][..]));
}

#[test]
fn partial_bytes_are_an_error() {
    let words = [0u16; 18];
    let bytes: &[u8] = bytemuck::cast_slice(&words);
    let error = cast_blocks::<BlockQ4_0>(&bytes[..20]).unwrap_err();
    assert_eq!(error, Error::PartialBytes { format: Format::Q4_0, bytes: 20 });
    assert_eq!(error.to_string(), "20 bytes are not a whole number of Q4_0 blocks of 18 bytes");
}

#[test]
fn misaligned_bytes_are_an_error() {
    let words = [0u16; 18];
    let bytes = &bytemuck::cast_slice::<u16, u8>(&words)[1..19];
    let address = bytes.as_ptr().addr();
    let error = cast_blocks::<BlockQ4_0>(bytes).unwrap_err();
    assert_eq!(error, Error::Misaligned { format: Format::Q4_0, alignment: 2, address });
    assert_eq!(
        error.to_string(),
        format!("Q4_0 blocks must start at a multiple of 2 bytes, found address {address:#x}")
    );
    assert!(cast_blocks::<BlockMXFP4>(&bytemuck::cast_slice::<u16, u8>(&words)[1..18]).is_ok());
}
