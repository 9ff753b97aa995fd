"""Makes `frontier_*.npz`: newer encodings by their authors' code and by transformers.

The published code runs unchanged, in float32 and again in float64, on inputs that float32 holds exactly. What is not installed
on a machine without a GPU (fla's kernels) has a stand-in in plain torch.
"""

import contextlib
import functools
from operator import attrgetter
from types import ModuleType, SimpleNamespace
from typing import TypedDict
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import cache_utils, modeling_rope_utils
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.llama import modeling_llama as llama
from transformers.models.llama4 import modeling_llama4 as llama4_model
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen
from x_transformers import x_transformers as xt

from scripts.golden.common import (
    Arrays,
    Given,
    attention,
    causal,
    draw,
    gradients,
    hide,
    load,
    main,
    numpy,
    stand_ins,
    tensor,
)

B, T, N, H = 2, 12, 2, 8
D = N * H
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}


def inputs(seed: int, queries: int = N, keys: int = N, scale: float = 1.0) -> Arrays:
    """q, k, v and the weights of the output's sum, [B,T,N,H]; `scale` is that of q and k."""
    heads = {"q": queries, "k": keys, "v": keys, "w": queries}
    sizes = {"q": scale, "k": scale}
    return {
        name: draw(seed + i, B, T, count, H, scale=sizes.get(name, 1)) for i, (name, count) in enumerate(heads.items())
    }


def leaves_of(arrays: Arrays) -> dict[str, Tensor]:
    """A leaf for each input but the weights of the sum."""
    return {name: tensor(array) for name, array in arrays.items() if name != "w"}


def heads_first(arrays: Arrays) -> list[Tensor]:
    """Leaves q, k, v [B,N,T,H] made of arrays [B,T,N,H]."""
    return [tensor(arrays[name].swapaxes(1, 2).copy()) for name in "qkv"]


def slopes(out: Tensor, w: np.ndarray, leaves: dict[str, Tensor]) -> Arrays:
    """`gradients` without those of v, whose way through any softmax is the same."""
    return gradients(out, w, {name: leaf for name, leaf in leaves.items() if name != "v"})


def visible(bias: Tensor) -> np.ndarray:
    """The entries of a bias that a causal mask lets through; 0 elsewhere."""
    return numpy(bias.masked_fill(~causal(T), 0.0))


def assign(layer: nn.Module, weights: Arrays) -> None:
    """Put arrays in the place of the parameters of their names."""
    for name, array in weights.items():
        attrgetter(name)(layer).data = tensor(array).detach()


# Forget gates: biases that are differences of a running sum ----------------------------------------------------------


def fox() -> Arrays:
    """Forgetting attention with shared keys, and in a window; the bias by x-transformers' DataDependentAlibi."""
    naive = load("fla-org/flash-linear-attention/fla/ops/forgetting_attn/naive.py", "reference_forgetting")
    arrays = {"x": draw(100, B, T, D)} | inputs(101, queries=2 * N)
    arrays |= {"gate_kernel": draw(105, D, 2 * N, scale=D**-0.5), "gate_bias": draw(106, 2 * N) + np.float32(1)}
    leaves = leaves_of(arrays)
    q, k, v = (leaves[name] for name in "qkv")
    made = {}
    for name, window in {"full": None, "window": 5}.items():
        log_gate = F.logsigmoid(leaves["x"] @ leaves["gate_kernel"] + leaves["gate_bias"])
        out = naive.naive_forgetting_attn(q, k, v, log_gate, window_size=window)
        made |= {"log_gate": numpy(log_gate), f"{name}_out": numpy(out)}
        if window is None:
            made |= slopes(out, arrays["w"], leaves)
    layer = xt.DataDependentAlibi(D, 2 * N)
    assign(layer.to_forget_gates[0], {"weight": arrays["gate_kernel"].T.copy(), "bias": arrays["gate_bias"]})
    bias = layer(leaves["x"])
    again = attention(q, k, v, bias.masked_fill(~causal(T), -torch.inf))
    torch.testing.assert_close(again, tensor(made["full_out"]).detach(), check_dtype=False, rtol=1e-4, atol=1e-5)
    return arrays | made | {"bias": visible(bias)}


