// Rotary position embedding: the angles.

// Cosine and sine of position * frequency. A frequency is given in turns per position, as the 64 bits behind the
// binary point: the product wraps around at whole turns by itself and is exact to 2^-40 of a turn at any position,
// where a float product would be off by hundredths at position 100000.
inline float2 rotation(ulong turns_per_position, int position) {
    ulong turns = turns_per_position * ulong(position);
    // The upper half as a signed number: -1/2 to 1/2 of a turn.
    float angle = float(int(uint(turns >> 32))) * (2.0f * M_PI_F / 4294967296.0f);
    return float2(precise::cos(angle), precise::sin(angle));
}

// (a, b) turned by an angle.
inline float2 rotate(float2 pair, float2 cos_sin) {
    return float2(pair.x * cos_sin.x - pair.y * cos_sin.y, pair.x * cos_sin.y + pair.y * cos_sin.x);
}

// The two elements of a head that pair `i` of `pairs` turns: neighbours, or half the rotated elements apart. Pairs
// past the rotated ones are neighbours, and are only copied.
inline int2 pair_elements(int i, int pairs, bool interleaved) {
    if (interleaved || i >= pairs) return int2(2 * i, 2 * i + 1);
    return int2(i, i + pairs);
}
