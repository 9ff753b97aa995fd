"""Reference arrays of transforms of logits, weights and outputs of attention; see `make_frontier.py`."""

import contextlib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import numpy as np
import references
import torch
import torch.nn.functional as F
import transformers
from frontier_inputs import B, D, Given, H, N, T, causal, draw, slopes, visible
from make_golden import Arrays, gradients, numpy, tensor
from torch import Tensor, nn
from transformers import cache_utils, modeling_rope_utils
from transformers.masking_utils import chunked_causal_mask_function, sdpa_mask
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.llama4 import modeling_llama4 as llama4_model


def heads_first(arrays: Arrays, names: str = "qkv") -> list[Tensor]:
    """Leaves [B,N,T,H] made of arrays [B,T,N,H]."""
    return [tensor(arrays[name].swapaxes(1, 2).copy()) for name in names]


def hide(mask: Tensor) -> Tensor:
    """The additive form of a boolean mask."""
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def qkv(seed: int, queries: int = N, keys: int = N) -> Arrays:
    """q, k, v and the weights of the output's sum, [B,T,N,H]."""
    heads = {"q": queries, "k": keys, "v": keys, "w": queries}
    return {name: draw(seed + i, B, T, count, H) for i, (name, count) in enumerate(heads.items())}


# Temperatures and starts of the softmax -----------------------------------------------------------------------------


def scalable_softmax(folder: Path) -> Arrays:
    """SSMax in causal attention: each row is a softmax over the keys it sees, so that n = i + 1; s per head."""
    module = references.load(references.SCALABLE_SOFTMAX, folder, "reference_scalable_softmax")
    arrays = qkv(300) | {"s": np.array([0.43, 0.9], np.float32), "b": np.array([0.3, -0.2], np.float32)}
    q, k, v, s, b = (tensor(arrays[name]) for name in "qkvsb")
    scores = torch.einsum("btnh,bsnh->bnts", q, k) * H**-0.5
    made = {}
    for case, bias in {"plain": False, "biased": True}.items():
        heads = []
        for head in range(N):
            layer = module.ScalableSoftmax(bias=bias)
            del layer.s, layer.b
            layer.s, layer.b = s[head], b[head]
            rows = [F.pad(layer(scores[:, head, i, : i + 1]), (0, T - 1 - i)) for i in range(T)]
            heads.append(torch.stack(rows, 1))
        out = torch.einsum("bnts,bsnh->btnh", torch.stack(heads, 1), v)
        made |= {f"{case}_out": numpy(out)}
    leaves = {"q": q, "k": k, "s": s, "b": b}
    return arrays | made | {"initial_s": numpy(module.ScalableSoftmax().s)} | gradients(out, arrays["w"], leaves)


def llama4(_: Path) -> Arrays:
    """Llama 4's layers with RoPE, norms and chunks of 5, and with a temperature instead; its scale far away."""
    arrays = {"x": draw(310, B, T, D), "w": draw(311, B, T, D)}
    shapes = {"q_proj": (4 * H, D), "k_proj": (2 * H, D), "v_proj": (2 * H, D), "o_proj": (D, 4 * H)}
    weights = {f"{name}.weight": draw(312 + i, *shape, scale=0.3) for i, (name, shape) in enumerate(shapes.items())}
    config = transformers.Llama4TextConfig(
        hidden_size=D, num_attention_heads=4, num_key_value_heads=2, head_dim=H, num_hidden_layers=2,
        no_rope_layers=[1, 0], floor_scale=3, attn_scale=0.4, attention_chunk_size=5, vocab_size=8,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )  # fmt: skip
    config._attn_implementation = "eager"
    chunked = chunked_causal_mask_function(5, torch.zeros(B, dtype=torch.int64))
    chunks = sdpa_mask(batch_size=B, q_length=T, kv_length=T, mask_function=chunked, allow_is_causal_skip=False)
    arrays["chunk_mask"] = chunks[0, 0].numpy()
    made = {}
    for index, (name, mask) in enumerate({"rope": chunks, "temperature": causal()[None, None]}.items()):
        layer = llama4_model.Llama4TextAttention(config, index).eval()
        for key, array in weights.items():
            layer.get_parameter(key).data = tensor(array).detach()
        x = tensor(arrays["x"])
        turns = llama4_model.Llama4TextRotaryEmbedding(config)(x, torch.arange(T)[None])
        out, _ = layer(x, turns, hide(mask))
        leaves = {"x": x, "k_proj.weight": layer.k_proj.weight}
        made |= {f"{name}_out": numpy(out)}
        made |= {f"{name}_{key}": array for key, array in gradients(out, arrays["w"], leaves).items()}
    return arrays | weights | made | llama4_scale()


