#!/usr/bin/env python3
"""Reference logits of tiny random models, one per architecture and RoPE scaling.

    python3 make_reference.py            # needs torch and transformers; writes reference.json beside this file
    python3 make_reference.py --gguf DIR # only writes muse-glimmer.gguf there, for llama.cpp (needs gguf)

The weights come from a hash of tensor name and index (see `weights`), which tests/src/tiny.rs repeats, so no model file
is stored. Tensors are float32 throughout. `muse-glimmer` logits are llama.cpp's: run the written file with float32 KV cache
on the ids of `IDS`, and store the rows of `POSITIONS` under its name.
"""
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).parent
VOCAB, HIDDEN, FF, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 48, 96, 4, 2, 16, 6
EXPERTS_USED, EXPERT_FF, SHARED_FF = 3, 32, 40
IDS = [(7 * i * i + 3 * i + 5) % VOCAB for i in range(40)]
POSITIONS = [0, 1, 7, 8, 20, 39]


def weights(name, *shape):
    """Uniform in [-1, 1): splitmix64 of (FNV-1a of the name) << 32 | index, top 24 bits."""
    seed = 0x811C9DC5
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x01000193) & 0xFFFFFFFF
    with np.errstate(over="ignore"):
        z = np.arange(int(np.prod(shape)), dtype=np.uint64) + np.uint64(seed << 32)
        z = z + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    u = (z >> np.uint64(40)).astype(np.float64) / 2.0**23 - 1.0
    if len(shape) > 1:
        u = u * (3.0 / shape[-1]) ** 0.5
    elif name.endswith("norm.weight"):
        u = 1.0 + 0.25 * u
    else:
        u = 0.25 * u
    return u.astype(np.float32).reshape(shape)


