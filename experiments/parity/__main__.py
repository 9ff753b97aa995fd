"""Compare a folder of published weights with transformers: output, loss and the gradient of every tensor, in float32.

    python -m experiments.parity models/gpt2 --tokens 128

Needs torch and transformers beside attnjax. Both sides read two random sequences; a quarter of the second is padding, on the
left for decoders. The loss is the mean of the output times random numbers. A difference is relative to the largest number of
its array, that of a gradient to at least a thousandth of the largest of all gradients. The exit status is 1 where one exceeds
the tolerance, and 2 for a mistake of the user.
"""

import argparse
import importlib
import inspect
import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.attention import Mask
from attnjax.cli import argument_types as types
from attnjax.models import Loaded, load
from attnjax.models.param_paths import parameters
from attnjax.models.saving import tensors_of
from attnjax.modules import Decoder, EncoderDecoder
from attnjax.positions import DynamicNTK, LongRoPE, RoPE

FLOOR = 1e-3
Numbers = tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]
"""Output, loss, and gradients by the names of the tensors."""


def inputs(loaded: Loaded, length: int, seed: int) -> dict[str, np.ndarray]:
    """Returns tokens, which of them count and their positions, [2, T]; and the weights of the output in the loss.

    Nothing is padded where frequencies depend on the length, since transformers takes the longest length of a batch.
    """
    generator = np.random.default_rng(seed)
    scalings = [one.scaling for one in loaded.spec.config.encodings if isinstance(one, RoPE)]
    by_length = any(isinstance(one, DynamicNTK | LongRoPE) for one in scalings)
    valid = np.ones((2, length), bool)
    valid[1, : 0 if by_length else length // 4] = False
    if not isinstance(loaded.model, Decoder):
        valid = valid[:, ::-1].copy()
    positions = np.maximum(np.cumsum(valid, 1) - 1, 0).astype(np.int32)
    draw = lambda: generator.integers(1, loaded.spec.config.vocab, (2, length), dtype=np.int32)
    return {"tokens": draw(), "source": draw(), "valid": valid, "positions": positions}


def weighted(output: Any, valid: np.ndarray) -> Any:
    """Returns the loss: the mean of the output times random numbers, without padding."""
    given = np.random.default_rng(1).normal(size=output.shape).astype(np.float32) * valid[..., None]
    return (
        output * (given if isinstance(output, jax.Array) else importlib.import_module("torch").from_numpy(given))
    ).mean()


def ours(loaded: Loaded, given: dict[str, np.ndarray]) -> Numbers:
    """Returns what attnjax computes."""
    graph, state = nnx.split(loaded.model, graph=False)
    mask = Mask(k_valid=given["valid"])

    def loss(state: Any) -> tuple[jax.Array, jax.Array]:
        model = nnx.merge(graph, state)
        if isinstance(model, EncoderDecoder):
            output = model(given["source"], given["tokens"], source_mask=mask, target_mask=mask)
        elif isinstance(model, Decoder):
            output = model(given["tokens"], mask=mask, pos=jnp.asarray(given["positions"]))
        else:
            output = model(given["tokens"], mask=mask)
        return weighted(output, given["valid"]), output

    with jax.default_matmul_precision("highest"):
        (value, output), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(state)
    return np.asarray(output), np.asarray(value), tensors_of(loaded, parameters(nnx.merge(graph, gradients)))


def theirs(loaded: Loaded, given: dict[str, np.ndarray]) -> Numbers:
    """Returns what transformers computes, of the class that config.json names."""
    torch, transformers = (importlib.import_module(name) for name in ("torch", "transformers"))
    names = loaded.json.get("architectures")
    if not names or not hasattr(transformers, names[0]):
        raise ValueError(f"config.json must name a class of transformers in architectures, got {names}")
    options = {
        "local_files_only": True,
        "use_safetensors": True,
        "attn_implementation": "eager",
        "dtype": torch.float32,
    }
    model = getattr(transformers, names[0]).from_pretrained(str(loaded.folder), **options).eval()
    words = {"input_ids": given["tokens"], "attention_mask": given["valid"], "position_ids": given["positions"]}
    if isinstance(loaded.model, EncoderDecoder):
        words |= {
            "input_ids": given["source"],
            "decoder_input_ids": given["tokens"],
            "decoder_attention_mask": given["valid"],
        }
    known = inspect.signature(model.forward).parameters
    words = {name: torch.from_numpy(x.astype(np.int64)) for name, x in words.items() if name in known}
    found = model(**words, use_cache=False)
    output = found.logits if hasattr(found, "logits") else found.last_hidden_state
    loss = weighted(output, given["valid"])
    loss.backward()
    gradients = {name: p.grad for name, p in model.named_parameters(remove_duplicate=False)}
    arrays = {name: gradient.numpy() for name, gradient in gradients.items() if gradient is not None}
    return output.detach().numpy(), loss.detach().numpy(), arrays


def differences(mine: Numbers, peer: Numbers, valid: np.ndarray) -> dict[str, float]:
    """Returns relative differences by name; a gradient that transformers does not have counts as 0 there."""
    relative = lambda a, b, floor=0.0: float(np.abs(a - b).max() / max(np.abs(b).max(), floor, 1e-30))
    found = {"output": relative(mine[0][valid], peer[0][valid]), "loss": relative(mine[1], peer[1])}
    floor = FLOOR * max(np.abs(gradient).max() for gradient in peer[2].values())
    for name, gradient in mine[2].items():
        other = next((x for key, x in peer[2].items() if key == name or key.endswith(f".{name}")), np.zeros(1))
        found[f"gradient of {name}"] = relative(gradient, other, floor)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints output, loss and the ten worst gradients, and returns the exit status."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m experiments.parity", description=__doc__, formatter_class=raw)
    parser.add_argument("folder", metavar="FOLDER", help="config.json and weights")
    parser.add_argument("--tokens", type=types.count, default=32, metavar="N", help="length of the sequences (32)")
    parser.add_argument("--seed", type=types.seed, default=0, metavar="S", help="seed of the random tokens (0)")
    parser.add_argument(
        "--tolerance", type=types.tolerance, default=1e-3, metavar="X", help="largest difference (1e-3)"
    )
    chosen = parser.parse_args(arguments)
    try:
        loaded = load(chosen.folder)
        given = inputs(loaded, chosen.tokens, chosen.seed)
        found = differences(ours(loaded, given), theirs(loaded, given), given["valid"])
    except (ValueError, OSError, ImportError) as error:
        print(f"parity: error: {error}", file=sys.stderr)
        return 2
    first = {name: found[name] for name in ("output", "loss")}
    gradients = sorted(found.keys() - first.keys(), key=lambda name: -found[name])
    for name in [*first, *gradients[:10]]:
        print(f"{found[name]:8.1e}  {name}")
    wrong = [name for name, value in found.items() if not value <= chosen.tolerance]
    print(f"{len(wrong) or 'none'} of {len(found)} exceed {chosen.tolerance:g}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
