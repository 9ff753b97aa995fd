"""How many answers does SmolLM2 find in long texts, and does the search for factors of LongRoPE run on it?

    python -m experiments.smollm2.suite FILE.gguf --text FILE.txt     both as for python -m experiments.smollm2
    python -m experiments.smollm2 --render experiments/smollm2        page from the records

Tasks of the suite "long", sized in tokens of the checkpoint, by generation and by ranking, as
`attnjax evaluate runs/smollm2 --suite long` measures them; and the factor search of LongRoPE as `--extend longrope --search`
runs it, on the first window of the text. The search is told a trained length of `PRETENDED` tokens, which the model
has long exceeded in training: windows past its true length take too long here. Each result is in suite.jsonl before the
next begins, and a second call goes on.
"""

import argparse
import functools
import hashlib
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnjax.records import jsonl
from experiments import recorded

RECORDS = "suite.jsonl"
FOLDER = pathlib.Path("runs/smollm2")
LENGTHS, SAMPLES = (512,), 4
TASKS = ("niah_single_1", "niah_multikey_2")
PRETENDED, WINDOW, ROUNDS = 32, 64, 1
"""Tokens that the search takes for the trained length, those of its window, and how often it goes over all pairs."""
Record = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    made = argparse.ArgumentParser(
        prog="python -m experiments.smollm2.suite", description=(__doc__ or "").split("\n")[0]
    )
    made.add_argument("file", type=pathlib.Path, help="a GGUF file of SmolLM2")
    made.add_argument("--text", type=pathlib.Path, required=True, help="a UTF-8 file")
    made.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path("runs/smollm2_measured"), help="where records go"
    )
    chosen = made.parse_args(arguments)
    try:
        measure(chosen.file, chosen.text, chosen.out / RECORDS)
    except ValueError as error:
        print(f"smollm2.suite: error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(file: pathlib.Path, text: pathlib.Path, path: pathlib.Path) -> None:
    """Append the records that are missing. Raises ValueError where the file holds records of another protocol."""
    from attnjax.cli.compilation_cache import keep_programs

    keep_programs()
    from attnjax.evaluation.text_model import of_folder
    from experiments.smollm2.converting import convert

    if not FOLDER.exists():
        convert(file, FOLDER)
    subject = of_folder(FOLDER)
    sha256 = lambda one: hashlib.sha256(one.read_bytes()).hexdigest()
    about = {"model": sha256(file), "text": sha256(text), "samples": SAMPLES, "shots": 1, "haystack": "noise"}
    found = recorded.begin(
        path, {"kind": "protocol", "pretended": PRETENDED, "window": WINDOW, "rounds": ROUNDS, **about}
    )
    for length in LENGTHS:
        for task in TASKS:
            if not any((one.get("task"), one.get("length")) == (task, length) for one in found):
                jsonl.append(path, timed(functools.partial(score, subject, task, length)))
    window = subject.encode(text.read_text(encoding="utf-8"))[:WINDOW]
    for kind, make in (("search", search), ("plain", plain)):
        if not any(one.get("kind") == kind for one in found):
            jsonl.append(path, timed(functools.partial(make, subject, window)))


def timed(make: Callable[[], Record]) -> Record:
    """A record with the seconds that it took, and those of the processor."""
    started, worked = time.monotonic(), time.process_time()
    found = make()
    seconds = {"seconds": time.monotonic() - started, "processor_seconds": time.process_time() - worked}
    print(found, seconds, flush=True)
    return {**found, **{name: round(value, 1) for name, value in seconds.items()}}


def score(subject: Any, task: str, length: int) -> Record:
    """The score of a task at a length."""
    from attnjax.evaluation import suite

    (found,) = suite.evaluate(subject, (length,), (task,), number=SAMPLES)
    if found.problem:
        raise ValueError(found.problem)
    return {"kind": "score", "task": task, "length": length, "generation": found.generation, "ranking": found.ranking}


def search(subject: Any, tokens: Sequence[int]) -> Record:
    """The factors that are found, and the losses of the window under them, under those of the starts, and under 1."""
    from attnjax.evaluation.factors import Loss, searched
    from attnjax.evaluation.methods import factors_of

    about: dict[str, Any] = {"trained": PRETENDED, "factor": WINDOW / PRETENDED}
    found = searched(subject.model, "longrope", tokens, WINDOW, rounds=ROUNDS, **about)
    loss = Loss(subject.model, np.asarray([tokens], np.int32), "longrope", **about)
    starts = factors_of(loss.rope, subject.model.config.sizes.head_dim, about["factor"], PRETENDED)
    lists = {**dict(zip(("pi", "ntk", "by_parts"), starts, strict=True)), "found": found, "ones": (1.0,) * len(found)}
    return {
        "kind": "search",
        "factors": list(found),
        "losses": {name: round(loss(one), 4) for name, one in lists.items()},
    }


def plain(subject: Any, tokens: Sequence[int]) -> Record:
    """The loss of the window as trained. Factors of 1 have another: the attention factor of LongRoPE acts with them."""
    return {"kind": "plain", "loss": round(float(np.mean(subject.losses(np.asarray([tokens], np.int32)))), 4)}


if __name__ == "__main__":
    sys.exit(main())
