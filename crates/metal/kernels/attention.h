// Softmax attention over a paged cache: what all its kernels share.
//
// A query at position p sees the keys at positions max(0, p + 1 - window) to p of its own sequence. The scores' softmax is
// computed in one pass: a running maximum, a running sum and an output that are rescaled when the maximum rises.

// Below every score, and finite: differences of it are defined in fast arithmetic, too.
#define NO_SCORE (-1.0e38f)

// The sequence that a token belongs to: the last one that begins at or before it.
inline int sequence_of(int token, device const int* ranges, int sequences) {
    int low = 0, high = sequences;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (ranges[middle] <= token) low = middle;
        else high = middle;
    }
    return low;
}

// The cache row of a key, or -1 where the sequence has no page for it (the host refuses such a batch before).
inline int cache_row(int key, device const int* pages, constant AttentionArgs& args) {
    // Division is tens of instructions; pages are nearly always a power of two long.
    const int page = args.page_shift >= 0 ? key >> args.page_shift : key / args.page_len;
    if (page >= args.max_pages) return -1;
    const int physical = pages[page];
    const long row = long(physical) * args.page_len + (key - page * args.page_len);
    return physical >= 0 && row < args.cache_rows ? int(row) : -1;
}

inline int first_key(int position, constant AttentionArgs& args) { return max(0, position + 1 - args.window); }

inline float capped(float score, constant AttentionArgs& args) {
    return args.soft_cap > 0.0f ? args.soft_cap * safe_tanh(score / args.soft_cap) : score;
}

// What the sum of weights becomes with the head's sink, a score without a value; the output has to be multiplied by the
// result: 1 over the sum, or 0 where there was no key.
inline float normaliser(float largest, float sum, int head, device const float* sinks, constant AttentionArgs& args) {
    if (args.has_sinks != 0) {
        const float sink = sinks[head], top = max(largest, sink);
        const float rescale = precise::exp(largest - top);
        const float total = sum * rescale + precise::exp(sink - top);
        return total > 0.0f ? rescale / total : 0.0f;
    }
    return sum > 0.0f ? 1.0f / sum : 0.0f;
}
