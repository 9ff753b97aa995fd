"""Makes `untrained_*.npz`: methods that extend a context without training, by their authors' code.

It runs unchanged, in float32 and again in float64, on one layer whose projections return given queries, keys and values, with
RoPE of base 10,000 in the half layout. What it imports and is not installed, or has changed since (flash-attn, transformers
4.31), has a stand-in here, in plain torch.
"""

import functools
import math
import typing
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn
from transformers.models.llama import modeling_llama as llama

from scripts.golden.common import Arrays, Given, causal, draw, gradients, load, main, numpy, stand_ins, tensor

B, T, N, K, H = 2, 30, 4, 2, 8
POSITIONS = torch.arange(T)[None]


def tables(pos: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., H] of RoPE at positions, as LLaMA has them."""
    frequencies = 10_000.0 ** (-torch.arange(0, H, 2, dtype=torch.get_default_dtype()) / H)
    angle = pos.to(frequencies.dtype)[..., None] * frequencies
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def by_length(_: Tensor, seq_len: int, divisor: float = 1.0) -> tuple[Tensor, Tensor]:
    """The rotary module of transformers 4.31: tables [1, 1, length, H]."""
    cos, sin = tables(torch.arange(seq_len) / divisor)
    return cos[None, None], sin[None, None]


def at_positions(_: Tensor, pos: Tensor, seq_len: None = None) -> tuple[Tensor, Tensor]:
    """The rotary module of transformers from 4.38 on: tables [B, T, H] at positions, which may be fractional."""
    return tables(pos)


def inputs(seed: int, heads: int = K) -> tuple[Arrays, dict[str, Tensor]]:
    """q, k, v and the weights of the sum that is differentiated."""
    arrays = {"q": draw(seed, B, T, N, H), "k": draw(seed + 1, B, T, heads, H), "v": draw(seed + 2, B, T, heads, H)}
    leaves = {name: tensor(array) for name, array in arrays.items()}
    return arrays | {"w": draw(seed + 3, B, T, N, H)}, leaves


def layer(leaves: dict[str, Tensor], **options: Any) -> Any:
    """What the patched `forward` reads of a layer of LLaMA."""
    groups = leaves["q"].shape[2] // leaves["k"].shape[2]
    made = SimpleNamespace(pretraining_tp=1, num_heads=N, num_key_value_heads=N // groups, num_key_value_groups=groups)
    made.head_dim, made.hidden_size, made.attention_dropout, made.training = H, N * H, 0.0, False
    made.config = made
    for name, leaf in leaves.items():
        setattr(made, f"{name}_proj", Given(leaf.flatten(2)))
    made.o_proj = nn.Identity()
    for name, value in options.items():
        setattr(made, name, value)
    return made


def hidden() -> Tensor:
    """The mask that transformers adds: the lowest number where a key lies ahead."""
    lowest = torch.finfo(torch.get_default_dtype()).min
    return torch.where(causal(T), 0.0, lowest)[None, None].expand(B, 1, T, T)


def kept(arrays: Arrays, leaves: dict[str, Tensor], out: Tensor) -> Arrays:
    """Inputs, output and gradients."""
    out = out.unflatten(-1, (N, H))
    return arrays | {"out": numpy(out)} | gradients(out, arrays["w"], leaves)


def self_extend() -> Arrays:
    """Groups of 4 beyond a window of 8."""
    name, nothing = (
        "reference_self_extend",
        {"self_extend_flash_forward": None, "self_extend_flash_forward_triton": None},
    )
    modules = {"flash_attn": {"flash_attn_func": None, "flash_attn_varlen_func": None}, name: {}}
    modules |= {f"{name}.{part}": nothing for part in ("selfextend_flash_attn", "selfextend_flash_attn_triton")}
    module = load("datamllab/LongLM/self_extend_patch/Llama.py", f"{name}.Llama", stand_ins(modules))
    arrays, leaves = inputs(200)
    out, _, _ = module.self_extend_forward(
        layer(leaves, rotary_emb=at_positions),
        torch.zeros(B, T, 1),
        attention_mask=hidden(),
        position_ids=POSITIONS.expand(B, T),
        group_size_1=4,
        group_size_2=8,
    )
    return kept(arrays, leaves, out)


def of_llama_4_31(file: str, **options: Any) -> ModuleType:
    """A file of rerope, which takes everything from the LLaMA of transformers 4.31, with its options."""
    names = {"rotate_half": llama.rotate_half, "repeat_kv": llama.repeat_kv, "nn": nn, "math": math}
    names |= {"Optional": typing.Optional, "Tuple": tuple, "LlamaAttention": type("LlamaAttention", (), {})}
    names |= {"LlamaRotaryEmbedding": None, "LlamaLinearScalingRotaryEmbedding": None}
    module = load(f"bojone/rerope/{file}", "reference_rerope", stand_ins({llama.__name__: names}))
    vars(module).update(options)
    return module


def rerope() -> Arrays:
    """A window of 7, and log-n scaling past 11 tokens, which is part of the code."""
    module = of_llama_4_31("rerope_patch.py", window=7, training_length=11)
    return rectified(module.forward_with_rerope, 210, {"rotary_emb": by_length})


def leaky_rerope() -> Arrays:
    """A window of 6 and a factor of 4; log-n scaling past 11 tokens."""
    module = of_llama_4_31("leaky_rerope_patch.py", window=6, training_length=11, scaling_factor=4)
    own = {"rotary_emb": by_length, "rotary_emb2": functools.partial(by_length, divisor=4.0)}
    return rectified(module.forward_with_leaky_rerope, 220, own)


def rectified(forward: Callable[..., Any], seed: int, own: dict[str, Any]) -> Arrays:
    """What a `forward` of rerope makes of seeded inputs."""
    arrays, leaves = inputs(seed)
    # The code multiplies queries in place, which torch refuses on the view of a leaf.
    given = leaves | {"q": leaves["q"] * 1}
    # One row of positions, since the mask of the code is made for one example.
    out, _, _ = forward(layer(given, **own), torch.zeros(B, T, 1), attention_mask=hidden(), position_ids=POSITIONS)
    return kept(arrays, leaves, out)


def lm_infinite() -> Arrays:
    """3 first keys and a window of 9 keys; distances up to 9, and 14, with gradients. Heads have keys of their own."""
    name = "reference_lm_infinite"
    modules = stand_ins({name: {}, f"{name}.model_base": {"Model_Base": object}})
    branches = load("Glaciohound/LM-Infinite/models/lambda_attention.py", f"{name}.lambda_attention", modules)
    module = load("Glaciohound/LM-Infinite/models/llama.py", f"{name}.llama", {**modules, branches.__name__: branches})
    arrays, leaves = inputs(230, N)
    for limit in (9, 14):
        table = mock.Mock(side_effect=at_positions, inv_freq=torch.ones(1))
        forward = module.attn_forward_factory(
            layer(leaves, rotary_emb=table), True, 9, 3, limit, 0, None, None, None, None, 0
        )
        out, _, _ = forward(torch.zeros(B, T, 1), position_ids=POSITIONS.expand(B, T))
        made = kept(arrays, leaves, out)
        arrays |= {f"out_{limit}": made.pop("out")}
    return made | arrays


def dual_chunk() -> Arrays:
    """Chunks of 12 tokens with 3 of them local, for a model trained at 16, without gradients, which the code cuts off."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, return_attn_probs: bool
    ) -> tuple[Tensor, Tensor, None]:
        """flash-attn on [B, T, N, H]: output and log-sum-exp [B, N, T]."""
        logits = torch.einsum("btnh,bsnh->bnts", q, k) / math.sqrt(H)
        if causal:
            logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return torch.einsum("bnts,bsnh->btnh", logits.softmax(-1), v), logits.logsumexp(-1), None

    flash = {"flash_attn_func": attend, "flash_attn_qkvpacked_func": None}
    modules = stand_ins({"flash_attn": {}, "flash_attn.flash_attn_interface": flash})
    module = load("HKUNLP/ChunkLlama/chunkllama_attn_replace.py", "reference_dual_chunk", modules)
    module.chunk_size, module.local_window = 12, 3
    table = module.ChunkLlamaRotaryEmbedding(H, max_position_embeddings=T)
    arrays, leaves = inputs(240)
    # Its weights of chunks are rounded to bfloat16.
    with mock.patch.object(torch, "bfloat16", torch.get_default_dtype()):
        given = layer(leaves, rotary_emb=table)
        out, _, _ = module.forward(given, torch.zeros(B, T, 1), position_ids=POSITIONS.expand(B, T))
    return {name: arrays[name] for name in "qkv"} | {"out": numpy(out.unflatten(-1, (N, H)))}


