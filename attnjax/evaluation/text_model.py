"""Models that read texts: trained runs, which read bytes, and published weights with their tokenizers.

What config.json says of a scaling of RoPE decides which of its lengths a published model was trained at (`trained_length`):

    llama3, longrope    trained on with the scaling, at max_position_embeddings; the scaling stays
    yarn, dynamic       put on afterwards, to read further than the original_max_position_embeddings; a method takes its place
    linear, none        max_position_embeddings

A checkpoint that was trained on with YaRN does not say so in a key that is read here: its length is given.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax import models
from attnjax.evaluation import loaded_model
from attnjax.evaluation.extension import extended
from attnjax.models.completion import stop_tokens
from attnjax.modules import Decoder, generate
from attnjax.modules.stack import Caches
from attnjax.tasks import Text
from attnjax.typing import Array, Float, Int, PyTree

PROMPT, ENDING = 128, 16
"""Prompts and endings of rankings are padded to multiples of these, so that few programs serve all."""
ORIGINAL = "original_max_position_embeddings"
LONGEST = ("max_position_embeddings", "n_positions", "seq_length")
"""Where a config.json may say the longest sequence of a model, the first that is there."""
AFTERWARDS = ("yarn", "dynamic")
"""Scalings that are put on a model that was trained without."""


class Trained(NamedTuple):
    """The length that a model was trained at, and whether its RoPE has a scaling that was put on after training."""

    length: int
    scaled_after: bool = False


@dataclasses.dataclass(frozen=True)
class TextModel:
    """A causal model that reads texts. Its methods raise ValueError for a token that its embedding does not have.

    Attributes:
      name: what tables call it.
      model: the decoder.
      encode: the tokens of a text.
      decode: the text of tokens.
      bytewise: whether a token is a byte.
      before: tokens that the tokenizer puts before every text.
      stop: the tokens that end its answers.
      trained_on: the text that a run was trained on, where it is one.
      trained: the length that it was trained at, where that is known.
      note: how it is read past that, in sentences for a table.
    """

    name: str
    model: Decoder
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    bytewise: bool = False
    before: Sequence[int] = ()
    stop: Sequence[int] = ()
    trained_on: Text | None = None
    trained: Trained | None = None
    note: str = ""

    def count(self, text: str) -> int:
        """Returns the number of tokens of a text."""
        return len(self.encode(text))

    def losses(self, tokens: Int[np.ndarray, "B T"]) -> Float[np.ndarray, "B T-1"]:
        """Returns the loss in nats of each token but the first, given those before it."""
        return np.asarray(self._loaded.losses(jnp.asarray(self._loaded.check_tokens(tokens))))

    def complete(self, prompts: Sequence[Sequence[int]], size: int, steps: int) -> Int[np.ndarray, "B steps"]:
        """Returns greedy tokens after prompts, which are padded to `size`."""
        tokens, valid = np.zeros((len(prompts), size), np.int32), np.zeros((len(prompts), size), bool)
        for i, prompt in enumerate(prompts):
            tokens[i, size - len(prompt) :], valid[i, size - len(prompt) :] = prompt, True
        return np.asarray(generate(self.model, self._loaded.check_tokens(tokens), steps, valid=valid, stop=self.stop))

    def endings(
        self, prompt: Sequence[int], told: Sequence[Sequence[int]], size: int
    ) -> Sequence[Float[np.ndarray, " n"]]:
        """Returns the losses of the tokens of each ending of a prompt, in nats.

        The prompt is read once. An encoding that depends on the length takes that of a text of `size` tokens.
        """
        padding, longest = -len(prompt) % PROMPT, max(map(len, told))
        rows = np.zeros((len(told), longest + -longest % ENDING), np.int32)
        for row, one in zip(rows, told, strict=True):
            row[: len(one)] = one
        padded = self._loaded.check_tokens(np.pad(np.asarray(prompt, np.int32), (padding, 0))[None])[0]
        rows, counts = self._loaded.check_tokens(rows), np.array([*map(len, told)], np.int32)
        found = np.asarray(_endings(self._loaded.graph, self._loaded.params, size, padded, padding, rows, counts))
        return [loss[: len(one)] for loss, one in zip(found, told, strict=True)]

    @functools.cached_property
    def _loaded(self) -> loaded_model.LoadedModel:
        return loaded_model.LoadedModel(self.model, self.name)


def is_published(path: str | pathlib.Path) -> bool:
    """Returns whether a path is a folder with safetensors."""
    folder = pathlib.Path(path)
    return folder.is_dir() and any(folder.glob("*.safetensors"))


def load(path: str | pathlib.Path) -> TextModel:
    """Returns the published model of a folder with its tokenizer, or that of a run on text, which reads bytes.

    A run is named as for `loaded_model.load`.

    Raises ValueError for a model that does not go on with a text, and where `attnjax.models.load` or `loaded_model.load` do.
    """
    return _published(pathlib.Path(path)) if is_published(path) else _trained(path)


def _trained(path: str | pathlib.Path) -> TextModel:
    loaded = loaded_model.load(path)
    model = loaded.module()
    if loaded.run is None or not isinstance(loaded.task, Text) or not isinstance(model, Decoder):
        raise ValueError(f"the model must be a decoder that was trained on text, and {path} is none")
    encode = lambda text: list(text.encode())
    decode = lambda tokens: bytes(token for token in tokens if 0 <= token < 256).decode("utf-8", "replace")
    trained = Trained(loaded.run.task.length_max)
    return TextModel(loaded.name, model, encode, decode, bytewise=True, trained_on=loaded.task, trained=trained)


def _published(path: pathlib.Path) -> TextModel:
    tokenizer, loaded = models.load_tokenizer(path), models.load(path)
    if not isinstance(loaded.model, Decoder):
        raise ValueError(f"{path} holds a {type(loaded.model).__name__}, and a Decoder is needed")
    encode = functools.partial(tokenizer.encode, continued=True)
    decode = lambda tokens: tokenizer.decode([int(token) for token in tokens if token >= 0])
    known = {"before": list(tokenizer.before), "stop": stop_tokens(loaded), "trained": trained_length(loaded.json)}
    return TextModel(path.name, loaded.model, encode, decode, **known)


def trained_length(json: Mapping[str, Any]) -> Trained | None:
    """Returns the length that a published model was trained at, by its config.json; None where that does not say it.

    Example:
      >>> trained_length({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}})
      Trained(length=4096, scaled_after=False)
    """
    table: Mapping[str, Any] = json.get("rope_parameters") or json.get("rope_scaling") or {}
    after = table.get("rope_type", table.get("type")) in AFTERWARDS
    original = [table.get(ORIGINAL, json.get(ORIGINAL))] if after else []
    lengths = [n for n in (*original, *map(json.get, LONGEST)) if isinstance(n, int)]
    return Trained(lengths[0], after) if lengths else None


def read_past(
    subject: TextModel, method: str, longest: int, *, trained: int | None = None, **options: Any
) -> TextModel:
    """Returns a model read past its trained length by a method; `note` says which length that is.

    Args:
      subject: the model as it was trained.
      method: a name of `methods.py`; `options` are those of `extended_config`.
      longest: the longest sequence that is read.
      trained: the trained length, where it is another than the model says: with more, a scaling that was put on after
        training counts as trained on, and stays.

    Raises:
      ValueError: for a model without RoPE, one that does not say its trained length, and what the method refuses.
    """
    known = subject.trained
    if trained is not None:
        known = Trained(trained, known is not None and known.scaled_after and trained <= known.length)
    if known is None:
        raise ValueError(
            f"config.json has none of {', '.join((ORIGINAL, *LONGEST))}: give the trained length with --trained"
        )
    factor = max(1.0, longest / known.length)
    taken_off = "; a scaling that was put on after training is taken off" if known.scaled_after else ""
    note = f"Read by {method} at {factor:.4g} times the trained length of {known.length:,} tokens{taken_off}."
    about = {"trained": known.length, "factor": factor, "scaled_after": known.scaled_after}
    model = extended(subject.model, method, **about, **options)
    return dataclasses.replace(subject, name=f"{subject.name} ({method})", model=model, note=note)


def read_prompt(
    model: Any, prompt: Int[Array, " T"], padding: Int[Array, ""], room: int, length: int | None = None
) -> tuple[Float[Array, "1 1 V"], Caches, Int[Array, " room"]]:
    """Reads a prompt once into KV caches that have room for more tokens.

    Args:
      model: a `Decoder`.
      prompt: its tokens, padded on the left.
      padding: how many of them are padding, which takes no positions.
      room: how many tokens may follow.
      length: of which encodings take their frequencies, where these depend on it; None: that of the caches.

    Returns:
      The logits of the last token, the caches, and the positions of the tokens that may follow.
    """
    T = prompt.shape[0]
    index = np.arange(T + room, dtype=np.int32)
    pos, last = jnp.maximum(index - padding, 0), jnp.full((1, 1), T - 1, jnp.int32)
    options = {"pos": pos[:T], "valid": index[:T] >= padding, "query_indices": last}
    first, caches = model.decode(prompt[None], model.cache(1, T + room, length=length), **options)
    return first, caches, pos[T:]


@functools.partial(jax.jit, static_argnames=("graph", "size"))
def _endings(
    graph: Any,
    params: PyTree,
    size: int,
    prompt: Int[Array, " T"],
    padding: Int[Array, ""],
    told: Int[Array, "B n"],
    counts: Int[Array, " B"],
) -> Float[Array, "B n"]:
    """Returns the loss of each token behind a prompt that is padded on the left, as that of `generate` is.

    The prompt is read once into KV caches, and every ending goes on from a copy of them. Ending i has counts[i] tokens, and
    those behind them are padding. An encoding that depends on the length takes that of a text of `size` tokens.
    """
    model, n = nnx.merge(graph, params), told.shape[1]
    first, caches, pos = read_prompt(model, prompt, padding, n, size)

    def losses(ending: Int[Array, " n"], count: Int[Array, ""]) -> Float[Array, " n"]:
        """Returns the losses of one ending; those behind its first `count` tokens mean nothing."""
        logits, _ = model.decode(ending[None], caches, pos=pos, valid=jnp.arange(n) < count)
        row = jnp.concatenate([ending[:1], ending])  # the first loss is that of the first logits
        return loaded_model.next_token_losses(jnp.concatenate([first, logits], 1), row[None])[0]

    return jax.vmap(losses)(told, counts)
