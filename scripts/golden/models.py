"""Makes the reference numbers of whole models, models/*.npz in tests/golden, with torch and transformers.

Every model is tiny, with the weights of `tests/golden/drawn.py`, in float64 throughout: whatever the libraries' code calls
float32 is float64. A file holds the text of config.json, tokens, mask, positions, labels (-100: no loss), logits, the mean
loss, and its gradient with respect to every parameter, by the name of its tensor.
"""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from scripts.golden.common import ARRAYS, Arrays, double
from tests.golden import drawn

B, T, S, VOCAB, PADDING = 2, 10, 9, 13, 3
FOLDER = ARRAYS / "models"

TINY = {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = {**TINY, "intermediate_size": 12, "num_key_value_heads": 1, "max_position_embeddings": 8, "rms_norm_eps": 1e-5}
ONE = {**LLAMA, "num_hidden_layers": 1, "head_dim": 8}
T5 = {"vocab_size": VOCAB, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_heads": 3, "num_layers": 2, "dropout_rate": 0.0}
T5 |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12}
NEOX = {**TINY, "hidden_size": 16, "intermediate_size": 12, "max_position_embeddings": 8}
HALF, TWICE = {**NEOX, "num_hidden_layers": 1}, {"factor": 2.0, "partial_rotary_factor": 0.5}
GPT2 = {"vocab_size": VOCAB, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12}
GPT2 |= {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
BERT = {**TINY, "intermediate_size": 12, "max_position_embeddings": 12}
BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8, "beta_fast": 2.0, "beta_slow": 0.5}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 8, "factor": 4.0}
LONG |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 1.7, 2.5, 3.9]}