def llama4_scale() -> Arrays:
    """The factor on q by position with the default configuration, seen as what becomes of queries of ones."""
    config = transformers.Llama4TextConfig(
        num_hidden_layers=1, no_rope_layers=[0], hidden_size=D, num_attention_heads=1, num_key_value_heads=1, head_dim=H
    )  # fmt: skip
    config._attn_implementation = "eager"
    layer = llama4_model.Llama4TextAttention(config, 0)
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(layer, name, Given(torch.ones(1, 2, H)))
    layer.o_proj = nn.Identity()
    starts = [0, 8190, 16382, 65534, 131070, 1_000_000]
    found = []
    for start in starts:
        cache = SimpleNamespace(get_seq_length=lambda _, start=start: start, update=lambda k, v, _: (k, v))
        attend = llama4_model.eager_attention_forward
        with mock.patch.object(llama4_model, "eager_attention_forward", wraps=attend) as seen:
            layer(torch.zeros(1, 2, D), None, None, cache)
        found.append(numpy(seen.call_args.args[1][0, 0, :, 0]))
    positions = (np.array(starts)[:, None] + np.arange(2)).ravel()
    return {"scale_position": positions, "scale": np.concatenate(found)}


def sinks(_: Path) -> Arrays:
    """gpt-oss: a learned logit per head that takes weight and gives nothing; four heads share two keys."""
    arrays = qkv(320, queries=4, keys=2) | {"sinks": draw(324, 4, scale=2.0)}
    made = {}
    for name, mask in {"causal": causal(), "window": causal() & ~causal().tril(-4)}.items():
        q, k, v = heads_first(arrays)
        layer = SimpleNamespace(num_key_value_groups=2, sinks=tensor(arrays["sinks"]), training=False)
        out, _ = gpt_oss.eager_attention_forward(layer, q, k, v, hide(mask), H**-0.5)
        found = gradients(out, arrays["w"], {"q": q, "k": k, "v": v, "sinks": layer.sinks})
        made |= {f"{name}_out": numpy(out), f"{name}_grad_sinks": found.pop("grad_sinks")}
        if name == "causal":
            made |= {key: array.swapaxes(1, 2) for key, array in found.items()}
    return arrays | made


# Weights that no softmax makes --------------------------------------------------------------------------------------


def stick_breaking(folder: Path) -> Arrays:
    """Stick-breaking: `strict` sees earlier keys only, as published by default; `current` sees its own key as well."""
    module = references.load(references.STICK_BREAKING, folder, "reference_stick_breaking")
    arrays = qkv(330)
    made = {}
    for name, diagonal in {"strict": 0, "current": 1}.items():
        q, k, v = heads_first(arrays)
        hidden, after = torch.ones(T, T, dtype=torch.bool).triu(diagonal), torch.ones(T, T).tril(-1)
        out, rest = module.stickbreaking(q, k, v, hidden, after)
        weights, _ = module.stickbreaking(q, k, torch.eye(T).expand(B, N, T, T), hidden, after)
        made |= {f"{name}_out": numpy(out.transpose(1, 2)), f"{name}_rest": numpy(rest)}
        made |= {f"{name}_weights": numpy(weights)}
        whole = out + rest[..., None] * v
        found = gradients(whole.transpose(1, 2), arrays["w"], {"q": q, "k": k, "v": v})
        made |= {f"{name}_whole_{key}": array.swapaxes(1, 2) for key, array in found.items()}
    return arrays | made


def path_attention(folder: Path) -> Arrays:
    """PaTH: keys pass Householder-like maps on their way to the query; forget gates of `gated` share the scale."""
    module = references.load(references.PATH_ATTENTION, folder, "reference_path_attention")
    arrays = qkv(340, queries=4, keys=2)
    direction = draw(344, B, T, 2, H)
    arrays |= {"direction": direction / np.linalg.norm(direction, axis=-1, keepdims=True)}
    arrays |= {"beta": (2 / (1 + np.exp(-draw(345, B, T, 2)))).astype(np.float32)}
    arrays |= {"log_gate": -np.abs(draw(346, B, T, 4))}
    leaves = {name: tensor(array) for name, array in arrays.items() if name != "w"}
    q, k, v, w, beta, gate = leaves.values()
    plain = module.naive_path_attn(q, k, v, w, beta, torch.zeros(B, T, 4), H**-0.5, chunk_size=4)
    gated = module.naive_path_attn(q, k, v, w, beta, gate, H**-0.5, chunk_size=16)
    return arrays | {"plain_out": numpy(plain), "gated_out": numpy(gated)} | slopes(gated, arrays["w"], leaves)


# Maps across heads and of outputs -----------------------------------------------------------------------------------


