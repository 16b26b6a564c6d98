#!/usr/bin/env python3
"""Writes decode.bin and encode.bin, the reference data of the quant crate's tests.

Needs numpy and the `gguf` package (written with gguf 0.19.0, numpy 2.4). Run it in this folder; the result is
the same each time.

Both files are records in a row, all numbers little-endian:
    u32 format id, u32 number of blocks, u32 bytes of data, u32 number of floats, data, floats (float32)
decode.bin: data are encoded blocks, floats what they decode to.
encode.bin: floats are values, data what they encode to.
"""

import struct

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

# Where the half-precision scales of a block are, in bytes from its start.
HALVES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
    T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [],
}
# Ordinary, zero, smallest and largest subnormal, smallest normal, negative, largest, infinite, NaN.
SCALES = [0x2E66, 0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0xA812, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00]
# The shared exponents of MXFP4: both ends, where half the scale is subnormal, and ordinary ones.
EXPONENTS = [120, 0, 1, 2, 3, 127, 128, 254, 255, 110, 130]


def record(out, qtype, data, floats):
    blocks = data.size // GGML_QUANT_SIZES[qtype][1]
    floats = np.ascontiguousarray(floats, dtype="<f4")
    out.write(struct.pack("<4I", qtype, blocks, data.size, floats.size))
    out.write(data.tobytes())
    out.write(floats.tobytes())


def decode_fixtures(rng, out):
    for qtype, halves in HALVES.items():
        blocks = rng.integers(0, 256, (len(SCALES), GGML_QUANT_SIZES[qtype][1]), dtype=np.uint8)
        for i, scale in enumerate(SCALES):
            for k, offset in enumerate(halves):
                # The second scale of a block takes another value than the first.
                bits = scale if k == 0 else SCALES[(i + 3) % len(SCALES)]
                blocks[i, offset:offset + 2] = np.frombuffer(struct.pack("<H", bits), dtype=np.uint8)
            if qtype == T.MXFP4:
                blocks[i, 0] = EXPONENTS[i]
        record(out, qtype, blocks, quants.dequantize(blocks, qtype))
    for qtype in (T.F16, T.BF16):
        bits = rng.integers(0, 65536, 256, dtype=np.uint16)
        bits[:len(SCALES)] = SCALES
        data = bits.view(np.uint8)
        record(out, qtype, data, quants.dequantize(data, qtype))
    # The package does not decode Q8_K, an activation format; its formula is d * q.
    blocks = rng.integers(0, 256, (3, 292), dtype=np.uint8)
    scales = np.array([0.013, -3e-39, 1e38], dtype="<f4")
    blocks[:, :4] = scales.view(np.uint8).reshape(3, 4)
    record(out, T.Q8_K, blocks, scales[:, None] * blocks[:, 4:260].view(np.int8).astype(np.float32))


def encode_fixtures(rng, out):
    rows = [
        rng.standard_normal(32),
        rng.standard_normal(32) * 0.02,
        rng.standard_normal(32) * 1000,
        rng.standard_normal(32) * 1e-6,       # subnormal scales
        rng.standard_normal(32) * 1e-9,       # scales that round to zero
        np.zeros(32),
        np.full(32, -0.0),
        np.full(32, 0.37),
        np.abs(rng.standard_normal(32)) + 1,  # no sign change
        np.arange(32) - 15.5,                 # ties between quants
        np.arange(32) / 31 * 127,
        np.where(np.arange(32) % 2, 4.0, -4.0),  # equal magnitudes of both signs
        np.where(np.arange(32) == 7, 60000.0, 0.001),
        rng.standard_t(2, 32),
    ]
    values = np.array(rows, dtype=np.float32)
    for qtype in (T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4):
        data = quants.quantize(values, qtype)
        record(out, qtype, np.ascontiguousarray(data).view(np.uint8).reshape(-1), values.reshape(-1))


def main():
    with np.errstate(all="ignore"):
        with open("decode.bin", "wb") as out:
            decode_fixtures(np.random.default_rng(1), out)
        with open("encode.bin", "wb") as out:
            encode_fixtures(np.random.default_rng(2), out)


if __name__ == "__main__":
    main()
