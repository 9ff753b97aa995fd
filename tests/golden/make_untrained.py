"""Make the reference arrays `untrained_*.npz` of methods that extend a context without training, from their authors' code.

Nothing here imports attnjax. REFERENCES is a folder with the files that `references.py` lists:

    golden/bin/pip install torch==2.13.0 transformers==5.23.0 x-transformers==2.31.10 numpy==2.4.6 einops==0.8.2
    golden/bin/python tests/golden/make_untrained.py REFERENCES

The published code runs unchanged, in float32 and again in float64 (`make_golden.in_double`), on one layer whose projections
return given queries, keys and values, with RoPE of base 10,000 in the half layout. What it imports and is not installed, or has
changed since (flash-attn, transformers 4.31), has a stand-in here, in plain torch. README.md says what each array is.
"""

import argparse
import functools
import importlib
import importlib.metadata
import math
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import references
import torch
from frontier_inputs import Given, causal, draw
from make_golden import FOLDER, Arrays, gradients, in_double, numpy, tensor
from torch import Tensor, nn
from transformers.models.llama import modeling_llama as llama

B, T, N, K, H = 2, 30, 4, 2, 8


def rotary(length: int, divisor: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, H] of RoPE, position by position, as LLaMA has them."""
    frequencies = 10_000.0 ** (-torch.arange(0, H, 2, dtype=torch.get_default_dtype()) / H)
    angle = torch.outer(torch.arange(length, dtype=torch.get_default_dtype()) / divisor, frequencies)
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


def by_length(_: Tensor, seq_len: int, divisor: float = 1.0) -> tuple[Tensor, Tensor]:
    """The rotary module of transformers 4.31: tables [1, 1, length, H]."""
    return tuple(table[None, None] for table in rotary(seq_len, divisor))


def at_positions(_: Tensor, pos: Tensor, seq_len: None = None) -> tuple[Tensor, Tensor]:
    """The rotary module of transformers from 4.38 on: tables [B, T, H] at positions, which may be fractional."""
    frequencies = 10_000.0 ** (-torch.arange(0, H, 2, dtype=torch.get_default_dtype()) / H)
    angle = pos.to(frequencies.dtype)[..., None] * frequencies
    angle = torch.cat([angle, angle], -1)
    return angle.cos(), angle.sin()


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


def self_extend(folder: Path) -> Arrays:
    """Groups of 4 beyond a window of 8."""
    stars = references.module("flash_attn", flash_attn_func=None, flash_attn_varlen_func=None)
    name = "reference_self_extend"
    parts = [references.module(name)]
    for part in ("selfextend_flash_attn", "selfextend_flash_attn_triton"):
        functions = {"self_extend_flash_forward": None, "self_extend_flash_forward_triton": None}
        parts.append(references.module(f"{name}.{part}", **functions))
    with references.installed([stars, *parts]):
        module = references.load(references.SELF_EXTEND, folder, f"{name}.Llama")
    arrays, leaves = inputs(200)
    out, _, _ = module.self_extend_forward(
        layer(leaves, rotary_emb=at_positions),
        torch.zeros(B, T, 1),
        attention_mask=hidden(),
        position_ids=torch.arange(T)[None].expand(B, T),
        group_size_1=4,
        group_size_2=8,
    )
    return kept(arrays, leaves, out)


def of_llama_4_31(source: references.Source, folder: Path) -> ModuleType:
    """A file that takes everything from the LLaMA of transformers 4.31."""
    names = {"rotate_half": llama.rotate_half, "repeat_kv": llama.repeat_kv, "nn": nn, "math": math}
    names |= {"Optional": typing.Optional, "Tuple": tuple, "LlamaAttention": type("LlamaAttention", (), {})}
    names |= {"LlamaRotaryEmbedding": None, "LlamaLinearScalingRotaryEmbedding": None}
    star = references.module("transformers.models.llama.modeling_llama", **names)
    with references.installed([star]):
        return references.load(source, folder, "reference_rerope")


def rerope(folder: Path) -> Arrays:
    """A window of 7, and log-n scaling past 11 tokens, which is part of the code."""
    module = of_llama_4_31(references.REROPE, folder)
    module.window, module.training_length = 7, 11
    return kept(*_rectified(module.forward_with_rerope, 210, {"rotary_emb": by_length}))


def leaky_rerope(folder: Path) -> Arrays:
    """A window of 6 and a factor of 4; log-n scaling past 11 tokens."""
    module = of_llama_4_31(references.LEAKY_REROPE, folder)
    module.window, module.training_length, module.scaling_factor = 6, 11, 4
    own = {"rotary_emb": by_length, "rotary_emb2": functools.partial(by_length, divisor=4.0)}
    return kept(*_rectified(module.forward_with_leaky_rerope, 220, own))


def _rectified(forward: Callable[..., Any], seed: int, own: dict[str, Any]) -> tuple[Arrays, dict[str, Tensor], Tensor]:
    arrays, leaves = inputs(seed)
    # The code multiplies queries in place, which torch refuses on the view of a leaf.
    given = leaves | {"q": leaves["q"] * 1}
    # One row of positions, since the mask of the code is made for one example.
    pos = torch.arange(T)[None]
    out, _, _ = forward(layer(given, **own), torch.zeros(B, T, 1), attention_mask=hidden(), position_ids=pos)
    return arrays, leaves, out


def lm_infinite(folder: Path) -> Arrays:
    """3 first keys and a window of 9 keys; distances up to 9, and 14, with gradients. Heads have keys of their own."""
    name = "reference_lm_infinite"
    base = references.module(f"{name}.model_base", Model_Base=object)
    with references.installed([references.module(name), base]):
        branches = references.load(references.LAMBDA_ATTENTION, folder, f"{name}.lambda_attention")
        with references.installed([branches]):
            module = references.load(references.LM_INFINITE, folder, f"{name}.llama")
    arrays, leaves = inputs(230, N)
    made = {}
    for limit in (9, 14):
        table = mock.Mock(side_effect=at_positions, inv_freq=torch.ones(1))
        forward = module.attn_forward_factory(
            layer(leaves, rotary_emb=table), True, 9, 3, limit, 0, None, None, None, None, 0
        )
        out, _, _ = forward(torch.zeros(B, T, 1), position_ids=torch.arange(T)[None].expand(B, T))
        out = out.unflatten(-1, (N, H))
        made |= {f"out_{limit}": numpy(out)}
    return arrays | made | gradients(out, arrays["w"], leaves)


def dual_chunk(folder: Path) -> Arrays:
    """Chunks of 12 tokens with 3 of them local, for a model trained at 16, without gradients, which the code cuts off."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, causal: bool, return_attn_probs: bool
    ) -> tuple[Tensor, Tensor, None]:
        """flash-attn on [B, T, N, H]: output and log-sum-exp [B, N, T]."""
        logits = torch.einsum("btnh,bsnh->bnts", q, k) / math.sqrt(H)
        if causal:
            logits = logits.masked_fill(~torch.ones(logits.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
        return torch.einsum("bnts,bsnh->btnh", logits.softmax(-1), v), logits.logsumexp(-1), None

    flash = references.module("flash_attn.flash_attn_interface", flash_attn_func=attend, flash_attn_qkvpacked_func=None)
    with references.installed([references.module("flash_attn"), flash]):
        module = references.load(references.DUAL_CHUNK, folder, "reference_dual_chunk")
    module.chunk_size, module.local_window = 12, 3
    table = module.ChunkLlamaRotaryEmbedding(H, max_position_embeddings=T)
    arrays, leaves = inputs(240)
    pos = torch.arange(T)[None].expand(B, T)
    # Its weights of chunks are rounded to bfloat16.
    with mock.patch.object(torch, "bfloat16", torch.get_default_dtype()):
        out, _, _ = module.forward(layer(leaves, rotary_emb=table), torch.zeros(B, T, 1), position_ids=pos)
    return {name: arrays[name] for name in "qkv"} | {"out": numpy(out.unflatten(-1, (N, H)))}


def streaming_llm(folder: Path) -> Arrays:
    """Token by token, with 2 first keys and the last 6 kept after each, as in the evaluation of perplexity."""
    cache_of = references.load(references.STREAMING_CACHE, folder, "reference_streaming_cache").StartRecentKVCache
    module = references.load(references.STREAMING_LLAMA, folder, "reference_streaming")
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


def resonance(folder: Path) -> Arrays:
    """Frequencies and attention factors: of plain RoPE (YaRN by a factor of 1), of YaRN by 4 and by 16; tables of the last."""
    module = references.load(references.RESONANCE, folder, "reference_resonance")
    made = {}
    for factor in (1, 4, 16):
        found = module.LlamaYaRNScaledResonanceRotaryEmbedding(
            64, max_position_embeddings=512, scale=factor, original_max_position_embeddings=128
        )
        made |= {f"inv_freq_{factor}": numpy(found.r_inv_freq), f"attention_factor_{factor}": np.float64(found.mscale)}
    made |= {name: numpy(getattr(found, f"{name}_cached")[0, 0, :96]) for name in ("cos", "sin")}
    return made


SETS = {
    self_extend: 1e-4,
    rerope: 1e-4,
    leaky_rerope: 1e-4,
    lm_infinite: 1e-4,
    dual_chunk: 1e-4,
    streaming_llm: 1e-4,
    resonance: 1e-4,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("references", type=Path, help="folder with the files of references.py")
    folder = parser.parse_args().references
    for name in ("torch", "transformers", "numpy", "einops"):
        print(name, importlib.metadata.version(name))
    for make, tolerance in SETS.items():
        given = functools.update_wrapper(functools.partial(make, folder), make)
        arrays = in_double(given, tolerance)
        path = FOLDER / f"untrained_{make.__name__}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path.name:32} {path.stat().st_size:7} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
