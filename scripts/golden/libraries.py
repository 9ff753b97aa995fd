"""Makes reference arrays of encodings and attention from torch, transformers and x-transformers, in tests/golden.

The libraries' code is run as published, twice: as it stands, in float32, and inside `double()`, where whatever it calls
float is float64. The two must agree to float32 rounding, and the float64 result is kept.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPTNeoXConfig, LlamaConfig, T5Config, XLNetConfig, XLNetModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.llama import modeling_llama as llama
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.xlm.modeling_xlm import create_sinusoidal_embeddings
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention
from x_transformers import x_transformers as xt

from scripts.golden.common import Arrays, attention, gradients, main, numpy, tensor

B, T, N, H = 2, 9, 4, 4
POSITIONS = np.array([[0, 1, 2, 3, 4, 5, 6, 7, 8], [3, 4, 9, 10, 57, 300, 1000, 1001, 4000]])


def normal(seed: int, *shape: int) -> np.ndarray:
    """Seeded normal numbers in float64."""
    return np.random.default_rng(seed).standard_normal(shape)


def qkvw(seed: int, rows: int = T) -> Arrays:
    """q and the weights of the output's sum [B,T,N,H]; k, v of as many rows, [B,S,N,H]."""
    shapes = {"q": T, "k": rows, "v": rows, "w": T}
    return {name: normal(seed + i, B, length, N, H) for i, (name, length) in enumerate(shapes.items())}


# Rotary encodings ----------------------------------------------------------------------------------------------------

LONG = dict(short_factor=[1 + 0.05 * i for i in range(8)], long_factor=[1.0 + 0.75 * i**1.5 for i in range(8)])
ROPE_CASES = {  # name: (head dim, theta, longest position, sequence length, rope_parameters)
    "linear": (16, 10_000.0, 64, None, dict(rope_type="linear", factor=4.0)),
    "dynamic_1024": (64, 10_000.0, 2048, 1024, dict(rope_type="dynamic", factor=2.0)),
    "dynamic_2048": (64, 10_000.0, 2048, 2048, dict(rope_type="dynamic", factor=2.0)),
    "dynamic_2049": (64, 10_000.0, 2048, 2049, dict(rope_type="dynamic", factor=2.0)),
    "dynamic_10000": (64, 10_000.0, 2048, 10_000, dict(rope_type="dynamic", factor=2.0)),
    "dynamic_half": (64, 10_000.0, 2048, 5000, dict(rope_type="dynamic", factor=4.0, partial_rotary_factor=0.5)),
    "yarn": (128, 10_000.0, 65_536, None, dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=4096)),
    "yarn_clamped": (16, 10_000.0, 256, None, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)),
    "yarn_degenerate": (8, 10_000.0, 16, None, dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4)),
    "yarn_betas": (64, 500_000.0, 8192, None, dict(
        rope_type="yarn", factor=2.5, beta_fast=16.0, beta_slow=2.0, attention_factor=1.3,
        original_max_position_embeddings=2048)),
    "yarn_half": (64, 10_000.0, 8192, None, dict(
        rope_type="yarn", factor=8.0, original_max_position_embeddings=1024, partial_rotary_factor=0.5)),
    "llama3": (128, 500_000.0, 131_072, None, dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192)),
    "llama3_2": (64, 500_000.0, 131_072, None, dict(
        rope_type="llama3", factor=32.0, low_freq_factor=1.5, high_freq_factor=3.0,
        original_max_position_embeddings=4096)),
    "longrope_short": (16, 10_000.0, 131_072, 4096, dict(
        rope_type="longrope", original_max_position_embeddings=4096, **LONG)),
    "longrope_long": (16, 10_000.0, 131_072, 4097, dict(
        rope_type="longrope", original_max_position_embeddings=4096, **LONG)),
    "proportional": (16, 10_000.0, 64, None, dict(rope_type="proportional", partial_rotary_factor=0.75)),
    "proportional_odd": (16, 10_000.0, 64, None, dict(rope_type="proportional", partial_rotary_factor=0.3)),
}  # fmt: skip


def rope_config(head: int, theta: float, longest: int, parameters: dict) -> LlamaConfig:
    """The config of a rotary embedding."""
    return LlamaConfig(
        hidden_size=4 * head,
        num_attention_heads=4,
        head_dim=head,
        max_position_embeddings=longest,
        rope_parameters={"rope_theta": theta} | parameters,
    )