def split_half(w, heads):
    """From interleaved rotation pairs, as the `llama` architecture has them in files, to split halves."""
    out, inner = w.shape
    return w.reshape(heads, out // heads // 2, 2, inner).swapaxes(1, 2).reshape(out, inner)


def experts(sd, arch, i, count):
    """A layer's experts. Files have gate and up apart, with a matrix of [out, in] for each expert."""
    n = lambda part: f"blk.{i}.{part}"
    p = f"model.layers.{i}.mlp."
    ff = FF if arch == "llama" else EXPERT_FF
    gate, up = (weights(n(f"ffn_{part}_exps.weight"), count, ff, HIDDEN) for part in ("gate", "up"))
    down = weights(n("ffn_down_exps.weight"), count, HIDDEN, ff)
    router = weights(n("ffn_gate_inp.weight"), count, HIDDEN)
    if arch == "gpt-oss":
        interleaved = lambda gate, up, axis: np.stack([gate, up], axis=axis)
        sd[p + "experts.gate_up_proj"] = interleaved(gate, up, 2).reshape(count, 2 * ff, HIDDEN).swapaxes(1, 2).copy()
        sd[p + "experts.down_proj"] = down.swapaxes(1, 2).copy()
        biases = (weights(n(f"ffn_{part}_exps.bias"), count, ff) for part in ("gate", "up"))
        sd[p + "experts.gate_up_proj_bias"] = interleaved(*biases, 2).reshape(count, 2 * ff)
        sd[p + "experts.down_proj_bias"] = weights(n("ffn_down_exps.bias"), count, HIDDEN)
        sd[p + "router.weight"], sd[p + "router.bias"] = router, weights(n("ffn_gate_inp.bias"), count)
        return
    sd[p + "experts.gate_up_proj"] = np.concatenate([gate, up], axis=1)
    sd[p + "experts.down_proj"] = down
    sd[p + "gate.weight"] = router
    if arch == "qwen2moe":
        for part, rows, cols in (("gate", SHARED_FF, HIDDEN), ("up", SHARED_FF, HIDDEN), ("down", HIDDEN, SHARED_FF)):
            sd[p + f"shared_expert.{part}_proj.weight"] = weights(n(f"ffn_{part}_shexp.weight"), rows, cols)
        sd[p + "shared_expert_gate.weight"] = weights(n("ffn_gate_inp_shexp.weight"), HIDDEN).reshape(1, HIDDEN)


def state_dict(arch, tied, count=0):
    minus = 1.0 if arch == "gemma3" else 0.0  # files hold weight + 1
    sd = {"model.embed_tokens.weight": weights("token_embd.weight", VOCAB, HIDDEN), "model.norm.weight": weights("output_norm.weight", HIDDEN) - minus}
    if not tied:
        sd["lm_head.weight"] = weights("output.weight", VOCAB, HIDDEN)
    for i in range(LAYERS):
        n = lambda part: f"blk.{i}.{part}.weight"
        p = f"model.layers.{i}."
        q, k = weights(n("attn_q"), HEADS * HEAD_DIM, HIDDEN), weights(n("attn_k"), KV_HEADS * HEAD_DIM, HIDDEN)
        if arch == "llama":
            q, k = split_half(q, HEADS), split_half(k, KV_HEADS)
        sd[p + "self_attn.q_proj.weight"], sd[p + "self_attn.k_proj.weight"] = q, k
        sd[p + "self_attn.v_proj.weight"] = weights(n("attn_v"), KV_HEADS * HEAD_DIM, HIDDEN)
        sd[p + "self_attn.o_proj.weight"] = weights(n("attn_output"), HIDDEN, HEADS * HEAD_DIM)
        if arch in ("qwen2", "qwen2moe", "gpt-oss"):
            for a, b, rows in (("q", "attn_q", HEADS), ("k", "attn_k", KV_HEADS), ("v", "attn_v", KV_HEADS)):
                sd[p + f"self_attn.{a}_proj.bias"] = weights(f"blk.{i}.{b}.bias", rows * HEAD_DIM)
        if arch == "gpt-oss":
            sd[p + "self_attn.o_proj.bias"] = weights(f"blk.{i}.attn_output.bias", HIDDEN)
            sd[p + "self_attn.sinks"] = weights(n("attn_sinks"), HEADS)
        if arch in ("qwen3", "qwen3moe", "gemma3"):
            sd[p + "self_attn.q_norm.weight"] = weights(n("attn_q_norm"), HEAD_DIM) - minus
            sd[p + "self_attn.k_norm.weight"] = weights(n("attn_k_norm"), HEAD_DIM) - minus
        if count:
            experts(sd, arch, i, count)
        else:
            sd[p + "mlp.gate_proj.weight"] = weights(n("ffn_gate"), FF, HIDDEN)
            sd[p + "mlp.up_proj.weight"] = weights(n("ffn_up"), FF, HIDDEN)
            sd[p + "mlp.down_proj.weight"] = weights(n("ffn_down"), HIDDEN, FF)
        sd[p + "input_layernorm.weight"] = weights(n("attn_norm"), HIDDEN) - minus
        if arch == "gemma3":
            sd[p + "post_attention_layernorm.weight"] = weights(n("post_attention_norm"), HIDDEN) - minus
            sd[p + "pre_feedforward_layernorm.weight"] = weights(n("ffn_norm"), HIDDEN) - minus
            sd[p + "post_feedforward_layernorm.weight"] = weights(n("post_ffw_norm"), HIDDEN) - minus
        else:
            norm = "post_attention_norm" if arch == "gpt-oss" else "ffn_norm"
            sd[p + "post_attention_layernorm.weight"] = weights(n(norm), HIDDEN)
    return sd


def reference():
    import torch
    import transformers as t

    common = dict(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=FF, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=64, rms_norm_eps=1e-5,
        attn_implementation="eager", pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    rope = lambda **kw: dict(rope_parameters={"rope_theta": 10000.0, "rope_type": "default", **kw})
    cases = {
        "llama": ("llama", t.LlamaConfig(**common, **rope())),
        "llama-tied": ("llama", t.LlamaConfig(**common, **rope(), tie_word_embeddings=True)),
        "llama-linear": ("llama", t.LlamaConfig(**common, **rope(rope_type="linear", factor=4.0))),
        "llama-3-factors": ("llama", t.LlamaConfig(**common, **rope(
            rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32))),
        "qwen2": ("qwen2", t.Qwen2Config(**common, **rope())),
        "qwen2-yarn": ("qwen2", t.Qwen2Config(**common, **rope(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=16))),
        "qwen3": ("qwen3", t.Qwen3Config(**common, **rope())),
        "gemma3": ("gemma3", t.Gemma3TextConfig(
            **common, sliding_window=5, query_pre_attn_scalar=HEAD_DIM, tie_word_embeddings=True,
            layer_types=["sliding_attention"] * 5 + ["full_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            })),
        "mixtral": ("llama", t.MixtralConfig(
            **common, **rope(), num_local_experts=4, num_experts_per_tok=EXPERTS_USED, sliding_window=None)),
        "qwen2moe": ("qwen2moe", t.Qwen2MoeConfig(
            **common, **rope(), num_experts=5, num_experts_per_tok=EXPERTS_USED, moe_intermediate_size=EXPERT_FF,
            shared_expert_intermediate_size=SHARED_FF, norm_topk_prob=False)),
        "qwen3moe": ("qwen3moe", t.Qwen3MoeConfig(
            **common, **rope(), num_experts=8, num_experts_per_tok=EXPERTS_USED, moe_intermediate_size=EXPERT_FF,
            norm_topk_prob=True)),
        "gpt-oss": ("gpt-oss", t.GptOssConfig(
            **(common | dict(intermediate_size=EXPERT_FF)), num_local_experts=8, num_experts_per_tok=EXPERTS_USED, sliding_window=5,
            layer_types=["sliding_attention", "full_attention"] * (LAYERS // 2),
            **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, truncate=False))),
    }
    out = {"ids": IDS, "positions": POSITIONS, "cases": {}}
    for name, (arch, config) in cases.items():
        count = getattr(config, "num_local_experts", 0) or getattr(config, "num_experts", 0)
        model = t.AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(torch.float32).eval()
        sd = {k: torch.tensor(v) for k, v in state_dict(arch, config.tie_word_embeddings, count).items()}
        missing, unexpected = model.load_state_dict(sd, strict=False)
        assert not unexpected and all(m == "lm_head.weight" and config.tie_word_embeddings for m in missing), (name, missing, unexpected)
        model.tie_weights()
        with torch.no_grad():
            logits = model(torch.tensor([IDS])).logits[0].double().numpy()
        case = {"logits": [[round(float(x), 6) for x in logits[p]] for p in POSITIONS]}
        if name == "llama-3-factors":
            inv = model.model.rotary_emb.inv_freq.double().numpy()
            plain = 10000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
            case["rope_freqs"] = [float(np.float32(x)) for x in plain / inv]
        out["cases"][name] = case
    old = HERE / "reference.json"
    if old.exists():
        out["cases"]["muse-glimmer"] = json.loads(old.read_text())["cases"].get("muse-glimmer")
    old.write_text(json.dumps(out, separators=(",", ":")))


def muse_gguf(folder):
    import gguf

    w = gguf.GGUFWriter(str(pathlib.Path(folder) / "muse-glimmer.gguf"), "muse-glimmer")
    w.add_block_count(LAYERS); w.add_context_length(64); w.add_embedding_length(HIDDEN); w.add_feed_forward_length(FF)
    w.add_head_count(HEADS); w.add_head_count_kv(KV_HEADS); w.add_key_length(HEAD_DIM); w.add_value_length(HEAD_DIM)
    w.add_layer_norm_rms_eps(1e-5); w.add_rope_freq_base(10000.0); w.add_vocab_size(VOCAB); w.add_tokenizer_model("none")
    w.add_sliding_window(5); w.add_sliding_window_pattern([i % 4 != 3 for i in range(LAYERS)])
    w.add_logit_scale(0.5); w.add_final_logit_softcapping(3.0)
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        for part, shape in {
            "attn_q": (HEADS * HEAD_DIM, HIDDEN), "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM), "attn_gate": (HEADS * HEAD_DIM, HIDDEN), "ffn_gate": (FF, HIDDEN),
            "ffn_up": (FF, HIDDEN), "ffn_down": (HIDDEN, FF), "attn_norm": (HIDDEN,), "post_attention_norm": (HIDDEN,),
            "ffn_norm": (HIDDEN,), "post_ffw_norm": (HIDDEN,), "attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,),
        }.items():
            shapes[f"blk.{i}.{part}.weight"] = shape
    for name, shape in shapes.items():
        w.add_tensor(name, weights(name, *shape))
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


if __name__ == "__main__":
    muse_gguf(sys.argv[2]) if sys.argv[1:2] == ["--gguf"] else reference()
