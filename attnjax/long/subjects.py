"""Models for long-context evaluation: trained runs on text, which read bytes, and published weights with their tokenizers."""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.analysis import loaded_model
from attnjax.long.extending import Extension, Trained, trained_length
from attnjax.long.factors import searched
from attnjax.long.scoring import Endings, Losses
from attnjax.models import load, load_tokenizer
from attnjax.models.completion import stop_tokens
from attnjax.modules import Decoder, generate
from attnjax.modules.stack import Caches
from attnjax.tasks import Text
from attnjax.typing import Array, Float, Int, PyTree

BYTES = 256
PROMPT, ENDING = 128, 16
"""Prompts and endings of rankings are padded to multiples of these, so that few programs serve all."""


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
      trained_on: the text that a run was trained on, where it is one.
      model: the decoder itself.
      stop: the tokens that end its answers.
      trained: the length that it was trained at, or the one given; raises ValueError where nothing says it.
      note: how it is read past that, in sentences for a table.
      endings: the losses of several endings of a prompt, which is read once; None: each is read with the whole prompt.
    """

    name: str
    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    losses: Losses
    complete: Callable[[Sequence[Sequence[int]], int, int], Int[np.ndarray, "B steps"]]
    bytewise: bool = False
    starts: Callable[[str], list[int]] = lambda text: list(range(len(text.encode())))
    trained_on: Text | None = None
    model: Decoder | None = None
    stop: Sequence[int] = ()
    trained: Callable[[int | None], Trained] | None = None
    note: str = ""
    endings: Endings | None = None

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.encode(text))


def of_path(path: str | pathlib.Path) -> Subject:
    """Return the model in a folder with safetensors, or else the trained run that a folder or a description names.

    Raises:
      ValueError: for a model that does not go on with a text, a run that was not trained on text, and all that loading refuses.
    """
    return of_folder(pathlib.Path(path)) if is_published(path) else of_run(path)


def read_past(subject: Subject, extension: Extension, text: Sequence[int] | None = None) -> Subject:
    """Return a model of `of_path` read past its trained length by a method; `note` says which length that is.

    Args:
      subject: the model as it was trained.
      extension: how it is read.
      text: tokens by which factors of LongRoPE are searched (`attnjax.long.factors`).

    Raises:
      ValueError: for a model without RoPE, and what the method refuses.
    """
    assert subject.model is not None and subject.trained is not None
    trained, note = subject.trained(extension.trained), ""
    if text is not None:
        factors = searched(subject.model, extension, trained, text)
        extension = dataclasses.replace(extension, options={**extension.options, "factors": factors})
        note = f" Its factors, searched: {', '.join(f'{one:g}' for one in factors)}."
    name = f"{subject.name} ({extension.method})"
    model, tokens = extension(subject.model, trained), (subject.encode, subject.decode)
    found = of_decoder(name, model, *tokens, bytewise=subject.bytewise, stop=subject.stop)
    rest = {key: getattr(subject, key) for key in ("starts", "trained_on", "trained")}
    return dataclasses.replace(found, **rest, note=extension.told(trained) + note)


def is_published(path: str | pathlib.Path) -> bool:
    """Return whether a path is a folder with safetensors."""
    folder = pathlib.Path(path)
    return folder.is_dir() and any(folder.glob("*.safetensors"))


def of_run(path: str | pathlib.Path) -> Subject:
    """Return the model of a run on text, which reads bytes, at its newest sound checkpoint."""
    loaded = loaded_model.load(path)
    model = nnx.merge(loaded.graph, loaded.params)
    if not isinstance(loaded.task, Text) or not isinstance(model, Decoder):
        raise ValueError(f"the suite long asks in English, and {path} was not trained on text")
    assert loaded.run is not None
    longest = loaded.run.task.length_max
    decode = lambda tokens: bytes(token for token in tokens if 0 <= token < BYTES).decode("utf-8", "replace")
    found = of_decoder(loaded.name, model, lambda text: list(text.encode()), decode, bytewise=True)
    trained = lambda given: Trained(given or longest, "--trained" if given else "the longest it was trained on")
    return dataclasses.replace(found, trained_on=loaded.task, trained=trained)


def of_folder(path: pathlib.Path) -> Subject:
    """Return the published model of a folder, with its tokenizer."""
    tokenizer = load_tokenizer(path)
    loaded = load(path)
    model, stops = loaded.model, stop_tokens(loaded)
    if not isinstance(model, Decoder):
        raise ValueError(f"{path} holds a {type(model).__name__}, and the suite long needs a Decoder")
    decode = lambda tokens: tokenizer.decode([int(token) for token in tokens if token >= 0])
    encode = functools.partial(tokenizer.encode, continued=True)
    found = of_decoder(path.name, model, encode, decode, stop=stops)
    return dataclasses.replace(found, starts=tokenizer.starts, trained=functools.partial(trained_length, loaded))


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

    def endings(prompt: Sequence[int], told: Sequence[Sequence[int]], size: int) -> Sequence[Float[np.ndarray, " n"]]:
        padding = min(-len(prompt) % PROMPT, size - len(prompt))
        longest = max(map(len, told))
        rows = np.zeros((len(told), longest + -longest % ENDING), np.int32)
        for row, one in zip(rows, told, strict=True):
            row[: len(one)] = one
        padded, counts = np.pad(np.asarray(prompt, np.int32), (padding, 0)), np.array([*map(len, told)], np.int32)
        found = np.asarray(_endings(graph, params, padded, padding, rows, counts))
        return [loss[: len(one)] for loss, one in zip(found, told, strict=True)]

    return Subject(name, encode, decode, losses, complete, bytewise, model=model, stop=stop, endings=endings)


@functools.partial(jax.jit, static_argnames="graph")
def _losses(graph: Any, params: PyTree, tokens: Int[Array, "B T"]) -> Array:
    return loaded_model.next_token_losses(nnx.merge(graph, params)(tokens), tokens)


def read_prompt(
    model: Any, prompt: Int[Array, " T"], padding: Int[Array, ""], room: int
) -> tuple[Float[Array, "1 1 V"], Caches, Int[Array, " room"]]:
    """Read a prompt once into KV caches that have room for more tokens.

    Args:
      model: a `Decoder`.
      prompt: its tokens, padded on the left.
      padding: how many of them are padding, which takes no positions.
      room: how many tokens may follow.

    Returns:
      The logits of the last token, the caches, and the positions of the tokens that may follow.
    """
    assert isinstance(model, Decoder)
    T = prompt.shape[0]
    index = np.arange(T + room, dtype=np.int32)
    pos, last = jnp.maximum(index - padding, 0), jnp.full((1, 1), T - 1, jnp.int32)
    options = {"pos": pos[:T], "valid": index[:T] >= padding, "query_indices": last}
    first, caches = model.decode(prompt[None], model.cache(1, T + room), **options)
    return first, caches, pos[T:]


@functools.partial(jax.jit, static_argnames="graph")
def _endings(
    graph: Any,
    params: PyTree,
    prompt: Int[Array, " T"],
    padding: Int[Array, ""],
    told: Int[Array, "B n"],
    counts: Int[Array, " B"],
) -> Float[Array, "B n"]:
    """Return the loss of each token behind a prompt that is padded on the left, as that of `generate` is.

    The prompt is read once into KV caches, and every ending goes on from a copy of them. Ending i has counts[i] tokens, and
    those behind them are padding, which adds nothing to the length that an encoding may depend on.
    """
    model, n = nnx.merge(graph, params), told.shape[1]
    first, caches, pos = read_prompt(model, prompt, padding, n)

    def losses(ending: Int[Array, " n"], count: Int[Array, ""]) -> Float[Array, " n"]:
        logits, _ = model.decode(ending[None], caches, pos=pos, valid=jnp.arange(n) < count)
        row = jnp.concatenate([ending[:1], ending])  # the first loss is that of the first logits
        return loaded_model.next_token_losses(jnp.concatenate([first, logits], 1), row[None])[0]

    return jax.vmap(losses)(told, counts)
