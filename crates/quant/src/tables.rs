//! The value tables of the formats whose quants are indices, and the E8M0 scale.

/// The values of the 16 indices of IQ4_NL and IQ4_XS, from the GGUF format's block description: denser near
/// zero, where most weights are.
pub const IQ4_NL_VALUES: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The values of the 16 codes of E2M1 (sign, two exponent bits, one mantissa bit; OCP Microscaling Formats),
/// doubled so that they are integers. [`e8m0_half`] takes the factor of two back.
pub const E2M1_DOUBLED_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half the value of an E8M0 scale: `2^(e - 128)`.
///
/// The code 255, NaN in the OCP description, is `2^127` here: GGUF readers give it no special meaning.
pub const fn e8m0_half(e: u8) -> f32 {
    // 2^-128 and 2^-127 are subnormal; from there on the exponent field is e - 1.
    match e {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((e as u32 - 1) << 23),
    }
}
