"""Does SmolLM2 find needles past its trained length, under methods without training?

    python -m experiments.smollm2.retrieval FILE.gguf
    python -m experiments.smollm2 --render experiments/smollm2     page from the records

A prompt is noise with one needle at each of five depths, "One of the special magic numbers for quiet-river is: 4071823.", as
in RULER's niah_multikey_1 (Hsieh et al. 2024, arXiv:2404.06654), which has essays for noise and four needles. It is read
once, and each needle is asked for from a copy of the KV cache. An answer is found where every token of it is the likeliest, so
that greedy generation goes on with exactly this number; its loss in nats per token is kept beside it. Each prompt under a
method is in retrieval.jsonl before the next begins, and a second call goes on.
"""

import argparse
import functools
import hashlib
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from attnjax.evaluation.loaded_model import next_token_losses
from attnjax.evaluation.text_model import read_prompt
from attnjax.modules import Decoder
from attnjax.records import jsonl
from attnjax.typing import Array, Bool, Float, Int, PyTree
from experiments import recorded
from experiments.smollm2.needles import ANSWER, DEPTHS, Encode, Prompt, alike, filled

RECORDS = "retrieval.jsonl"
FOLDER = pathlib.Path("runs/smollm2")
PROMPTS = 3
TRAINED = 8192
CELLS = (
    *((length, "none") for length in (1024, 4096, TRAINED)),
    *((2 * TRAINED, one) for one in ("none", "yarn", "streaming_llm", "dual_chunk", "leaky_rerope", "self_extend")),
)
"""The number of tokens of prompt, question and answer, and the method: within the trained length none is needed."""
Record = dict[str, Any]


class Answers(NamedTuple):
    """For each needle the mean loss of the tokens of its number, and whether each of them is the likeliest one.

    `ranked` is whether the number is likelier than the others of the prompt.
    """

    losses: list[float]
    greedy: list[bool]
    ranked: list[bool]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    made = argparse.ArgumentParser(
        prog="python -m experiments.smollm2.retrieval", description=(__doc__ or "").split("\n")[0]
    )
    folder = pathlib.Path
    made.add_argument("file", type=folder, help="a GGUF file of SmolLM2")
    made.add_argument("--out", type=folder, default=folder("runs/smollm2_measured"), help="where records go")
    chosen = made.parse_args(arguments)
    try:
        measure(chosen.file, chosen.out / RECORDS)
    except ValueError as error:
        print(f"smollm2.retrieval: error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(file: pathlib.Path, path: pathlib.Path) -> None:
    """Append the records that are missing, prompt by prompt, so that all methods have as many.

    Raises ValueError where the file holds records of another protocol.
    """
    from attnjax.cli.compilation_cache import keep_programs
    from attnjax.evaluation.text_model import of_folder, read_past
    from experiments.smollm2.converting import convert

    if not FOLDER.exists():
        convert(file, FOLDER)
    keep_programs()
    subject = of_folder(FOLDER)
    about = {"model": hashlib.sha256(file.read_bytes()).hexdigest(), "depths": list(DEPTHS), "trained": TRAINED}
    found = recorded.begin(path, {"kind": "protocol", **about})
    models = {name: read_past(subject, name, 2 * TRAINED).model for _, name in CELLS if name != "none"}
    models["none"] = subject.model
    keys = alike(subject.encode)
    for i in range(PROMPTS):
        for length, method in CELLS:
            if any((one.get("length"), one.get("method"), one.get("prompt")) == (length, method, i) for one in found):
                continue
            started, model = time.monotonic(), models[method]
            assert model is not None
            prompt = filled(subject.encode, keys, length, i)
            record = {"length": length, "method": method, "prompt": i}
            record |= answered(model, subject.encode, prompt, length)._asdict()
            seconds = round(time.monotonic() - started, 1)
            jsonl.append(path, {"kind": "retrieval", **record, "seconds": seconds})
            print(record, f"{seconds} s", flush=True)


def answered(model: Decoder, encode: Encode, prompt: Prompt, length: int) -> Answers:
    """The answers of a model. Raises ValueError where questions differ in their number of tokens, or numbers do."""
    graph, params = nnx.split(model, graph=False)
    text, size = encode(prompt.text), length - ANSWER
    asked = [encode(question) for question, _ in prompt.asked]
    whole = [[encode(question + value) for _, value in prompt.asked] for question, _ in prompt.asked]
    answers = [[one[len(mine) :] for one in rows] for mine, rows in zip(asked, whole, strict=True)]
    split = all(one[: len(mine)] == mine for mine, rows in zip(asked, whole, strict=True) for one in rows)
    sizes = {len(mine) for mine in asked}, {len(one) for rows in answers for one in rows}
    if not split or any(len(found) > 1 for found in sizes):
        raise ValueError(
            "all questions must have as many tokens, and so all numbers, which must be tokens of their own"
        )
    padding = size - len(text)
    padded = np.pad(np.asarray(text, np.int32), (padding, 0))
    found = _read(graph, params, padded, padding, np.asarray(asked, np.int32), np.asarray(answers, np.int32))
    (losses, hits), own = map(np.asarray, found), range(len(asked))
    return Answers(
        [round(float(losses[i, i].mean()), 4) for i in own],
        [bool(hits[i, i].all()) for i in own],
        [int(losses[i].sum(-1).argmin()) == i for i in own],
    )


@functools.partial(jax.jit, static_argnames="graph")
def _read(
    graph: Any,
    params: PyTree,
    prompt: Int[Array, " T"],
    padding: Int[Array, ""],
    questions: Int[Array, "B Q"],
    answers: Int[Array, "B B n"],
) -> tuple[Float[Array, "B B n"], Bool[Array, "B B n"]]:
    """Loss of each token of every answer to every question, and whether it is the likeliest.

    The prompt is padded on the left.
    """
    model, Q = nnx.merge(graph, params), questions.shape[1]
    _, read, pos = read_prompt(model, prompt, padding, Q + answers.shape[2])
    last = jnp.full((1, 1), Q - 1, jnp.int32)

    def question(given: tuple[Array, Array]) -> tuple[Array, Array]:
        tokens, told = given
        first, caches = model.decode(tokens[None], read, pos=pos[:Q], query_indices=last)

        def answer(number: Int[Array, " n"]) -> tuple[Array, Array]:
            logits = jnp.concatenate([first, model.decode(number[None], caches, pos=pos[Q:])[0]], 1)
            row = jnp.concatenate([number[:1], number])  # the first loss is that of the first logits
            return next_token_losses(logits, row[None])[0], logits[0, :-1].argmax(-1) == number

        return jax.lax.map(answer, told)

    return jax.lax.map(question, (questions, answers))


if __name__ == "__main__":
    sys.exit(main())