def cable() -> Arrays:
    """Cable's attention, whose logits are not divided by sqrt(H); its output projection is the identity here."""
    module = load("axiomlab/Cable/src/Cable.py", "reference_cable")
    arrays = {"x": draw(110, B, T, D)} | inputs(111, scale=0.6)
    arrays |= {"gate_kernel": draw(115, D, N, scale=D**-0.5), "gate_bias": draw(116, N)}
    leaves = leaves_of(arrays)
    layer = module.CausalSelfAttention(SimpleNamespace(n_embd=D, n_head=N, block_size=T))
    layer.c_attn = Given(torch.cat([leaves[name].flatten(2) for name in "qkv"], -1))
    layer.c_proj = nn.Identity()
    layer.h_attn = Given(leaves["x"] @ leaves["gate_kernel"] + leaves["gate_bias"])
    with mock.patch.object(torch, "baddbmm", wraps=torch.baddbmm) as product:
        out = layer(leaves["x"]).unflatten(-1, (N, H))
    bias = product.call_args.args[0].reshape(B, N, T, T)
    return arrays | {"bias": visible(bias), "out": numpy(out)} | slopes(out, arrays["w"], leaves)


# Rotations -----------------------------------------------------------------------------------------------------------


def repo() -> Arrays:
    """RePo's position of each token and head, and attention with RoPE (half layout, base 10,000) at these positions."""
    module = load_repo()
    arrays, width = {"x": draw(120, B, T, D)} | inputs(121), D // 8
    arrays |= {"gate_kernel": draw(125, D, width, scale=0.5), "content_kernel": draw(126, D, width, scale=0.5)}
    arrays["final_kernel"] = draw(127, width, N)
    leaves = leaves_of(arrays)
    config = SimpleNamespace(
        hidden_size=D, num_attention_heads=N, num_key_value_heads=N, attention_dropout=0.0, attention_bias=False,
        rms_norm_eps=1e-6, rope_scaling=None, max_position_embeddings=64,
        rope_parameters={"rope_theta": 10_000.0},
    )  # fmt: skip
    default = lambda config, _: llama.LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    with mock.patch.dict(module.ROPE_INIT_FUNCTIONS, {"default": default}):
        rotary = module.Olmo2RotaryEmbedding(config)
    layer = module.Olmo2Attention(config, 0, rotary.from_positions, module.DynamicPeMode.SEXMH)
    for name in ("gate", "content", "final"):
        if tuple(getattr(layer, f"{name}_map").weight.shape) != arrays[f"{name}_kernel"].shape[::-1]:
            raise AssertionError(name)
        delattr(layer, f"{name}_map")
        setattr(layer, f"{name}_map", functools.partial(torch.matmul, other=leaves[f"{name}_kernel"]))
    positions, (cos, sin) = layer.dynamic_position_encoding_swigluex_multihead(leaves["x"], torch.arange(T)[None])
    q, k, v = (leaves[name].transpose(1, 2) for name in "qkv")
    turned_q, turned_k = module.apply_rotary_pos_emb(q, k, cos, sin)
    out, _ = module.eager_attention_forward(layer, turned_q, turned_k, v, hide(causal(T))[None, None], layer.scaling)
    made = {"positions": numpy(positions).reshape(B, N, T), "turned_q": numpy(turned_q.transpose(1, 2))}
    return arrays | made | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def load_repo() -> ModuleType:
    """RePo's fork of transformers' OLMo 2, inside the installed transformers."""
    folder, package = "SakanaAI/repo/transformers/src/transformers", "transformers.models.reference_repo"
    modes = load(f"{folder}/custom_modules/pe_utils.py", "transformers.custom_modules.pe_utils")
    modules = {**stand_ins({"transformers.custom_modules": {}, package: {}}), modes.__name__: modes}
    config = load(f"{folder}/models/olmo2/configuration_olmo2.py", f"{package}.configuration_olmo2", modules)
    same = lambda f: f
    gone = {"LossKwargs": TypedDict("LossKwargs", {}), "auto_docstring": same, "can_return_tuple": same}
    with mock.patch.multiple(transformers.utils, create=True, **gone):
        modules |= {config.__name__: config}
        return load(f"{folder}/models/olmo2/modeling_olmo2.py", f"{package}.modeling_olmo2", modules)


