"""Reference arrays of encodings that depend on the tokens or have several axes; see `make_frontier.py`."""

import functools
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TypedDict
from unittest import mock

import numpy as np
import references
import torch
import torch.nn.functional as F
import transformers
from frontier_inputs import B, D, Given, H, N, T, causal, draw, parameter, slopes, visible
from make_golden import Arrays, attention, numpy, tensor
from torch import Tensor, nn
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen
from x_transformers import x_transformers as xt

# Forget gates: biases that are differences of a running sum -------------------------------------------------------


def fox(folder: Path) -> Arrays:
    """Forgetting attention with shared keys, and in a window; the bias again by x-transformers' DataDependentAlibi."""
    naive = references.load(references.FORGETTING, folder, "reference_forgetting")
    arrays = {"x": draw(100, B, T, D), "q": draw(101, B, T, 2 * N, H), "k": draw(102, B, T, N, H)}
    arrays |= {"v": draw(103, B, T, N, H), "w": draw(104, B, T, 2 * N, H)}
    arrays |= {"gate_kernel": draw(105, D, 2 * N, scale=D**-0.5), "gate_bias": draw(106, 2 * N) + np.float32(1)}
    leaves = {name: tensor(array) for name, array in arrays.items() if name != "w"}
    q, k, v = (leaves[name] for name in "qkv")
    made = {}
    for name, window in {"full": None, "window": 5}.items():
        log_gate = F.logsigmoid(leaves["x"] @ leaves["gate_kernel"] + leaves["gate_bias"])
        out = naive.naive_forgetting_attn(q, k, v, log_gate, window_size=window)
        made |= {"log_gate": numpy(log_gate), f"{name}_out": numpy(out)}
        if window is None:
            made |= slopes(out, arrays["w"], leaves)
    layer = xt.DataDependentAlibi(D, 2 * N)
    made["initial_gate_bias"] = numpy(layer.to_forget_gates[0].bias)
    layer.to_forget_gates[0].weight = parameter(arrays["gate_kernel"].T.copy())
    layer.to_forget_gates[0].bias = parameter(arrays["gate_bias"])
    bias = layer(leaves["x"])
    again = attention(q, k, v, bias.masked_fill(~causal(), -torch.inf))
    torch.testing.assert_close(again, tensor(made["full_out"]).detach(), check_dtype=False, rtol=1e-4, atol=1e-5)
    return arrays | made | {"bias": visible(bias)}


def cable(folder: Path) -> Arrays:
    """Cable's attention, whose logits are not divided by sqrt(H); its output projection is the identity here."""
    module = references.load(references.CABLE, folder, "reference_cable")
    arrays = {"x": draw(110, B, T, D), "q": draw(111, B, T, N, H, scale=0.6), "k": draw(112, B, T, N, H, scale=0.6)}
    arrays |= {"v": draw(113, B, T, N, H), "w": draw(114, B, T, N, H)}
    arrays |= {"gate_kernel": draw(115, D, N, scale=D**-0.5), "gate_bias": draw(116, N)}
    leaves = {name: tensor(array) for name, array in arrays.items() if name != "w"}
    layer = module.CausalSelfAttention(SimpleNamespace(n_embd=D, n_head=N, block_size=T))
    layer.c_attn = Given(torch.cat([leaves[name].flatten(2) for name in "qkv"], -1))
    layer.c_proj = nn.Identity()
    gate = leaves["x"] @ leaves["gate_kernel"] + leaves["gate_bias"]
    layer.h_attn = Given(gate)
    with mock.patch.object(torch, "baddbmm", wraps=torch.baddbmm) as product:
        out = layer(leaves["x"]).unflatten(-1, (N, H))
    bias = product.call_args.args[0].reshape(B, N, T, T)
    made = {"bias": visible(bias), "out": numpy(out)} | slopes(out, arrays["w"], leaves)
    return arrays | made


# Rotations at positions that depend on the tokens -------------------------------------------------------------------


def repo(folder: Path) -> Arrays:
    """RePo's position of each token and head, and attention with RoPE (half layout, base 10,000) at these positions."""
    module = load_repo(folder)
    arrays = {"x": draw(120, B, T, D), "w": draw(124, B, T, N, H)}
    arrays |= {name: draw(121 + i, B, T, N, H) for i, name in enumerate("qkv")}
    width = D // 8
    arrays |= {"gate_kernel": draw(125, D, width, scale=0.5), "content_kernel": draw(126, D, width, scale=0.5)}
    arrays["final_kernel"] = draw(127, width, N)
    leaves = {name: tensor(array) for name, array in arrays.items() if name != "w"}
    config = SimpleNamespace(
        hidden_size=D, num_attention_heads=N, num_key_value_heads=N, attention_dropout=0.0, attention_bias=False,
        rms_norm_eps=1e-6, rope_scaling=None, max_position_embeddings=64,
        rope_parameters={"rope_theta": 10_000.0},
    )  # fmt: skip

    def default(config: SimpleNamespace, _: object) -> tuple[Tensor, float]:
        return llama.LlamaRotaryEmbedding.compute_default_rope_parameters(config)

    with mock.patch.dict(module.ROPE_INIT_FUNCTIONS, {"default": default}):
        rotary = module.Olmo2RotaryEmbedding(config)
    mode = module.DynamicPeMode.SEXMH
    layer = module.Olmo2Attention(config, 0, rotary.from_positions, mode)
    for name in ("gate", "content", "final"):
        if tuple(getattr(layer, f"{name}_map").weight.shape) != arrays[f"{name}_kernel"].shape[::-1]:
            raise AssertionError(name)
        getattr(layer, f"{name}_map").weight = None
        delattr(layer, f"{name}_map")
        setattr(layer, f"{name}_map", functools.partial(torch.matmul, other=leaves[f"{name}_kernel"]))
    positions, (cos, sin) = layer.dynamic_position_encoding_swigluex_multihead(leaves["x"], torch.arange(T)[None])
    q, k, v = (leaves[name].transpose(1, 2) for name in "qkv")
    turned_q, turned_k = module.apply_rotary_pos_emb(q, k, cos, sin)
    hidden = torch.zeros(1, 1, T, T).masked_fill(~causal(), -torch.inf)
    out, _ = module.eager_attention_forward(layer, turned_q, turned_k, v, hidden, layer.scaling)
    made = {"positions": numpy(positions).reshape(B, N, T)}
    made |= {"turned_q": numpy(turned_q.transpose(1, 2))}
    return arrays | made | {"out": numpy(out)} | slopes(out, arrays["w"], leaves)