def streaming_llm() -> Arrays:
    """Token by token, with 2 first keys and the last 6 kept after each, as in the evaluation of perplexity."""
    folder = "mit-han-lab/streaming-llm/streaming_llm"
    cache_of = load(f"{folder}/kv_cache.py", "reference_streaming_cache").StartRecentKVCache
    module = load(f"{folder}/pos_shift/modify_llama.py", "reference_streaming")
    arrays, leaves = inputs(250)
    cache, past, rows = cache_of(start_size=2, recent_size=6), None, []
    for t in range(T):
        token = {name: leaf[:, t : t + 1] for name, leaf in leaves.items()}
        place = 0 if past is None else past[0][0].shape[2]
        out, _, now = module.llama_pos_shift_attention_forward(
            layer(token, rotary_emb=by_length),
            torch.zeros(B, 1, 1),
            position_ids=torch.full((B, 1), place),
            past_key_value=None if past is None else past[0],
            use_cache=True,
        )
        past, rows = cache([now]), [*rows, out]
    return kept(arrays, leaves, torch.cat(rows, 1))


def resonance() -> Arrays:
    """Frequencies and attention factors: of plain RoPE (YaRN by a factor of 1), of YaRN by 4 and by 16; tables of the last."""
    path = "sheryc/resonance_rope/llama_finetuning/scaled_rope/LlamaYaRNScaledResonanceRotaryEmbedding.py"
    module = load(path, "reference_resonance")
    made = {}
    for factor in (1, 4, 16):
        found = module.LlamaYaRNScaledResonanceRotaryEmbedding(
            64, max_position_embeddings=512, scale=factor, original_max_position_embeddings=128
        )
        made |= {f"inv_freq_{factor}": numpy(found.r_inv_freq), f"attention_factor_{factor}": np.float64(found.mscale)}
    made |= {name: numpy(getattr(found, f"{name}_cached")[0, 0, :96]) for name in ("cos", "sin")}
    return made


SETS = (self_extend, rerope, leaky_rerope, lm_infinite, dual_chunk, streaming_llm, resonance)

if __name__ == "__main__":
    main(dict.fromkeys(SETS, 1e-4), "untrained_")
