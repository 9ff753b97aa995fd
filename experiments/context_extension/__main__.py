"""How far does a model with RoPE read past its training length?

    python -m experiments.context_extension                                  a small model of Python's source, trained here
    python -m experiments.context_extension --model FOLDER --text FILE       any published model with RoPE
    python -m experiments.context_extension --render experiments/context_extension    page, tables, figures from the records

The first trains configs/context_extension.py into runs/context_extension, where it is not there yet. Every method is in
records.jsonl before the next is measured: the same command goes on where it was stopped. Small models are then asked the tasks
of the suite "long" (suite.jsonl); `attnjax evaluate MODEL --extend NAME` asks a published one.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from attnjax.cli import main as attnjax
from attnjax.report.intervals import FEWEST
from experiments import recorded
from experiments.context_extension import page

CONFIG = "context_extension"
RUNS = pathlib.Path("runs") / CONFIG


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, measure and render, or less; returns the exit status: 2 for a mistake of the user, with a line that says it."""
    chosen = parser().parse_args(arguments)
    try:
        if chosen.render is None and (status := measure(chosen)):
            return status
        made = page.render(chosen.render or chosen.out)
    except (ValueError, OSError) as error:
        print(f"context_extension: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(map(str, made)))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="python -m experiments.context_extension",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    folder, add = pathlib.Path, made.add_argument
    add("--out", type=folder, default=folder("runs/context_extension_measured"), help="where records and page go")
    add("--render", type=folder, help="measure nothing; write the page of the records in this folder")
    add("--runs", type=folder, help=f"runs of decoders of bytes with RoPE; default: train {RUNS}")
    add("--model", type=folder, help="a folder with config.json, safetensors and tokenizer.json instead")
    add("--text", type=folder, help="a UTF-8 file for --model")
    add("--trained", type=int, help="the trained length, where config.json does not say it or to try another")
    add("--factor", type=int, default=8, help="the longest length over the trained one, a power of 2 (8)")
    add("--methods", help="names separated by commas; default: all")
    add("--documents", type=int, default=24, help="windows of the longest length (24)")
    add("--needles", type=int, default=16, help="needles at each depth and length (16)")
    add("--finetune", type=int, metavar="N", help="steps of fine-tuning (40; with --model 0)")
    add("--rate", type=float, default=1e-3, help="of fine-tuning (0.001)")
    add("--tokens", type=int, default=4096, help="of each step of fine-tuning (4096)")
    add("--batch", type=int, default=8192, help="most tokens of one call while measuring (8192)")
    add("--search", type=int, metavar="ROUNDS", help="for factors of LongRoPE (2; with --model 0: NTK-by-parts)")
    add("--factors", type=folder, help="a JSON file with them: a list, or a table with long_factor as in config.json")
    add("--drope-scale", type=float, default=0.0, help="c of 1 + c ln(T/L), a factor of DroPE's logits (0)")
    return made


def measure(chosen: argparse.Namespace) -> int:
    """Train where nothing was trained, and append all records that are missing."""
    if (chosen.model is None) != (chosen.text is None):
        raise ValueError("--model and --text belong together: give both or neither")
    for name in ("documents", "needles"):
        if (count := getattr(chosen, name)) < FEWEST:
            raise ValueError(f"--{name} must be at least {FEWEST}, of fewer there is no interval, got {count}")
    if chosen.model is None and chosen.runs is None and (status := train()):
        return status
    # JAX is imported after training, whose workers set it up for themselves.
    from attnjax.cli.compilation_cache import keep_programs
    from experiments.context_extension import recording
    from experiments.context_extension.measuring import Protocol

    keep_programs()
    subjects, corpus = published(chosen) if chosen.model else small(chosen.runs or RUNS)
    protocol = Protocol(
        subjects[0].trained, chosen.factor, chosen.documents, chosen.needles, batch=max(1, chosen.batch)
    )
    if (apart := (len(corpus.test) - 1) // protocol.longest) < protocol.documents:
        raise ValueError(
            f"the part of the text that is measured has {len(corpus.test)} {corpus.unit}s, {apart} windows of "
            f"{protocol.longest} that do not overlap: give a longer text, or --documents of at most {apart}"
        )
    plan = planned(chosen)
    recording.record(subjects, corpus, protocol, plan, chosen.out / page.RECORDS)
    if chosen.model is None:
        from attnjax.records import jsonl
        from experiments.context_extension import suite_records

        runs = [one for one in jsonl.read(chosen.out / page.RECORDS).tables if one.get("kind") == "run"]
        factors = {one["run"]: one["factors"] for one in runs}
        path = chosen.out / suite_records.RECORDS
        suite_records.record(subjects, corpus, protocol, factors, path, plan.methods)
    return 0


def train() -> int:
    """The text with planted facts and the runs of the config; both stay as they are where they are there."""
    from configs.context_extension import LENGTH, PATH
    from experiments.context_extension import planting

    planting.write(pathlib.Path(PATH), LENGTH)
    return attnjax(["sweep", CONFIG, "--out", str(RUNS)])


def small(runs: pathlib.Path) -> Any:
    """The trained runs of a folder, and the standard library. Raises ValueError where there is none, or of two cells."""
    from attnjax.config import encoding_name
    from attnjax.sweep import load
    from experiments.context_extension import subjects, texts

    store = load(runs)
    done = [entry for entry in store.runs if store.status(entry.run).state == "done"]
    if not done:
        raise ValueError(f"{runs} holds no run that is done; train the {len(store.runs)} runs of its sweep first")
    recorded.check_cells(runs, ((encoding_name(store.config(one.run).model), one.cell) for one in done))
    found = [subjects.of_run(store.directory(entry.run)) for entry in done]
    return [found[0].sibling(one) for one in found], texts.standard_library()


def published(chosen: argparse.Namespace) -> Any:
    """The model of a folder, and the text of the user in its tokens."""
    import hashlib

    from attnjax.models import load, load_tokenizer
    from experiments.context_extension import subjects, texts

    # Adam's small steps would be lost in half precision.
    subject = subjects.of_model(load(chosen.model, dtype="float32" if chosen.finetune else None), chosen.trained)
    if not chosen.text.is_file():
        raise ValueError(f"--text must be a file, got {chosen.text}")
    digest = hashlib.sha256(chosen.text.read_bytes()).hexdigest()
    longest = subject.trained * chosen.factor
    return [subject], texts.user_text(chosen.text, load_tokenizer(chosen.model), longest, digest)


def planned(chosen: argparse.Namespace) -> Any:
    """What is done beside measuring."""
    from experiments.context_extension.methods import NAMES
    from experiments.context_extension.recording import Plan

    own = chosen.model is None
    steps = chosen.finetune if chosen.finetune is not None else 40 if own else 0
    rounds = chosen.search if chosen.search is not None else 2 if own else 0
    methods = NAMES if chosen.methods is None else tuple(name for name in chosen.methods.split(",") if name)
    factors = None if chosen.factors is None else read_factors(chosen.factors)
    return Plan(methods, steps, chosen.rate, chosen.tokens, rounds, factors, chosen.drope_scale)


def read_factors(path: pathlib.Path) -> tuple[float, ...]:
    """A list of numbers, or `long_factor` of a table, or of its `rope_scaling`. Raises ValueError for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"--factors: {path} cannot be read as JSON: {error}") from None
    found = found.get("rope_scaling", found) if isinstance(found, dict) else found
    found = found.get("long_factor") if isinstance(found, dict) else found
    if not isinstance(found, list) or not all(isinstance(one, int | float) for one in found):
        raise ValueError(f"--factors: {path} must hold a list of numbers, or a table with long_factor")
    return tuple(map(float, found))


if __name__ == "__main__":
    sys.exit(main())
