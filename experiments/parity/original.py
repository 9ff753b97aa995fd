"""The Transformer of 2017 out of torch's own layers, which transformers does not have: post-norm, sinusoids, one embedding."""

import importlib
import math
import pathlib
from typing import Any

import numpy as np
from flax import nnx

from attnjax.models import MODELS, Loaded, save
from attnjax.modules import TransformerConfig
from experiments.parity.inputs import Inputs
from experiments.parity.peer import Numbers, gradient_of, loss_of

CONFIG = {"vocab_size": 97, "d_model": 32, "nhead": 4, "dim_feedforward": 48, "attention_bias": True}
CONFIG |= {"num_encoder_layers": 2, "num_decoder_layers": 2, "layer_norm_eps": 1e-5}


def folder(path: pathlib.Path) -> pathlib.Path:
    """A model of ours with random numbers, saved."""
    architecture = MODELS["transformer"]
    spec = architecture.config(CONFIG)
    return save(Loaded(architecture.build(spec, nnx.Rngs(0)), spec, architecture), path)


def numbers(torch: Any, loaded: Loaded, inputs: Inputs, dtype: str) -> Numbers:
    """Output, loss and gradients by torch."""
    load_file = importlib.import_module("safetensors.torch").load_file
    model = build(torch, loaded.spec.config).to(getattr(torch, dtype))
    assert loaded.folder is not None
    model.load_state_dict(load_file(loaded.folder / "model.safetensors"))
    output = forward(torch, model, inputs)
    loss = loss_of(torch, loaded, output, inputs)
    loss.backward()
    gradients = {name: gradient_of(p) for name, p in model.named_parameters()}
    return Numbers(output.detach().numpy(), loss.detach().numpy(), gradients)


def build(torch: Any, config: TransformerConfig) -> Any:
    """Modules by the names of the tensors."""
    nn, layers = torch.nn, range(config.layers)
    options = {"dropout": 0.0, "layer_norm_eps": config.norm_epsilon, "batch_first": True}
    sizes = (config.model, config.heads, config.hidden)
    model = nn.Module()
    model.embedding = nn.Embedding(config.vocab, config.model)
    model.encoder, model.decoder = nn.Module(), nn.Module()
    model.encoder.layers = nn.ModuleList([nn.TransformerEncoderLayer(*sizes, **options) for _ in layers])
    model.decoder.layers = nn.ModuleList([nn.TransformerDecoderLayer(*sizes, **options) for _ in layers])
    return model


def forward(torch: Any, model: Any, inputs: Inputs) -> Any:
    """Logits [B, T, V]."""
    assert inputs.source is not None
    assert inputs.source_valid is not None
    x, y = (_embedded(torch, model, ids) for ids in (inputs.source, inputs.tokens))
    hidden, hidden_target = (torch.from_numpy(~valid) for valid in (inputs.source_valid, inputs.valid))
    for layer in model.encoder.layers:
        x = layer(x, src_key_padding_mask=hidden)
    future = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
    rules = {"tgt_mask": future, "tgt_key_padding_mask": hidden_target, "memory_key_padding_mask": hidden}
    for layer in model.decoder.layers:
        y = layer(y, x, **rules, tgt_is_causal=False)
    return y @ model.embedding.weight.T


def _embedded(torch: Any, model: Any, ids: np.ndarray) -> Any:
    """Token embeddings times sqrt(D), and sinusoids, their angles in double precision."""
    size = model.embedding.embedding_dim
    angle = np.arange(ids.shape[1])[:, None] * 10_000.0 ** (-np.arange(0, size, 2) / size)
    waves = np.stack([np.sin(angle), np.cos(angle)], -1).reshape(-1, size)
    tokens = model.embedding(torch.from_numpy(ids.astype(np.int64)))
    return tokens * math.sqrt(size) + torch.from_numpy(waves).to(tokens.dtype)