def load_repo(folder: Path) -> ModuleType:
    """RePo's fork of transformers' OLMo 2, inside the installed transformers."""
    modes = references.load(references.REPO_MODES, folder, "transformers.custom_modules.pe_utils")
    package = references.module("transformers.models.reference_repo")
    with references.installed([references.module("transformers.custom_modules"), modes, package]):
        config = references.load(references.REPO_CONFIG, folder, f"{package.__name__}.configuration_olmo2")
        gone = {
            "LossKwargs": TypedDict("LossKwargs", {}),
            "auto_docstring": lambda f: f,
            "can_return_tuple": lambda f: f,
        }
        with references.installed([config]), mock.patch.multiple(transformers.utils, create=True, **gone):
            return references.load(references.REPO_MODEL, folder, f"{package.__name__}.modeling_olmo2")


SELECTIVE_CASES = {
    "low_rank": {"phi_proj_rank": 4},
    "full_rank": {"phi_parametrization": "full-rank", "use_gate": True, "use_bias": True, "conv_act": "silu"},
}


def selective_rope(folder: Path) -> Arrays:
    """Selective RoPE as configured for language models (`low_rank`), and with gate, bias and SiLU (`full_rank`)."""
    stand_ins = [references.module(name) for name in ("fla", "fla.modules")]
    stand_ins += [references.module("fla.modules.convolution", ShortConvolution=ShortConvolution)]
    stand_ins += [references.module("fla.modules.l2norm", l2_norm=l2_norm)]
    with references.installed(stand_ins):
        module = references.load(references.SELECTIVE_ROPE, folder, "reference_selective_rope")
    arrays = {"x": draw(130, B, T, D), "w": draw(134, B, T, N, H)}
    arrays |= {name: draw(131 + i, B, T, N, H) for i, name in enumerate("qkv")}
    for case, options in SELECTIVE_CASES.items():
        layer = module.SelectiveRoPE(H, D, N, **options)
        shapes = {name: tuple(p.shape) for name, p in layer.named_parameters() if name != "temperature"}
        weights = {name: draw(140 + i, *shape, scale=0.7) for i, (name, shape) in enumerate(shapes.items())}
        for name, array in weights.items():
            layer.get_parameter(name).data = tensor(array).detach()
        x, q, k, v = (tensor(arrays[name]) for name in "xqkv")
        turned_q, turned_k, _ = layer(q, k, x)
        ones = torch.cat([torch.ones(B, T, N, H // 2), torch.zeros(B, T, N, H // 2)], -1)
        cosine_sine, _, _ = layer(ones, ones, x)
        out = attention(turned_q, turned_k, v, causal())
        leaves = {"x": x} | {name: layer.get_parameter(name) for name in weights}
        made = {"turned_q": numpy(turned_q), "cos_sin": numpy(cosine_sine)}
        made |= {"out": numpy(out), "temperature": numpy(layer.temperature)[0, 0, 0]} | weights
        made |= slopes(out, arrays["w"], leaves)
        arrays |= {f"{case}_{name}": array for name, array in made.items()}
    return arrays


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


def multimodal_rope(_: Path) -> Arrays:
    """M-RoPE of Qwen2-VL: three rows of positions (time, height, width), each for a section of the frequencies."""
    arrays = {"q": draw(200, B, T, N, 2 * H), "k": draw(201, B, T, N, 2 * H)}
    text, image = np.arange(4), np.array([[4, 4, 4, 4, 4, 4], [4, 4, 4, 5, 5, 5], [4, 5, 6, 4, 5, 6]])
    row = np.concatenate([np.stack([text] * 3), image, np.stack([np.arange(7, 9)] * 3)], 1)
    arrays["positions"] = np.stack([row, row + np.array([[40], [3], [500]])], 1)
    config = SimpleNamespace(
        max_position_embeddings=64, head_dim=2 * H, hidden_size=2 * H * N, num_attention_heads=N,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 3, 1]},
    )  # fmt: skip
    cos, sin = qwen.Qwen2VLRotaryEmbedding(config)(tensor(arrays["q"]), torch.tensor(arrays["positions"]))
    turned = qwen.apply_rotary_pos_emb(tensor(arrays["q"]), tensor(arrays["k"]), cos, sin, unsqueeze_dim=2)
    return arrays | {"turned_q": numpy(turned[0]), "turned_k": numpy(turned[1]), "section": np.array([4, 3, 1])}


def axial_rope(folder: Path) -> Arrays:
    """RoPE of images 4 wide and 3 high (interleaved layout): `axial`; `mixed` has frequencies per axis and pair."""
    module = references.load(references.ROPE_VIT, folder, "reference_rope_vit")
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