def rope_frequencies() -> Arrays:
    """inv_freq and attention_factor of `modeling_rope_utils`, and the NTK-aware base of x-transformers."""
    arrays = {}
    for name, (head, theta, longest, length, parameters) in ROPE_CASES.items():
        config = rope_config(head, theta, longest, parameters)
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, seq_len=length)
        arrays |= {f"{name}_inv_freq": numpy(frequencies), f"{name}_attention_factor": np.float64(factor)}
    default = llama.LlamaRotaryEmbedding(rope_config(16, 10_000.0, 64, dict(rope_type="default")))
    arrays["default_inv_freq"] = numpy(default.inv_freq)
    arrays["ntk_inv_freq"] = numpy(xt.RotaryEmbedding(16, base_rescale_factor=8.0).inv_freq)
    return arrays


def rope_rotations() -> Arrays:
    """q and k turned by LLaMA (half), YaRN on LLaMA, GPT-J (interleaved) and GPT-NeoX (a quarter of the channels)."""
    q, k = normal(1, B, T, N, 16), normal(2, B, T, 2, 16)
    arrays = {"positions": POSITIONS, "q": q, "k": k}
    tq, tk, pos = tensor(q), tensor(k), torch.tensor(POSITIONS)

    def keep(name: str, turned_q: Tensor, turned_k: Tensor) -> None:
        arrays.update({f"{name}_q": numpy(turned_q), f"{name}_k": numpy(turned_k)})

    for name in ("default", "yarn_clamped"):
        parameters = dict(rope_type="default") if name == "default" else dict(ROPE_CASES[name][4])
        cos, sin = llama.LlamaRotaryEmbedding(rope_config(16, 10_000.0, 256, parameters))(tq, pos)
        keep(f"llama_{name}", *llama.apply_rotary_pos_emb(tq, tk, cos, sin, unsqueeze_dim=2))

    sin, cos = gptj.create_sinusoidal_positions(5000, 16)[pos].chunk(2, dim=-1)
    keep("gptj", gptj.apply_rotary_pos_emb(tq, sin, cos), gptj.apply_rotary_pos_emb(tk, sin, cos))

    config = GPTNeoXConfig(
        hidden_size=64,
        num_attention_heads=4,
        rope_parameters=dict(rope_type="default", rope_theta=10_000.0, partial_rotary_factor=0.25),
    )
    cos, sin = neox.GPTNeoXRotaryEmbedding(config)(tq, pos)
    keep("neox", *neox.apply_rotary_pos_emb(tq, tk, cos, sin, unsqueeze_dim=2))
    return arrays


def xpos() -> Arrays:
    """Scores of x-transformers' xPos. Its scale is centred, so its vectors are not the paper's; its scores are."""
    q, k = normal(3, 1, 2, 24, 8), normal(4, 1, 2, 24, 8)
    angles, scale = xt.RotaryEmbedding(8, use_xpos=True)(torch.arange(24))
    turned_q = xt.apply_rotary_pos_emb(tensor(q), angles, scale)
    turned_k = xt.apply_rotary_pos_emb(tensor(k), angles, scale**-1.0)
    return {"q": q[0], "k": k[0], "scores": numpy(torch.einsum("bnth,bnsh->bnts", turned_q, turned_k))[0]}


# Absolute encodings and additive biases ------------------------------------------------------------------------------


def sinusoidal() -> Arrays:
    """Tables [length, D] in the concatenated order (Marian) and the interleaved order (XLM)."""
    return {
        "concatenated": numpy(MarianSinusoidalPositionalEmbedding(40, 16).create_weight()),
        "interleaved": numpy(create_sinusoidal_embeddings(40, 16, torch.empty(40, 16))),
    }


def t5_buckets() -> Arrays:
    """Bucket of each distance n = query - key; the library's argument is key - query."""
    n = np.arange(-300, 301)
    arrays = {"distance": n.astype(np.int16)}
    for buckets, longest in ((32, 128), (16, 64), (32, 200)):
        for kind in ("causal", "bidirectional"):
            made = T5Attention._relative_position_bucket(torch.tensor(-n), kind == "bidirectional", buckets, longest)
            arrays[f"{kind}_{buckets}_{longest}"] = made.numpy().astype(np.int16)
    return arrays


