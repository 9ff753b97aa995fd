"""Makes `recent_*.npz`: encodings of 2025 and 2026 by their authors' code, and Inkling's bias by x-transformers.

Of files that import what is not installed, classes and functions run alone, as they are written. As in `newer.py`, in float32
and again in float64. All are causal.
"""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from entmax import entmax_bisect
from torch import nn
from x_transformers import x_transformers as xt

from scripts.golden.common import (
    Arrays,
    Given,
    attention,
    causal,
    definitions,
    draw,
    gradients,
    hide,
    load,
    main,
    numpy,
    stand_ins,
    tensor,
)
from scripts.golden.newer import B, D, H, T, assign, inputs, leaves_of, slopes

ASENTMAX = "deep-spin/asentmax/synthetic/src/models/architectures"
GRAPE = "model-architectures/GRAPE/model"
CACHE = "from collections.abc import MutableMapping\n"
NAMES = {"kernel": "weight", "bias": "bias"}
HEADS = 4
"""Query heads; two key heads where the code knows groups."""


def with_x(seed: int, **options: Any) -> Arrays:
    """Tokens beside q, k, v and the weights of the sum."""
    return {"x": draw(seed, B, T, D)} | inputs(seed + 1, **options)


def bam() -> Arrays:
    """The bias of BAM with a location, and attention with it."""
    module = definitions("ArthurSBianchessi/BAM/models/bam.py", "AttentionPrior", before="print0 = lambda *_: None")
    arrays = inputs(400, queries=HEADS, keys=2)
    given = {"alpha": ("scale", -0.6), "beta": ("shape", 0.7), "mu": ("loc", 0.4)}
    arrays |= {
        name: draw(404 + i, HEADS, scale=0.3) + np.float32(at) for i, (name, (_, at)) in enumerate(given.items())
    }
    options = {"max_seq_len": T, "n_heads": HEADS, "scale_init": 1, "shape_init": 1, "loc_init": 0}
    options |= {"train_shape": True, "train_scale": True, "train_loc": True}
    layer, leaves = module.AttentionPrior(SimpleNamespace(**options)), leaves_of(arrays)
    for name, (place, _) in given.items():
        delattr(layer, place)
        setattr(layer, place, leaves[name].reshape(1, HEADS, 1, 1))
    out = attention(*(leaves[name] for name in "qkv"), layer(T) + hide(causal(T)))
    return arrays | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def nape() -> Arrays:
    """Slopes of 6 heads, three of them with a bias, and attention with the bias."""
    module = definitions(f"{ASENTMAX}/sparse_gemma.py", "get_nape_slopes", "make_bias_tensor")
    arrays, made = inputs(410, queries=6), {}
    for kind in ("linear", "exp"):
        leaves, slope = leaves_of(arrays), module.get_nape_slopes(6, 3, kind).to(torch.get_default_dtype())
        q, k, v = (x.repeat_interleave(6 // x.shape[2], 2) for x in (leaves[name] for name in "qkv"))
        out = attention(q, k, v, module.make_bias_tensor(slope, T) + hide(causal(T)))
        made |= {f"{kind}_out": numpy(out), f"{kind}_slope": numpy(slope)}
    return arrays | made


def grape() -> Arrays:
    """GRAPE-M with frequencies of each head, that are not those of RoPE."""
    module = definitions(f"{GRAPE}/llama-mha-grape-m-nonctx.py", "MSGRAPECommuting", "apply_rotary_emb")
    arrays = inputs(420)
    layer = module.MSGRAPECommuting(
        2, H, share_across_heads=False, log_freq_scale=16.0, cache_dtype=torch.get_default_dtype()
    )
    arrays["log_frequencies"] = numpy(layer.log_freq).astype(np.float32) + draw(424, 2, H // 2, scale=5)
    leaves = leaves_of(arrays)
    del layer.log_freq
    layer.log_freq = leaves["log_frequencies"]
    out = attention(*layer(leaves["q"], leaves["k"]), leaves["v"], causal(T))
    return arrays | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def fope() -> Arrays:
    """FoPE with heads of 16 channels, 4 series of 5 waves, that are fewer than the 8 of RoPE."""
    path, wide, heads = "TsinghuaC3I/Fourier-Position-Embedding/olmo/model.py", 16, 2
    module = definitions(
        path, "BufferCache", "_non_meta_init_device", "RotaryEmbedding", "FourierEmbedding", before=CACHE
    )
    config = dict.fromkeys(("learnable", "no_repetition", "no_pos", "include_neg_freq", "clamp_to_linear"), False)
    config |= {
        "init_distribution": "exponential",
        "init_floor_freq": 0.0,
        "init_upper_freq": 1.0,
        "zero_freq_ratio": -1.0,
    }
    config |= {
        "clamp_floor_freq": True,
        "clamp_floor_to_zero": True,
        "floor_freq_ratio": 1.0,
        "clamp_upper_freq": False,
    }
    config |= {"clamp_to_linear_mode": "ceil", "full_precision": True, "theta": 100}
    series = {"dim": 0, "init": "eye_xavier_norm", "init_norm_gain": 0.3, "norm": False, "learnable": True}
    series |= dict.fromkeys(("ignore_zero", "separate_head", "separate_basis"), True)
    layer = module.FourierEmbedding(
        SimpleNamespace(
            **{f"rope_{name}": value for name, value in config.items()},
            **{f"fourier_{name}": value for name, value in series.items()},
            fourier=True, len_extra=False, max_sequence_length=64, d_model=wide * heads, n_heads=heads, init_device="cpu",
        ),
        module.BufferCache(), use_rope_cache=False,
    )  # fmt: skip
    arrays = {name: draw(430 + i, B, T, heads, wide) for i, name in enumerate("qkvw")}
    shape = tuple(layer.sin_coef.shape)
    arrays |= {name: draw(434 + i, *shape, scale=0.5) for i, name in enumerate(("sin", "cos"))}
    leaves = leaves_of(arrays)
    del layer.sin_coef, layer.cos_coef
    layer.sin_coef, layer.cos_coef = leaves["sin"], leaves["cos"]
    q, k = (layer(leaves[name].transpose(1, 2), T).transpose(1, 2) for name in "qk")
    out = attention(q, k, leaves["v"], causal(T))
    return arrays | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def wall() -> Arrays:
    """Wall attention of four query heads and two key heads, whose gates forget within the sequence."""
    cumsum = lambda g, cu_seqlens=None, scale=1.0: g.cumsum(1) * scale
    modules = {"fla": {}, "fla.ops": {}, "fla.ops.utils": {}, "fla.ops.utils.constant": {"RCP_LN2": 1 / math.log(2)}}
    modules |= {"fla.ops.utils.cumsum": {"chunk_global_cumsum": cumsum}}
    path = "fla-org/flash-linear-attention/fla/ops/wall_attn/naive.py"
    naive = load(path, "reference_wall", stand_ins(modules))
    arrays = with_x(440, queries=HEADS, keys=2)
    arrays |= {"gate_kernel": draw(445, HEADS, H, D, scale=D**-0.5), "gate_bias": draw(446, HEADS, H) + np.float32(1)}
    leaves = leaves_of(arrays)
    g = F.logsigmoid(torch.einsum("btd,nhd->btnh", leaves["x"], leaves["gate_kernel"]) + leaves["gate_bias"])
    out = naive.naive_wall_attn(*(leaves[name] for name in "qkv"), g, scale=H**-0.5)
    return arrays | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def inkling() -> Arrays:
    """Curves of five distances."""
    arrays = with_x(450)
    arrays |= {"kernel": draw(455, 2 * 3, D, scale=0.5), "bias": draw(456, 2 * 3), "curves": draw(457, 3, 5)}
    layer = xt.RelativeProjPositionalBias(D, 2, num_distance_basis=3, max_dist=5)
    assign(layer, {"to_distance_weights.0.weight": arrays["kernel"], "to_distance_weights.0.bias": arrays["bias"]})
    assign(layer, {"distance_bank": arrays["curves"]})
    x, q, k, v = (tensor(arrays[name]) for name in "xqkv")
    out = attention(q, k, v, layer(x) + hide(causal(T)))
    leaves = {"x": x, "q": q, "k": k, "curves": layer.distance_bank}
    leaves |= {name: layer.get_parameter(f"to_distance_weights.0.{place}") for name, place in NAMES.items()}
    return arrays | {"out": numpy(out)} | gradients(out, arrays["w"], leaves)


def tra() -> Arrays:
    """A layer of TRA whose projections return queries and keys that are normalized already; its last one is the identity."""
    path = "abhishekpanigrahi1996/MOSS/submissions/submission-96/TRA_FFL.ipynb"
    module = definitions(path, "TRA", "RMSNorm")
    arrays = with_x(460) | {"kernel": draw(465, 2, D, scale=0.5), "bias": draw(466, 2)}
    layer = module.TRA(D, 2, 0.0, max_len=T).eval()
    leaves = leaves_of(arrays)
    for name, place in {"q": "toqueries", "k": "tokeys", "v": "tovalues"}.items():
        setattr(layer, place, Given(leaves[name].flatten(2)))
    layer.qk_norm, layer.c_out = nn.Identity(), nn.Identity()
    layer.delta_proj = Given(torch.einsum("btd,nd->btn", leaves["x"], leaves["kernel"]) + leaves["bias"])
    out = layer(leaves["x"]).unflatten(-1, (2, H))
    return arrays | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def asentmax() -> Arrays:
    """The factors of queries by the authors' method, and 1.5-entmax of each row of scores."""
    arrays = with_x(470, scale=1.5) | {"beta": draw(475, 2, D, scale=0.3), "gamma": draw(476, 2, D, scale=0.3)}
    module = definitions(f"{ASENTMAX}/sparse_gemma.py", "SparseGemma2Attention._apply_length_scaling")
    leaves = leaves_of(arrays)
    x, q, k, v, beta, gamma = (leaves[name] for name in ("x", *"qkv", "beta", "gamma"))
    layer = SimpleNamespace(
        log_position=torch.log(torch.arange(2, T + 2).to(torch.get_default_dtype())).reshape(1, 1, -1, 1),
        num_scaled_heads=2, attn_scale_type="adapt-softplus-tanh", attn_scale_delta=1, attn_scale_gamma_range=2,
        attn_scale_beta_proj=lambda x: x @ beta.T, attn_scale_gamma_proj=lambda x: x @ gamma.T,
    )  # fmt: skip
    scaled = module._apply_length_scaling(layer, q.transpose(1, 2).clone(), x, T, T)
    scores = scaled @ k.permute(0, 2, 3, 1) * H**-0.5 + hide(causal(T))
    weights = entmax_bisect(scores, 1.5, dim=-1, n_iter=60)
    out = (weights @ v.transpose(1, 2)).transpose(1, 2)
    return arrays | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def coupled() -> Arrays:
    """Token ids (10 is +, 11 is =) and positions of additions whose answer is reversed; zeros fill up numbers."""
    path, name = "HanseulJo/position-coupling/src/data/addition.py", "AdditionDatasetWithCoupledPositions"
    data = definitions(path, name, before="class AdditionDataset: pass").AdditionDatasetWithCoupledPositions
    options = {"reverse_input": False, "reverse_output": True, "randomize": False, "vanilla": False, "pad_token": "0"}
    given = SimpleNamespace(**options, inputs=["653+P49", "7+8"], labels=["207P", "51"])
    rows = []
    for index in range(2):
        inputs, labels, of_inputs, of_labels = data.__getitem__(given, index)
        tokens = [{"+": 10, "=": 11}.get(token) or int(token) for token in f"{inputs} = {labels}".split()]
        rows.append([tokens, of_inputs + of_labels])
    width = len(rows[0][0])
    padded = [[*tokens, *[11] * (width - len(tokens))] for tokens, _ in rows]
    positions = [[*pos, *[1] * (width - len(pos))] for _, pos in rows]
    return {"tokens": np.array(padded), "positions": np.array(positions)}


SETS = dict.fromkeys((bam, nape, grape, fope, wall, inkling, tra, asentmax, coupled), 1e-4)

if __name__ == "__main__":
    main(SETS, "recent_")
