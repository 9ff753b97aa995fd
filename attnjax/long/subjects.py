"""Models for long-context evaluation: trained runs on text, which read bytes, and published weights with their tokenizers."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx

from attnjax.analysis import loaded_model
from attnjax.long.extending import Extension, trained_length
from attnjax.long.scoring import Losses
from attnjax.models import load, load_tokenizer
from attnjax.models.completion import stop_tokens
from attnjax.modules import Decoder, generate
from attnjax.tasks import Text
from attnjax.typing import Array, Int, PyTree

BYTES = 256


@dataclasses.dataclass(frozen=True)
class Subject:
    """A causal model that reads texts.

    Attributes:
      name: what tables call it.
      encode: the tokens of a text.
      decode: the text of tokens.
      losses: the loss in nats of each token [B, T - 1] but the first, given those before it.
      complete: greedy tokens [B, steps] after prompts, a list of token lists, from (prompts, size to pad to, steps).
      bytewise: whether a token is a byte.
      starts: how many bytes of a text come before each of its tokens.
      trained_on: the file or folder of the texts that a run was trained on, where it is one.
    """

    name: str
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    losses: Losses
    complete: Callable[[Sequence[Sequence[int]], int, int], Int[np.ndarray, "B steps"]]
    bytewise: bool = False
    starts: Callable[[str], list[int]] = lambda text: list(range(len(text.encode())))
    trained_on: str | None = None

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.encode(text))


def of_path(path: str | pathlib.Path, extension: Extension | None = None) -> Subject:
    """Return the model in a folder with safetensors, or else the trained run that a folder or a description names.

    `extension`: how it is read past its trained length.

    Raises:
      ValueError: for a model that does not go on with a text, a run that was not trained on text, and all that loading refuses.
    """
    return of_folder(pathlib.Path(path), extension) if is_published(path) else of_run(path, extension)


def is_published(path: str | pathlib.Path) -> bool:
    """Return whether a path is a folder with safetensors."""
    folder = pathlib.Path(path)
    return folder.is_dir() and any(folder.glob("*.safetensors"))


def of_run(path: str | pathlib.Path, extension: Extension | None = None) -> Subject:
    """Return the model of a run on text, which reads bytes, at its newest sound checkpoint."""
    loaded = loaded_model.load(path)
    model = nnx.merge(loaded.graph, loaded.params)
    if not isinstance(loaded.task, Text) or not isinstance(model, Decoder):
        raise ValueError(f"the suite long asks in English, and {path} was not trained on text")
    if extension is not None:
        assert loaded.run is not None
        model = extension(model, loaded.run.task.length_max)
    decode = lambda tokens: bytes(token for token in tokens if 0 <= token < BYTES).decode("utf-8", "replace")
    found = of_decoder(loaded.name, model, lambda text: list(text.encode()), decode, bytewise=True)
    return dataclasses.replace(found, trained_on=loaded.task.path)


def of_folder(path: pathlib.Path, extension: Extension | None = None) -> Subject:
    """Return the published model of a folder, with its tokenizer."""
    tokenizer = load_tokenizer(path)
    loaded = load(path)
    model, stops = loaded.model, stop_tokens(loaded)
    if not isinstance(model, Decoder):
        raise ValueError(f"{path} holds a {type(model).__name__}, and the suite long needs a Decoder")
    if extension is not None:
        model = extension(model, extension.trained or trained_length(loaded))
    decode = lambda tokens: tokenizer.decode([int(token) for token in tokens if token >= 0])
    found = of_decoder(path.name, model, tokenizer.encode, decode, stop=stops)
    return dataclasses.replace(found, starts=tokenizer.starts)


def of_decoder(
    name: str,
    model: Decoder,
    encode: Callable[[str], list[int]],
    decode: Callable[[Sequence[int]], str],
    *,
    bytewise: bool = False,
    stop: Sequence[int] = (),
) -> Subject:
    """Return a decoder as a subject; `stop` are the tokens that end its answers, which go on to the end of a row."""
    graph, params = nnx.split(model, graph=False)

    def losses(tokens: Int[np.ndarray, "B T"]) -> Any:
        return np.concatenate([np.asarray(_losses(graph, params, row[None])) for row in tokens])

    def complete(prompts: Sequence[Sequence[int]], size: int, steps: int) -> Int[np.ndarray, "B steps"]:
        tokens, valid = np.zeros((len(prompts), size), np.int32), np.zeros((len(prompts), size), bool)
        for i, prompt in enumerate(prompts):
            tokens[i, size - len(prompt) :], valid[i, size - len(prompt) :] = prompt, True
        return np.asarray(generate(model, tokens, steps, valid=valid, stop=stop))

    return Subject(name, encode, decode, losses, complete, bytewise)


@functools.partial(jax.jit, static_argnames="graph")
def _losses(graph: Any, params: PyTree, tokens: Int[Array, "B T"]) -> Array:
    return loaded_model.next_token_losses(nnx.merge(graph, params)(tokens), tokens)