def t5_attention() -> Arrays:
    """compute_bias from a given table, and torch attention with it (scale 1): outputs and gradients."""
    arrays = {"table": normal(5, N, 32)} | qkvw(6, 13)
    for kind in ("causal", "bidirectional"):
        config = T5Config(d_model=N * H, d_kv=H, num_heads=N, is_decoder=kind == "causal", use_cache=False)
        layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
        layer.relative_attention_bias.weight = torch.nn.Parameter(tensor(arrays["table"].T.copy()))
        bias = layer.compute_bias(T, 13)
        mask = torch.ones(T, 13, dtype=torch.bool).tril() if kind == "causal" else torch.ones(T, 13, dtype=torch.bool)
        q, k, v = (tensor(arrays[name]) for name in "qkv")
        out = attention(q, k, v, bias.masked_fill(~mask, -torch.inf), scale=1.0)
        leaves = {"q": q, "k": k, "v": v, "table": layer.relative_attention_bias.weight}
        made = {"bias": numpy(bias[0]), "out": numpy(out)} | gradients(out, arrays["w"], leaves)
        made["grad_table"] = made["grad_table"].T
        arrays |= {f"{kind}_{name}": array for name, array in made.items()}
    return arrays


def t5_x_transformers() -> Arrays:
    """RelativePositionBias of x-transformers: the looked-up value times `scale`, [N, T, S] with queries at the end."""
    layer = xt.RelativePositionBias(scale=8**0.5, causal=False, num_buckets=16, max_distance=64, heads=N)
    layer.relative_attention_bias.weight = torch.nn.Parameter(tensor(normal(10, 16, N)))
    return {"table": normal(10, 16, N).T, "bias": numpy(layer(5, 40))}


def alibi() -> Arrays:
    """BLOOM's m * key position [N, S], to be compared row-centred, and x-transformers' -m |n| [N, T, S]."""
    arrays = {}
    for heads in (1, 6, 8, 12):
        made = build_alibi_tensor(torch.ones(1, 20, dtype=torch.int64), heads, torch.get_default_dtype())
        arrays[f"bloom_{heads}"] = numpy(made)[:, 0]
        arrays[f"symmetric_{heads}"] = numpy(xt.AlibiPositionalBias(heads)(6, 11))
    return arrays


# Encodings that see queries and keys ---------------------------------------------------------------------------------


def transformer_xl() -> Arrays:
    """XLNet's bidirectional relative attention, with 4 keys of memory: scores, outputs and gradients.

    The layer reads time-major q [T,B,N,H]; queries stand at 4..T+3, keys at 0..T+3.
    """
    memory, width = 4, N * H
    arrays = qkvw(30, T + memory) | {"u": normal(34, N, H), "v_bias": normal(35, N, H), "w_r": normal(36, N, width, H)}
    config = XLNetConfig(vocab_size=8, d_model=width, n_layer=1, n_head=N, d_inner=8, attn_type="bi")
    layer = XLNetRelativeAttention(config).eval()
    q, k, v, u, v_bias, w_r = (tensor(arrays[name]) for name in ("q", "k", "v", "u", "v_bias", "w_r"))
    for name, leaf in {"r_w_bias": u, "r_r_bias": v_bias, "r": w_r.transpose(0, 1)}.items():
        delattr(layer, name)
        setattr(layer, name, leaf)
    table = XLNetModel(config).relative_positional_encoding(T, T + memory, bsz=B)
    k_r = torch.einsum("ibh,hnd->ibnd", table, layer.r)
    tq, tk, tv = (x.transpose(0, 1) for x in (q, k, v))
    out, weights = layer.rel_attn_core(tq, tk, tv, k_r, output_attentions=True)
    content = torch.einsum("ibnd,jbnd->bnij", tq + u, tk)
    position = layer.rel_shift_bnij(torch.einsum("ibnd,jbnd->bnij", tq + v_bias, k_r), klen=T + memory)
    scores = (content + position) * layer.scale
    torch.testing.assert_close(scores.softmax(-1), weights.permute(2, 3, 0, 1))
    leaves = {"q": q, "k": k, "v": v, "u": u, "v_bias": v_bias, "w_r": w_r}
    grads = gradients(out.transpose(0, 1), arrays["w"], leaves)
    return arrays | grads | {"scores": numpy(scores), "out": numpy(out.transpose(0, 1))}


def cope() -> Arrays:
    """CoPE of x-transformers under a causal mask, as its Attend calls it: logits, outputs and gradients."""
    arrays = {name: normal(40 + i, B, N, 14, H) for i, name in enumerate("qkvw")} | {"table": normal(44, 5, H)}
    q, k, v = (tensor(arrays[name]) for name in "qkv")
    layer = xt.CoPE(dim=H, heads=N, max_pos=5)
    layer.pos_emb = torch.nn.Parameter(tensor(arrays["table"]))
    hidden = torch.ones(14, 14, dtype=torch.bool).triu(1)
    sim = (torch.einsum("bnth,bnsh->bnts", q, k) * H**-0.5).masked_fill(hidden, -torch.finfo(q.dtype).max)
    logits = sim + layer(q, sim)
    out = logits.softmax(-1) @ v
    grads = gradients(out, arrays["w"], {"q": q, "k": k, "v": v, "table": layer.pos_emb})
    made = arrays | grads | {"logits": numpy(logits.masked_fill(hidden, 0.0)), "out": numpy(out)}
    return {name: x.swapaxes(1, 2) if x.ndim == 4 and name != "logits" else x for name, x in made.items()}


