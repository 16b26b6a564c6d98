//! The 6-bit scales of the formats that pack them: the one place where these bit patterns are taken apart and
//! put together.
//!
//! Bit positions are those of the GGUF format's block description.

use crate::BlockIQ4_XS;

/// Scales and minimums of the 8 sub-blocks of a Q4_K or Q5_K block, each 0..=63.
///
/// The low six bits of byte `j` (`j` in 0..4) are scale `j`, those of byte `4 + j` minimum `j`. Scale and minimum
/// `4 + j` have their low four bits in the nibbles of byte `8 + j` and their high two in the top bits of bytes
/// `j` and `4 + j`.
pub fn unpack_scales_mins_k(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        let (scale, min, low) = (packed[j], packed[4 + j], packed[8 + j]);
        scales[j] = scale & 0x3f;
        mins[j] = min & 0x3f;
        scales[4 + j] = (low & 0x0f) | ((scale >> 6) << 4);
        mins[4 + j] = (low >> 4) | ((min >> 6) << 4);
    }
    (scales, mins)
}

/// The inverse of [`unpack_scales_mins_k`]; bits above the sixth are ignored.
pub fn pack_scales_mins_k(scales: &[u8; 8], mins: &[u8; 8]) -> [u8; 12] {
    let mut packed = [0; 12];
    for j in 0..4 {
        let (high_scale, high_min) = (scales[4 + j] & 0x3f, mins[4 + j] & 0x3f);
        packed[j] = (scales[j] & 0x3f) | ((high_scale >> 4) << 6);
        packed[4 + j] = (mins[j] & 0x3f) | ((high_min >> 4) << 6);
        packed[8 + j] = (high_scale & 0x0f) | ((high_min & 0x0f) << 4);
    }
    packed
}

/// Scales of the 16 sub-blocks of a Q3_K block, the offset of 32 taken away: -32..=31.
///
/// The low four bits of scales `j` and `8 + j` (`j` in 0..8) are the nibbles of byte `j`; the high two bits of
/// scales `j`, `4 + j`, `8 + j` and `12 + j` (`j` in 0..4) lie in byte `8 + j`, from the low bits up.
pub fn unpack_scales_q3_k(packed: &[u8; 12]) -> [i8; 16] {
    let mut scales = [0; 16];
    for (j, scale) in scales.iter_mut().enumerate() {
        let low = (packed[j % 8] >> (4 * (j / 8))) & 0x0f;
        let high = (packed[8 + j % 4] >> (2 * (j / 4))) & 0x03;
        *scale = (low | (high << 4)) as i8 - 32;
    }
    scales
}

/// The inverse of [`unpack_scales_q3_k`], for scales in -32..=31.
pub fn pack_scales_q3_k(scales: &[i8; 16]) -> [u8; 12] {
    let mut packed = [0; 12];
    for (j, &scale) in scales.iter().enumerate() {
        debug_assert!((-32..=31).contains(&scale));
        let bits = scale.wrapping_add(32) as u8;
        packed[j % 8] |= (bits & 0x0f) << (4 * (j / 8));
        packed[8 + j % 4] |= ((bits >> 4) & 0x03) << (2 * (j / 4));
    }
    packed
}

impl BlockIQ4_XS {
    /// Scales of the 8 sub-blocks, the offset of 32 taken away: -32..=31.
    pub fn unpack_scales(&self) -> [i8; 8] {
        std::array::from_fn(|j| {
            let low = (self.scales_l[j / 2] >> (4 * (j % 2))) & 0x0f;
            let high = (self.scales_h >> (2 * j)) as u8 & 0x03;
            (low | (high << 4)) as i8 - 32
        })
    }

    /// Stores the scales of the 8 sub-blocks, each -32..=31.
    pub fn pack_scales(&mut self, scales: &[i8; 8]) {
        self.scales_h = 0;
        self.scales_l = [0; 4];
        for (j, &scale) in scales.iter().enumerate() {
            debug_assert!((-32..=31).contains(&scale));
            let bits = scale.wrapping_add(32) as u8;
            self.scales_l[j / 2] |= (bits & 0x0f) << (4 * (j % 2));
            self.scales_h |= u16::from((bits >> 4) & 0x03) << (2 * j);
        }
    }
}