def rope(theta: float = 100.0, **rule: Any) -> dict[str, Any]:
    """The rotary parameters of a config. Small models need a small base for their slow pairs to move."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **rule}}


def window(size: int) -> dict[str, Any]:
    """The fields of a sliding window."""
    return {"use_sliding_window": True, "sliding_window": size}


def causal(name: str, fields: dict[str, Any]) -> Callable[[], Arrays]:
    """A case of a decoder: `name` is that of the classes."""
    config = getattr(transformers, f"{name}Config")
    model = getattr(transformers, {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM"))
    return lambda: decoder(model, config(**fields), padded="rope_parameters" not in fields or _static(fields))


def _static(fields: dict[str, Any]) -> bool:
    """Whether the frequencies do not depend on the length, which transformers takes from the longest of a batch."""
    return fields["rope_parameters"]["rope_type"] not in ("dynamic", "longrope")


CASES: dict[str, Callable[[], Arrays]] = {
    "gpt2": causal("GPT2", GPT2),
    "bloom": causal("Bloom", {"vocab_size": VOCAB, "hidden_size": 16, "n_layer": 2, "n_head": 4}),
    "gpt_neox": causal("GPTNeoX", NEOX | rope(partial_rotary_factor=0.25)),
    "gpt_neox_linear": causal(
        "GPTNeoX", HALF | {"use_parallel_residual": False, "attention_bias": False} | rope(rope_type="linear", **TWICE)
    ),
    "gpt_neox_dynamic": causal("GPTNeoX", HALF | rope(rope_type="dynamic", **TWICE)),
    "llama": causal("Llama", LLAMA | rope(10_000.0)),
    "llama_linear": causal("Llama", ONE | rope(rope_type="linear", factor=3.0)),
    "llama_dynamic": causal("Llama", ONE | rope(rope_type="dynamic", factor=2.0)),
    "llama_yarn": causal("Llama", ONE | {"attention_bias": True, "mlp_bias": True} | rope(**YARN)),
    "llama_llama3": causal("Llama", ONE | {"tie_word_embeddings": True} | rope(**LLAMA3)),
    "llama_longrope": causal("Llama", ONE | {"max_position_embeddings": 32} | rope(**LONG)),
    "mistral": causal("Mistral", LLAMA | {"sliding_window": 4} | rope()),
    "qwen2": causal("Qwen2", LLAMA | {"tie_word_embeddings": True, "max_window_layers": 1} | window(3) | rope()),
    "qwen2_yarn": causal("Qwen2", LLAMA | {"num_hidden_layers": 1} | rope(**YARN)),
    "qwen3": causal("Qwen3", LLAMA | {"head_dim": 8, "tie_word_embeddings": True} | rope()),
    "smollm3": causal("SmolLM3", LLAMA | {"num_hidden_layers": 4, "pad_token_id": 0} | window(5) | rope()),
    "bert": lambda: masked_lm(transformers.BertConfig(**BERT)),
    "bert_pooler": lambda: pooler(transformers.BertConfig(**BERT)),
    "t5": lambda: t5(transformers.T5Config(**T5)),
    "t5_v1_1": lambda: t5(
        transformers.T5Config(**T5, num_decoder_layers=1, feed_forward_proj="gated-gelu"), tied=False
    ),
    "transformer": lambda: original(),
}


def decoder(kind: type, config: Any, *, padded: bool) -> Arrays:
    """Logits, loss and gradients; the second sequence has padding on the left, and positions that do not count it."""
    model = filled(kind._from_config(config, attn_implementation="eager"))
    ids = drawn.tokens("tokens", B, T, VOCAB)
    mask = np.ones((B, T), bool)
    mask[1, : PADDING if padded else 0] = False
    pos = np.maximum(np.cumsum(mask, 1) - 1, 0)
    # The first token of a sequence would be predicted from padding.
    labels = np.where(mask & (pos > 0), ids, -100)
    options = {} if kind is transformers.BloomForCausalLM else {"position_ids": torch.tensor(pos)}
    out = model(torch.tensor(ids), attention_mask=torch.tensor(mask).long(), labels=torch.tensor(labels), **options)
    out.loss.backward()
    given = {"tokens": ids, "mask": mask, "pos": pos, "labels": labels}
    return {"config": text(config, kind), **given, **results(model, out.logits, out.loss)}


def masked_lm(config: Any) -> Arrays:
    """BERT with its head: padding on the right, two types of tokens, labels at some places."""
    kind = transformers.BertForMaskedLM
    model = filled(kind._from_config(config, attn_implementation="eager"))
    given = bidirectional()
    chosen = given["mask"] & (drawn.bits("labels", B * T).reshape(B, T) % np.uint64(3) == 0)
    labels = np.where(chosen, drawn.tokens("targets", B, T, VOCAB), -100)
    out = model(**inputs(given), labels=torch.tensor(labels))
    out.loss.backward()
    return {"config": text(config, kind), **given, "labels": labels, **results(model, out.logits, out.loss)}


def pooler(config: Any) -> Arrays:
    """BERT without its head: features, and the vector of the first."""
    kind = transformers.BertModel
    model = filled(kind._from_config(config, attn_implementation="eager"), prefix="bert.")
    given = bidirectional()
    out = model(**inputs(given))
    found = {"features": out.last_hidden_state.detach().numpy(), "pooled": out.pooler_output.detach().numpy()}
    return {"config": text(config, kind), **given, **found}


def bidirectional() -> Arrays:
    """Tokens of BERT, with padding on the right and two types."""
    mask = np.ones((B, T), bool)
    mask[1, T - PADDING :] = False
    types = np.broadcast_to(np.arange(T) >= T // 2, (B, T)).astype(np.int64)
    return {"tokens": drawn.tokens("tokens", B, T, VOCAB), "mask": mask, "types": types}


def inputs(given: Arrays) -> dict[str, Tensor]:
    """The same by the names of transformers."""
    ids, mask, types = (torch.tensor(given[name]) for name in ("tokens", "mask", "types"))
    return {"input_ids": ids, "attention_mask": mask.long(), "token_type_ids": types}


def t5(config: Any, *, tied: bool = True) -> Arrays:
    """Encoder and decoder; padding at the end of the second source, and of the second target.

    transformers 5 ties the embeddings of every new model. The files of v1.1 have two, and its config says so.
    """
    kind = transformers.T5ForConditionalGeneration
    config.scale_decoder_outputs = tied
    model = kind._from_config(config, attn_implementation="eager")
    if not tied:
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    model = filled(model)
    given = pair()
    labels = np.where(given["target_mask"], given["labels"], -100)
    out = model(
        input_ids=torch.tensor(given["source"]),
        attention_mask=torch.tensor(given["mask"]).long(),
        decoder_input_ids=torch.tensor(given["target"]),
        decoder_attention_mask=torch.tensor(given["target_mask"]).long(),
        labels=torch.tensor(labels),
    )
    out.loss.backward()
    published = json.loads(str(text(config, kind))) | {"tie_word_embeddings": tied}
    del published["scale_decoder_outputs"]
    content = np.array(json.dumps(published))
    return {"config": content, **given, "labels": labels, **results(model, out.logits, out.loss)}


def pair() -> Arrays:
    """Source, target and labels, with padding at the end of the second ones."""
    mask, target_mask = np.ones((B, S), bool), np.ones((B, T), bool)
    mask[1, S - PADDING :] = target_mask[1, T - 1 :] = False
    ids = {name: drawn.tokens(name, B, n, VOCAB) for name, n in (("source", S), ("target", T), ("labels", T))}
    return {**ids, "mask": mask, "target_mask": target_mask}


class Original(nn.Module):
    """The model of 2017 out of torch's own layers: one embedding times sqrt(D), sinusoids, post-norm, no last norm."""

    def __init__(self, vocab: int, model: int, heads: int, hidden: int, layers: int):
        super().__init__()
        options = {"dropout": 0.0, "activation": "relu", "layer_norm_eps": 1e-5, "batch_first": True}
        self.embedding = nn.Embedding(vocab, model)
        self.encoder, self.decoder = nn.Module(), nn.Module()
        stack = lambda layer: nn.ModuleList([layer(model, heads, hidden, **options) for _ in range(layers)])
        self.encoder.layers, self.decoder.layers = stack(nn.TransformerEncoderLayer), stack(nn.TransformerDecoderLayer)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor, target_mask: Tensor) -> Tensor:
        x, y = self.embed(source), self.embed(target)
        for layer in self.encoder.layers:
            x = layer(x, src_key_padding_mask=~mask)
        future = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        for layer in self.decoder.layers:
            masks = {"tgt_key_padding_mask": ~target_mask, "memory_key_padding_mask": ~mask}
            y = layer(y, x, tgt_mask=future, tgt_is_causal=False, **masks)
        return y @ self.embedding.weight.T

    def embed(self, ids: Tensor) -> Tensor:
        model = self.embedding.embedding_dim
        angle = torch.arange(ids.shape[1])[:, None] * 10_000.0 ** (-torch.arange(0, model, 2) / model)
        waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
        return self.embedding(ids) * math.sqrt(model) + waves


