"""Runs transformers for a comparison: output, loss and every gradient, in float32 or entirely in float64.

The code of transformers names float32 in norms, softmax and angles. For float64, `double` patches these names while it
runs.
"""

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from attnjax.models.files import ModelError
from attnjax.models.loading import Loaded
from experiments.parity.inputs import NONE, Inputs


class Numbers(NamedTuple):
    """The numbers of one side; gradients are stored by the names of the tensors."""

    output: np.ndarray
    loss: np.ndarray
    gradients: dict[str, np.ndarray]


def libraries() -> tuple[Any, Any]:
    """Returns torch and transformers. Raises ModelError if one of them is not installed."""
    try:
        return importlib.import_module("torch"), importlib.import_module("transformers")
    except ImportError as error:
        text = f"parity compares with transformers, and {error.name} is not installed: pip install torch transformers"
        raise ModelError(text) from None


def theirs(loaded: Loaded, inputs: Inputs, dtype: str) -> Numbers:
    """Returns the numbers of transformers. Raises ModelError for a family that it does not have."""
    torch, transformers = libraries()
    peer = published(torch, transformers, loaded)
    with double(torch) if dtype == "float64" else contextlib.nullcontext():
        peer = widened(torch, peer) if dtype == "float64" else peer
        output = run(torch, peer, inputs)
        loss = loss_of(torch, loaded, output, inputs)
        loss.backward()
    gradients = {name: gradient_of(p) for name, p in peer.named_parameters(remove_duplicate=False)}
    return Numbers(output.detach().numpy(), loss.detach().numpy(), gradients)


def published(torch: Any, transformers: Any, loaded: Loaded) -> Any:
    """Returns the model of transformers in float32 without dropout. Our table names its class, not the folder."""
    names = loaded.architecture.to_json(loaded.spec).get("architectures")
    if not names:
        raise ModelError(f"transformers has no {loaded.architecture.model_type} to compare with")
    options = {"local_files_only": True, "use_safetensors": True, "attn_implementation": "eager"}
    kind = getattr(transformers, names[0])
    return kind.from_pretrained(str(loaded.folder), dtype=torch.float32, **options).eval()


def widened(torch: Any, model: Any) -> Any:
    """Returns a model built in float64, frequencies included, with the same weights; called inside `double`."""
    made = type(model)._from_config(model.config, attn_implementation="eager")
    before, after = model.get_output_embeddings(), made.get_output_embeddings()
    if before is not None and before.weight is not model.get_input_embeddings().weight:
        after.weight = torch.nn.Parameter(after.weight.detach().clone())
    made.load_state_dict(model.state_dict())
    return made.double().eval()


def run(torch: Any, peer: Any, inputs: Inputs) -> Any:
    """Returns the logits, or the features of a model without logits."""
    whole = lambda array: torch.from_numpy(array.astype(np.int64))
    if inputs.source is None:
        given = {"input_ids": inputs.tokens, "attention_mask": inputs.valid, "position_ids": inputs.positions}
    else:
        given = {"input_ids": inputs.source, "attention_mask": inputs.source_valid}
        given |= {"decoder_input_ids": inputs.tokens, "decoder_attention_mask": inputs.valid}
    given |= {} if inputs.types is None else {"token_type_ids": inputs.types}
    known = inspect.signature(peer.forward).parameters
    if "position_ids" not in known:
        given.pop("position_ids", None)
    found = peer(**{name: whole(array) for name, array in given.items()}, use_cache=False)
    return found.logits if hasattr(found, "logits") else found.last_hidden_state


@contextlib.contextmanager
def double(torch: Any) -> Iterator[None]:
    """Makes every name by which library code asks for float32 mean float64, inside the context."""
    names = {"float": torch.float64, "float32": torch.float64, "FloatTensor": torch.DoubleTensor}
    default = torch.get_default_dtype()
    with mock.patch.multiple(torch, **names), mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def weights(shape: tuple[int, ...]) -> np.ndarray:
    """Returns random numbers that weight features in a loss."""
    return np.random.default_rng(1).normal(size=shape)


def loss_of(torch: Any, loaded: Loaded, output: Any, inputs: Inputs) -> Any:
    """Returns the cross-entropy of the labels, or of features their mean weighted by random numbers."""
    if output.shape[-1] == loaded.spec.config.vocab:
        labels = torch.from_numpy(inputs.labels.astype(np.int64))
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=NONE)
    given = weights(tuple(output.shape)) * inputs.valid[..., None]
    return (output * torch.from_numpy(given).to(output.dtype)).mean()


def gradient_of(parameter: Any) -> np.ndarray:
    """Returns the gradient of a parameter, zeros where no output depends on it."""
    found = parameter.detach() * 0 if parameter.grad is None else parameter.grad
    return found.numpy()
