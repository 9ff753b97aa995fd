"""Mutates bytes of folders of runs and of models, and runs commands on them: each ends with a sentence or a sound answer.

    python -m tests.fuzz --minutes 2            prints its seed; ends with 1 if there were findings
    python -m tests.fuzz --seed 5 --case 17     that case again

A finding is an exception that no command may show, a changed file outside of the mutated folder, or five minutes without end.
"""

import argparse
import contextlib
import io
import os
import pathlib
import random
import secrets
import shutil
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable

from flax import nnx

from attnjax import models
from attnjax.cli import main as attnjax
from attnjax.config import parse
from attnjax.sweep import plan, prepare, run_here, seeds
from attnjax.train import train

LONGEST = 300.0
TINY = {
    "name": "tiny",
    "task": {"name": "bucket_sort", "length_min": 1, "length_max": 4},
    "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8, "encoding": {"name": "nope"}},
    "train": {"steps": 8, "batch": 2, "log_every": 2, "checkpoint_every": 2},
    "evaluate": {"lengths": [2, 6], "validation_lengths": [4], "count": 4, "batch": 4, "bucket_sizes": [6]},
}
GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16, "vocab_size": 32}


def make_runs(folder: pathlib.Path) -> None:
    """Write a sweep with one run that is done and one that was stopped after its first checkpoint."""
    store = prepare(folder, "tiny", plan(parse(TINY), seeds(2)))
    run_here(store.only([store.runs[0].run]), train)
    run_here(store, stopped)


def stopped(configs, directories, context) -> None:
    """Train until a step of at least 4."""
    step = context.step

    def told(directory: pathlib.Path, number: int) -> None:
        step(directory, number)
        if number >= 4:
            context.stop("enough")

    context.step = told
    train(configs, directories, context)


def make_model(folder: pathlib.Path) -> None:
    """Write a GPT-2 of one layer."""
    gpt2 = models.MODELS["gpt2"]
    spec = gpt2.config(GPT2)
    models.save(models.Loaded(gpt2.build(spec, nnx.Rngs(0)), spec, gpt2, GPT2), folder)


# Mutations


def flip(data: bytes, draw: random.Random) -> bytes:
    """Change some bits."""
    changed = bytearray(data)
    for _ in range(draw.choice([1, 1, 4, 64]) if data else 0):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(data: bytes, draw: random.Random) -> bytes:
    """Drop the end."""
    return data[: draw.randrange(len(data) + 1)]


def copied(data: bytes, draw: random.Random) -> bytes:
    """Insert a part of it somewhere else."""
    start, to = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:to] + data[start : start + draw.choice([1, 16, 4096])] + data[to:]


def numbers(data: bytes, draw: random.Random) -> bytes:
    """Replace the digits of a number, or a value of JSON, by an odd one."""
    places = [i for i, byte in enumerate(data[:65536]) if 48 <= byte <= 57]
    if not places:
        return flip(data, draw)
    place = draw.choice(places)
    odd = [b"-1", b"0", b"1e999", b"99999999999999999999", b"null", b"[]", b'"x"', b"NaN", b"[" * 5000, b"true"]
    return data[:place] + draw.choice(odd) + data[place + 1 :]


def mutate(folder: pathlib.Path, draw: random.Random, outside: pathlib.Path) -> str:
    """Change one file, or put something else in its place; returns what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    if not files:
        return "no file is left"
    path = draw.choice(files)
    how = draw.choice([flip, cut, copied, numbers, "link", "pipe", "folder", "gone"])
    name = path.relative_to(folder).as_posix()
    if not isinstance(how, str):
        path.write_bytes(how(path.read_bytes(), draw))
        return f"{how.__name__} {name}"
    if how == "link":
        path = draw.choice([path, *path.parents[: len(path.relative_to(folder).parents) - 1]])
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    {
        "link": lambda: path.symlink_to(outside),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "gone": lambda: None,
    }[how]()
    return f"{how} {path.relative_to(folder)}"


# Commands


def commands(folder: pathlib.Path, out: pathlib.Path) -> dict[str, Callable[[], object]]:
    """Return what may be done with a folder of runs."""
    run = next((path for path in folder.iterdir() if len(path.name) == 16), folder)
    return {
        "list": lambda: attnjax(["list", "runs", str(folder)]),
        "report": lambda: attnjax(["report", str(folder), "--out", str(out / "report")]),
        "explore": lambda: attnjax(["explore", str(run), "--out", str(out / "page.html")]),
        "work": lambda: attnjax(["work", str(folder)]),
    }


def loaded(folder: pathlib.Path) -> None:
    """Load a model; a refusal is a sentence."""
    with contextlib.suppress(ValueError, OSError):
        models.load(folder)


def case(home: pathlib.Path, seed: int, number: int) -> tuple[str, str]:
    """Run one case; returns what was done, and what is wrong ("" where nothing is)."""
    draw = random.Random(f"{seed} {number}")
    with tempfile.TemporaryDirectory(dir=home) as made:
        here, outside = pathlib.Path(made) / "case", pathlib.Path(made) / "outside"
        outside.mkdir()
        (outside / "canary").write_text("untouched")
        subject = draw.choice(["runs", "runs", "runs", "model"])
        shutil.copytree(home / subject, here, symlinks=True)
        told = [mutate(here, draw, outside) for _ in range(draw.choice([1, 1, 2, 5]))]
        actions = {"load": lambda: loaded(here)} if subject == "model" else commands(here, pathlib.Path(made))
        name = draw.choice(sorted(actions))
        what, start = f"{name}: {'; '.join(told)}", time.monotonic()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = actions[name]()
            if code not in (None, 0, 1, 2):
                return what, f"exit status {code}"
        except Exception:
            return what, traceback.format_exc()
        if time.monotonic() - start > LONGEST:
            return what, f"took {time.monotonic() - start:.0f} s"
        if [path.name for path in outside.iterdir()] != ["canary"] or (outside / "canary").read_text() != "untouched":
            return what, "a file outside was touched"
        return what, ""


def main() -> int:
    """Return the exit status: 1 if there were findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--case", type=int)
    arguments = parser.parse_args()
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    warnings.simplefilter("ignore")
    counts, findings = Counter(), 0
    with tempfile.TemporaryDirectory(prefix="attnjax-fuzz-") as made:
        home, number = pathlib.Path(made).resolve(), arguments.case or 0
        make_runs(home / "runs")
        make_model(home / "model")
        models.load(home / "model")  # sound before it is mutated
        end = time.monotonic() + 60 * arguments.minutes
        while time.monotonic() < end:
            what, wrong = case(home, seed, number)
            counts[what.partition(":")[0]] += 1
            if wrong:
                findings += 1
                print(f"case {number}: {what}\n{wrong}", flush=True)
            number += 1
            if arguments.case is not None:
                break
    print(f"{sum(counts.values())} cases, {findings} findings; {dict(counts)}")
    return int(findings > 0)


if __name__ == "__main__":
    raise SystemExit(main())