def original() -> Arrays:
    """The original Transformer; torch has bias vectors in attention."""
    model = filled(Original(VOCAB, 8, 2, 12, 2))
    given = pair()
    logits = model(*(torch.tensor(given[name]) for name in ("source", "target", "mask", "target_mask")))
    labels = np.where(given["target_mask"], given["labels"], -100)
    loss = F.cross_entropy(logits.flatten(0, 1), torch.tensor(labels).flatten())
    loss.backward()
    config = (
        '{"model_type": "transformer", "vocab_size": 13, "d_model": 8, "nhead": 2, "num_encoder_layers": 2, '
        '"num_decoder_layers": 2, "dim_feedforward": 12, "layer_norm_eps": 1e-5, "attention_bias": true, "dropout": 0.0}'
    )
    return {"config": np.array(config), **given, "labels": labels, **results(model, logits, loss)}


def filled(model: nn.Module, prefix: str = "") -> nn.Module:
    """The model with the weights of `drawn.py`, in training mode (nothing is dropped)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(drawn.weight(prefix + name, tuple(parameter.shape))))
    return model.double().train()


def text(config: Any, kind: type) -> np.ndarray:
    """config.json as `save_pretrained` writes it."""
    config.architectures = [kind.__name__]
    return np.array(config.to_json_string())


def results(model: nn.Module, logits: Tensor, loss: Tensor) -> Arrays:
    """What the model gave, and the gradient of every parameter."""
    gradients = {f"grad {name}": parameter.grad.numpy() for name, parameter in model.named_parameters()}
    return {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(), **gradients}


def main() -> None:
    """Write one file per case."""
    FOLDER.mkdir(exist_ok=True)
    for name, make in CASES.items():
        with double():
            arrays = make()
        for key, array in arrays.items():
            if array.dtype.kind == "f" and not (array.dtype == np.float64 and np.isfinite(array).all()):
                raise AssertionError(f"{name}: {key} is not finite float64")
        np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
        print(name, (FOLDER / f"{name}.npz").stat().st_size)


if __name__ == "__main__":
    main()