def dape(folder: Path) -> Arrays:
    """DAPE (v1) with ALiBi and with KERPLE (log): logits before the mask, 0 where it hides."""
    module = references.load(references.DAPE, folder, "reference_dape")
    heads, width = 4, 6
    arrays = {"q": draw(350, B, T, heads, H), "k": draw(351, B, T, heads, H), "w": draw(352, B, heads, T, T)}
    arrays |= {"mlp2.0.weight": draw(353, width, 2 * heads, scale=0.5), "mlp2.0.bias": draw(354, width)}
    arrays |= {"mlp2.2.weight": draw(355, heads, width, scale=0.5), "mlp2.2.bias": draw(356, heads)}
    arrays |= {"kerple_p": np.abs(draw(357, heads, 1, 1)) + 0.1, "kerple_a": np.abs(draw(358, heads, 1, 1)) + 0.1}
    arrays["w"] *= causal().numpy()
    options = SimpleNamespace(
        num_attention_heads=heads, pos_emb="kerple", params_dtype=torch.get_default_dtype(), mlp_width=width
    )
    with mock.patch.object(torch.cuda, "current_device", return_value="cpu"):
        layers = {"alibi": module.AliBi_DAPE(heads, mp_rank=0, mlp_width=width)}
        layers["kerple"] = module.ParallelKerpleLog_DAPE(options, 0)
    made = {}
    for name, layer in layers.items():
        q, k = tensor(arrays["q"]), tensor(arrays["k"])
        leaves = {"q": q, "k": k} | dict(layer.mlp2.named_parameters(prefix="mlp2"))
        for key in ("mlp2.0.weight", "mlp2.0.bias", "mlp2.2.weight", "mlp2.2.bias"):
            leaves[key].data = tensor(arrays[key]).detach()
        if name == "kerple":
            leaves |= {"kerple_p": layer.bias_p, "kerple_a": layer.bias_a}
            layer.bias_p.data, layer.bias_a.data = (tensor(arrays[f"kerple_{x}"]).detach() for x in "pa")
        logits = layer(torch.einsum("btnh,bsnh->bnts", q, k) * H**-0.5)
        made |= {f"{name}_logits": visible(logits)}
        found = gradients(logits, arrays["w"], leaves)
        made |= {f"{name}_{key}": array for key, array in found.items() if name == "kerple" or "mlp" in key}
    return arrays | made


def gated(folder: Path) -> Arrays:
    """Gated attention (Qwen3 with QK-norm off): a sigmoid per head or per channel on the output of the softmax."""
    module = load_gated(folder)
    heads, keys = 4, 2
    arrays = {"x": draw(360, B, T, D), "w": draw(361, B, T, D)}
    made = {}
    rotary = llama.LlamaRotaryEmbedding(
        transformers.LlamaConfig(
            hidden_size=D, num_attention_heads=heads, head_dim=H,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        )
    )  # fmt: skip
    for name, extra in {"headwise": heads, "elementwise": heads * H}.items():
        shapes = {"q_proj": (heads * H + extra, D), "k_proj": (keys * H, D), "v_proj": (keys * H, D)}
        shapes |= {"o_proj": (D, heads * H)}
        weights = {f"{p}.weight": draw(362 + i, *shape, scale=0.3) for i, (p, shape) in enumerate(shapes.items())}
        config = SimpleNamespace(
            hidden_size=D, num_attention_heads=heads, num_key_value_heads=keys, head_dim=H, attention_dropout=0.0,
            max_position_embeddings=64, rope_theta=10_000.0, use_qk_norm=False, qkv_bias=False, rms_norm_eps=1e-6,
            headwise_attn_output_gate=name == "headwise", elementwise_attn_output_gate=name == "elementwise",
        )  # fmt: skip
        with mock.patch.object(module, "Qwen3RotaryEmbedding", return_value=nn.Identity()):
            layer = module.Qwen3Attention(config, 0).eval()
        for key, array in weights.items():
            layer.get_parameter(key).data = tensor(array).detach()
        x = tensor(arrays["x"])
        out, _, _ = layer(x, hide(causal())[None, None], position_embeddings=rotary(x, torch.arange(T)[None]))
        made |= {f"{name}_out": numpy(out), f"{name}_grad_x": gradients(out, arrays["w"], {"x": x})["grad_x"]}
        made |= {f"{name}_q_proj.weight": weights.pop("q_proj.weight")} | weights
    return arrays | made


def load_gated(folder: Path) -> ModuleType:
    """The authors' Qwen3 of an older transformers, inside the installed one."""

    def unchanged(*_: object, **__: object) -> object:
        return lambda function: function

    names = ("add_code_sample_docstrings", "add_start_docstrings", "add_start_docstrings_to_model_forward")
    utils = dict.fromkeys((*names, "replace_return_docstrings"), unchanged)
    utils |= {"is_flash_attn_2_available": lambda: False, "is_flash_attn_greater_or_equal_2_10": lambda: False}
    gone = {transformers.utils: utils, cache_utils: {"SlidingWindowCache": type("SlidingWindowCache", (), {})}}
    gone |= {modeling_rope_utils: {"rope_config_validation": lambda _: None}}
    with contextlib.ExitStack() as stack:
        stack.enter_context(references.installed([references.module("reference_gated")]))
        for place, contents in gone.items():
            stack.enter_context(mock.patch.multiple(place, create=True, **contents))
        config = references.load(references.GATED_CONFIG, folder, "reference_gated.configuration_qwen3")
        stack.enter_context(references.installed([config]))
        return references.load(references.GATED_MODEL, folder, "reference_gated.modeling_qwen3")