def selective_rope() -> Arrays:
    """Selective RoPE as configured for language models."""
    modules = {"fla": {}, "fla.modules": {}, "fla.modules.l2norm": {"l2_norm": l2_norm}}
    modules |= {"fla.modules.convolution": {"ShortConvolution": ShortConvolution}}
    path = "timurcarstensen/selective-rope/src/selective_rope/modules/rotary.py"
    module = load(path, "reference_selective_rope", stand_ins(modules))
    arrays = {"x": draw(130, B, T, D)} | inputs(131)
    layer = module.SelectiveRoPE(H, D, N, phi_proj_rank=4)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters() if name != "temperature"}
    weights = {name: draw(140 + i, *shape, scale=0.7) for i, (name, shape) in enumerate(shapes.items())}
    assign(layer, weights)
    x, q, k, v = (tensor(arrays[name]) for name in "xqkv")
    turned_q, turned_k, _ = layer(q, k, x)
    ones = torch.cat([torch.ones(B, T, N, H // 2), torch.zeros(B, T, N, H // 2)], -1)
    cosine_sine, _, _ = layer(ones, ones, x)
    out = attention(turned_q, turned_k, v, causal(T))
    leaves = {"x": x} | {name: layer.get_parameter(name) for name in weights}
    made = {"turned_q": numpy(turned_q), "cos_sin": numpy(cosine_sine), "out": numpy(out)} | weights
    made |= {"temperature": numpy(layer.temperature)[0, 0, 0]} | slopes(out, arrays["w"], leaves)
    return arrays | {f"low_rank_{name}": array for name, array in made.items()}


class ShortConvolution(nn.Conv1d):
    """fla's causal depthwise convolution (fla/modules/conv/short_conv.py), without its kernels and cache."""

    def __init__(self, hidden_size: int, kernel_size: int, bias: bool, activation: str | None, dtype: None) -> None:
        super().__init__(
            hidden_size, hidden_size, kernel_size, groups=hidden_size, bias=bias, padding=kernel_size - 1, dtype=dtype
        )
        self.activation = activation

    def forward(self, x: Tensor, **_: object) -> tuple[Tensor, None]:
        made = super().forward(x.mT)[..., : x.shape[1]].mT
        return (made if self.activation is None else F.silu(made)), None


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """fla's normalisation of the last axis (fla/modules/l2norm.py)."""
    return x / torch.sqrt((x * x).sum(-1, keepdim=True) + eps)


def multimodal_rope() -> Arrays:
    """M-RoPE of Qwen2-VL: three rows of positions (time, height, width), each for a section of the frequencies."""
    arrays = {"q": draw(200, B, T, N, 2 * H), "k": draw(201, B, T, N, 2 * H)}
    text, image = np.arange(4), np.array([[4, 4, 4, 4, 4, 4], [4, 4, 4, 5, 5, 5], [4, 5, 6, 4, 5, 6]])
    row = np.concatenate([np.stack([text] * 3), image, np.stack([np.arange(7, 9)] * 3)], 1)
    arrays["positions"] = np.stack([row, row + np.array([[40], [3], [500]])], 1)
    config = SimpleNamespace(
        max_position_embeddings=64, head_dim=2 * H, hidden_size=2 * H * N, num_attention_heads=N,
        rope_parameters={**ROPE, "mrope_section": [4, 3, 1]},
    )  # fmt: skip
    cos, sin = qwen.Qwen2VLRotaryEmbedding(config)(tensor(arrays["q"]), torch.tensor(arrays["positions"]))
    turned = qwen.apply_rotary_pos_emb(tensor(arrays["q"]), tensor(arrays["k"]), cos, sin, unsqueeze_dim=2)
    return arrays | {"turned_q": numpy(turned[0]), "turned_k": numpy(turned[1]), "section": np.array([4, 3, 1])}


def axial_rope() -> Arrays:
    """RoPE of images 4 wide and 3 high (interleaved layout): `axial`; `mixed` has frequencies per axis and pair."""
    module = load("naver-ai/rope-vit/self-attn/rope_self_attn.py", "reference_rope_vit")
    arrays = {"q": draw(210, B, T, N, H), "k": draw(211, B, T, N, H), "freqs": draw(212, 2, N, H // 2)}
    x, y = module.init_t_xy(4, 3)
    arrays["positions"] = np.stack([numpy(x), numpy(y)], -1)
    q, k = (tensor(arrays[name]).transpose(1, 2) for name in "qk")
    turns = {"axial": module.compute_axial_cis(H, 4, 3, theta=100.0)}
    turns["mixed"] = module.compute_mixed_cis(tensor(arrays["freqs"]).reshape(2, -1), x, y, N)
    for name, turn in turns.items():
        turned_q, turned_k = module.apply_rotary_emb(q, k, turn)
        arrays |= {f"{name}_q": numpy(turned_q.transpose(1, 2)), f"{name}_k": numpy(turned_k.transpose(1, 2))}
    drawn = np.array([0.1, 0.7], np.float32)
    with mock.patch.object(torch, "rand", side_effect=[tensor(each[None]).detach() for each in drawn]):
        initial = module.init_2d_freqs(H, N, theta=10.0)
    return arrays | {"initial_turns": drawn, "initial_freqs": numpy(initial)}


# Temperatures and starts of the softmax ------------------------------------------------------------------------------


def scalable_softmax() -> Arrays:
    """SSMax in causal attention: each row is a softmax over the keys it sees, so that n = i + 1; s per head."""
    module = load("gdevos010/Scalable-Softmax/src/scalable_softmax.py", "reference_scalable_softmax")
    arrays = inputs(300) | {"s": np.array([0.43, 0.9], np.float32), "b": np.array([0.3, -0.2], np.float32)}
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


def llama4() -> Arrays:
    """A layer of Llama 4 with the temperature, and the factor on queries far away."""
    shapes = {"q_proj": (4 * H, D), "k_proj": (2 * H, D), "v_proj": (2 * H, D), "o_proj": (D, 4 * H)}
    weights = {f"{name}.weight": draw(312 + i, *shape, scale=0.3) for i, (name, shape) in enumerate(shapes.items())}
    config = transformers.Llama4TextConfig(
        hidden_size=D, num_attention_heads=4, num_key_value_heads=2, head_dim=H, num_hidden_layers=2,
        no_rope_layers=[1, 0], floor_scale=3, attn_scale=0.4, attention_chunk_size=5, vocab_size=8, rope_parameters=ROPE,
    )  # fmt: skip
    config._attn_implementation = "eager"
    layer, x = llama4_model.Llama4TextAttention(config, 1).eval(), draw(310, B, T, D)
    assign(layer, weights)
    turns = llama4_model.Llama4TextRotaryEmbedding(config)(tensor(x), torch.arange(T)[None])
    out, _ = layer(tensor(x), turns, hide(causal(T)[None, None]))
    return {"x": x, **weights, "temperature_out": numpy(out), **llama4_scale()}


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


def sinks() -> Arrays:
    """gpt-oss: a learned logit per head that takes weight and gives nothing; four heads share two keys."""
    arrays = inputs(320, queries=4, keys=2) | {"sinks": draw(324, 4, scale=2.0)}
    made = {}
    for name, mask in {"causal": causal(T), "window": causal(T) & ~causal(T).tril(-4)}.items():
        q, k, v = heads_first(arrays)
        layer = SimpleNamespace(num_key_value_groups=2, sinks=tensor(arrays["sinks"]), training=False)
        out, _ = gpt_oss.eager_attention_forward(layer, q, k, v, hide(mask), H**-0.5)
        found = gradients(out, arrays["w"], {"q": q, "k": k, "v": v, "sinks": layer.sinks})
        made |= {f"{name}_out": numpy(out), f"{name}_grad_sinks": found.pop("grad_sinks")}
        if name == "causal":
            made |= {key: array.swapaxes(1, 2) for key, array in found.items()}
    return arrays | made


# Scores of whole tables, and gates of outputs ------------------------------------------------------------------------


def stick_breaking() -> Arrays:
    """Stick-breaking: `strict` sees earlier keys only, as published by default; `current` sees its own key as well."""
    module = load("shawntan/stickbreaking-attention/stickbreaking_attention/sb_ref.py", "reference_stick_breaking")
    arrays, made = inputs(330), {}
    for name, diagonal in {"strict": 0, "current": 1}.items():
        q, k, v = heads_first(arrays)
        hidden, after = torch.ones(T, T, dtype=torch.bool).triu(diagonal), torch.ones(T, T).tril(-1)
        out, rest = module.stickbreaking(q, k, v, hidden, after)
        made |= {f"{name}_out": numpy(out.transpose(1, 2)), f"{name}_rest": numpy(rest)}
        whole = out + rest[..., None] * v
        found = gradients(whole.transpose(1, 2), arrays["w"], {"q": q, "k": k, "v": v})
        made |= {f"{name}_whole_{key}": array.swapaxes(1, 2) for key, array in found.items()}
    return arrays | made


def path_attention() -> Arrays:
    """PaTH: keys pass Householder-like maps on their way to the query; forget gates of `gated` share the scale."""
    module = load("fla-org/flash-linear-attention/fla/ops/path_attn/naive.py", "reference_path_attention")
    arrays = inputs(340, queries=4, keys=2)
    direction = draw(344, B, T, 2, H)
    arrays |= {"direction": direction / np.linalg.norm(direction, axis=-1, keepdims=True)}
    arrays |= {"beta": (2 / (1 + np.exp(-draw(345, B, T, 2)))).astype(np.float32)}
    arrays |= {"log_gate": -np.abs(draw(346, B, T, 4))}
    leaves = leaves_of(arrays)
    q, k, v, w, beta, gate = leaves.values()
    plain = module.naive_path_attn(q, k, v, w, beta, torch.zeros(B, T, 4), H**-0.5, chunk_size=4)
    gated = module.naive_path_attn(q, k, v, w, beta, gate, H**-0.5, chunk_size=16)
    return arrays | {"plain_out": numpy(plain), "gated_out": numpy(gated)} | slopes(gated, arrays["w"], leaves)


def dape() -> Arrays:
    """DAPE (v1) with ALiBi and with KERPLE (log): logits before the mask, 0 where it hides."""
    module = load("chuanyang-Zheng/DAPE/DAPE.py", "reference_dape")
    heads, width = 4, 6
    arrays = {"q": draw(350, B, T, heads, H), "k": draw(351, B, T, heads, H), "w": draw(352, B, heads, T, T)}
    network = {"mlp2.0.weight": draw(353, width, 2 * heads, scale=0.5), "mlp2.0.bias": draw(354, width)}
    network |= {"mlp2.2.weight": draw(355, heads, width, scale=0.5), "mlp2.2.bias": draw(356, heads)}
    kerple = {f"bias_{x}": np.abs(draw(seed, heads, 1, 1)) + 0.1 for x, seed in (("p", 357), ("a", 358))}
    arrays |= network | {name.replace("bias", "kerple"): array for name, array in kerple.items()}
    arrays["w"] *= causal(T).numpy()
    options = SimpleNamespace(
        num_attention_heads=heads, pos_emb="kerple", params_dtype=torch.get_default_dtype(), mlp_width=width
    )
    with mock.patch.object(torch.cuda, "current_device", return_value="cpu"):
        layers = {"alibi": module.AliBi_DAPE(heads, mp_rank=0, mlp_width=width)}
        layers["kerple"] = module.ParallelKerpleLog_DAPE(options, 0)
    made = {}
    for name, layer in layers.items():
        q, k = tensor(arrays["q"]), tensor(arrays["k"])
        given = network | (kerple if name == "kerple" else {})
        assign(layer, given)
        logits = layer(torch.einsum("btnh,bsnh->bnts", q, k) * H**-0.5)
        made |= {f"{name}_logits": visible(logits)}
        leaves = {"q": q, "k": k} if name == "kerple" else {}
        leaves |= {key.replace("bias_", "kerple_"): attrgetter(key)(layer) for key in given}
        made |= {f"{name}_{key}": array for key, array in gradients(logits, arrays["w"], leaves).items()}
    return arrays | made


def gated() -> Arrays:
    """Gated attention (Qwen3 with QK-norm off): a sigmoid per head or per channel on the output of the softmax."""
    module, heads, keys = load_gated(), 4, 2
    arrays, made = {"x": draw(360, B, T, D), "w": draw(361, B, T, D)}, {}
    sizes = {"hidden_size": D, "num_attention_heads": heads, "head_dim": H}
    rotary = llama.LlamaRotaryEmbedding(transformers.LlamaConfig(**sizes, rope_parameters=ROPE))
    for name, extra in {"headwise": heads, "elementwise": heads * H}.items():
        shapes = {"q_proj": (heads * H + extra, D), "k_proj": (keys * H, D), "v_proj": (keys * H, D)}
        shapes |= {"o_proj": (D, heads * H)}
        weights = {f"{p}.weight": draw(362 + i, *shape, scale=0.3) for i, (p, shape) in enumerate(shapes.items())}
        config = SimpleNamespace(
            **sizes, num_key_value_heads=keys, attention_dropout=0.0,
            max_position_embeddings=64, rope_theta=10_000.0, use_qk_norm=False, qkv_bias=False, rms_norm_eps=1e-6,
            headwise_attn_output_gate=name == "headwise", elementwise_attn_output_gate=name == "elementwise",
        )  # fmt: skip
        with mock.patch.object(module, "Qwen3RotaryEmbedding", return_value=nn.Identity()):
            layer = module.Qwen3Attention(config, 0).eval()
        assign(layer, weights)
        x = tensor(arrays["x"])
        out, _, _ = layer(x, hide(causal(T))[None, None], position_embeddings=rotary(x, torch.arange(T)[None]))
        made |= {f"{name}_out": numpy(out), f"{name}_grad_x": gradients(out, arrays["w"], {"x": x})["grad_x"]}
        made |= {f"{name}_q_proj.weight": weights.pop("q_proj.weight")} | weights
    return arrays | made


def load_gated() -> ModuleType:
    """The authors' Qwen3 of an older transformers, inside the installed one."""
    unchanged = lambda *_, **__: lambda function: function
    names = ("add_code_sample_docstrings", "add_start_docstrings", "add_start_docstrings_to_model_forward")
    utils = dict.fromkeys((*names, "replace_return_docstrings"), unchanged)
    utils |= {"is_flash_attn_2_available": lambda: False, "is_flash_attn_greater_or_equal_2_10": lambda: False}
    gone = {transformers.utils: utils, cache_utils: {"SlidingWindowCache": type("SlidingWindowCache", (), {})}}
    gone |= {modeling_rope_utils: {"rope_config_validation": lambda _: None}}
    folder, modules = "qiuzh20/gated_attention", stand_ins({"reference_gated": {}})
    with contextlib.ExitStack() as stack:
        for place, contents in gone.items():
            stack.enter_context(mock.patch.multiple(place, create=True, **contents))
        config = load(f"{folder}/configuration_qwen3.py", "reference_gated.configuration_qwen3", modules)
        modules |= {config.__name__: config}
        return load(f"{folder}/modeling_qwen3.py", "reference_gated.modeling_qwen3", modules)


FAR = dict.fromkeys((repo, selective_rope, stick_breaking, multimodal_rope, path_attention), 1e-4)
NEAR = dict.fromkeys((fox, cable, scalable_softmax, llama4, sinks, axial_rope, dape, gated), 1e-5)

if __name__ == "__main__":
    main(FAR | NEAR, "frontier_")