def pope() -> Arrays:
    """PolarEmbedding of x-transformers, causal: scores, outputs and gradients."""
    arrays = {name: normal(50 + i, B, N, T, H) for i, name in enumerate("qkvw")}
    arrays["delta"] = np.random.default_rng(54).uniform(-2 * math.pi, 0, (N, H))
    q, k, v = (tensor(arrays[name]) for name in "qkv")
    layer = xt.PolarEmbedding(H, N)
    layer.learned_bias = torch.nn.Parameter(tensor(arrays["delta"][:, None]))
    angles, delta = layer(torch.arange(T))
    polar_q, polar_k = xt.apply_polar_pos_emb(q, angles), xt.apply_polar_pos_emb(k, angles + delta)
    out = F.scaled_dot_product_attention(polar_q, polar_k, v, is_causal=True, scale=H**-0.5)
    grads = gradients(out, arrays["w"], {"q": q, "k": k, "v": v, "delta": layer.learned_bias})
    grads["grad_delta"] = grads["grad_delta"][:, 0]
    made = arrays | grads | {"scores": numpy(polar_q @ polar_k.mT), "out": numpy(out)}
    return {name: x.swapaxes(1, 2) if x.ndim == 4 and name != "scores" else x for name, x in made.items()}


# Attention without an encoding ---------------------------------------------------------------------------------------


def boolean_masks() -> dict[str, np.ndarray]:
    """What may be seen, [B or 1, 1, T, S], written out entry by entry."""
    i, j = np.arange(T)[:, None], np.arange(T)[None, :]
    segments = np.array([[0, 0, 0, 1, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1, 2, 2, 2]])
    valid = np.array([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 1, 1]], bool)
    causal = j <= i
    return {
        "full": np.ones((1, 1, T, T), bool),
        "causal": causal[None, None],
        "window": ((i - 3 <= j) & (j <= i + 1))[None, None],
        "causal_window": (causal & (i - 2 <= j))[None, None],
        "segments": (segments[:, None, :, None] == segments[:, None, None, :]),
        "causal_segments": causal & (segments[:, None, :, None] == segments[:, None, None, :]),
        "left_padding": causal & valid[:, None, None, :],
    }


def sdpa() -> Arrays:
    """scaled_dot_product_attention in float64: every kind of mask, shared keys, and T != S."""
    arrays = {"q": normal(60, B, T, N, H), "w": normal(61, B, T, N, H)}
    arrays |= {
        f"{x}{heads}": normal(62 + 2 * heads + s, B, T, heads, H) for s, x in enumerate("kv") for heads in (4, 2, 1)
    }
    masks = boolean_masks()
    cases = {name: (mask, 4, T, T) for name, mask in masks.items()}
    cases |= {"gqa": (masks["causal"], 2, T, T), "mqa": (masks["causal_window"], 1, T, T)}
    cases |= {"cross": (masks["full"], 4, 5, T), "cross_causal": (masks["causal"], 4, T, 7)}
    for name, (mask, heads, t, s) in cases.items():
        q, k, v = tensor(arrays["q"][:, :t]), tensor(arrays[f"k{heads}"][:, :s]), tensor(arrays[f"v{heads}"][:, :s])
        out = attention(q, k, v, torch.tensor(mask[..., :t, :s]))
        made = {"out": numpy(out)} | gradients(out, arrays["w"][:, :t], {"q": q, "k": k, "v": v})
        arrays |= {f"{name}_{key}": array for key, array in made.items()}
    return arrays


# The float32 angle of position 4000 is itself off by 1e-4.
SETS = (
    rope_frequencies, xpos, sinusoidal, t5_buckets, t5_attention, t5_x_transformers, alibi, transformer_xl, cope,
    pope, sdpa,
)  # fmt: skip

if __name__ == "__main__":
    # The float32 angle of position 4000 is itself off by 1e-4.
    main({rope_rotations: 5e-4} | dict.fromkeys(SETS, 1e-5))
