"""Mutates folders, checkpoints, records, models and configs, runs commands on them, and checks what must be true anyway.

    python -m tests.fuzz --minutes 2                  prints its seed; ends with 1 if there were findings
    python -m tests.fuzz --seed 5 --case 17           that case again
    python -m tests.fuzz --minutes 60 --record docs/fuzzing.json

No file outside the mutated folder may be touched, no traceback shown, nothing may take a minute, and no value be wrong.
"""

import argparse
import collections
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import secrets
import sys
import tempfile
import time
from typing import Any

from tests.fuzz import case, subjects
from tests.fuzz.warm import Worker, obeys_permissions

MOST_FINDINGS = 200
PACKAGES = ("attnjax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def main() -> int:
    """Returns the exit status: 1 if there were findings."""
    parser = _parser()
    arguments = parser.parse_args()
    if arguments.case is not None and arguments.seed is None:
        parser.error("--case needs --seed: a case is a function of both")
    seed = secrets.randbelow(2**31) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    if not obeys_permissions():
        print("NOT RUN: permissions, because this process is root and there is no setpriv")
    with tempfile.TemporaryDirectory(prefix="attnjax-fuzz-") as folder:
        home = pathlib.Path(arguments.folder or folder).resolve() / "fuzz"
        home.mkdir()
        worker = Worker(home)
        try:
            facts = subjects.make(worker, home)
            found = _go(worker, home, facts, seed, arguments)
        finally:
            worker.close()
    print(_summary(found))
    if arguments.record:
        arguments.record.write_text(json.dumps(found, indent=1) + "\n")
    return int(found["findings"] > 0)


def _go(worker: Worker, home: pathlib.Path, facts: Any, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """All cases, until the time is over; each finding is printed when it is made."""
    counts = {name: collections.Counter() for name in ("subjects", "mutations", "commands", "statuses", "kinds")}
    start, number, slowest = time.monotonic(), arguments.case or 0, 0.0
    first = number
    while time.monotonic() - start < 60 * arguments.minutes and counts["kinds"].total() < MOST_FINDINGS:
        outcome = case.run(worker, home, facts, seed, number)
        counts["subjects"][outcome.subject] += 1
        counts["mutations"].update(name for name, _ in outcome.mutations or [("none", "")])
        counts["commands"][outcome.command.name] += 1
        counts["statuses"][str(outcome.reply.status)] += 1
        counts["kinds"].update(finding.partition(":")[0] for finding in outcome.findings)
        slowest = max(slowest, outcome.reply.seconds)
        if outcome.findings or arguments.case is not None:
            print(f"case {number}: python -m tests.fuzz --seed {seed} --case {number}\n{outcome}", flush=True)
        number += 1
        if arguments.case is not None:
            print(outcome.reply.output, outcome.reply.escaped, sep="\n")
            break
    seconds = time.monotonic() - start
    return _record(seed, number - first, seconds, slowest, counts)


def _record(seed: int, cases: int, seconds: float, slowest: float, counts: dict[str, Any]) -> dict[str, Any]:
    """What is worth keeping of a run."""
    return {
        "seed": seed,
        "minutes": round(seconds / 60, 1),
        "cases": cases,
        "cases_per_minute": round(60 * cases / max(seconds, 1e-9)),
        "findings": counts["kinds"].total(),
        "slowest_seconds": round(slowest, 1),
        **{name: dict(sorted(counter.items())) for name, counter in counts.items()},
        "permissions": obeys_permissions(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }


def _summary(found: dict[str, Any]) -> str:
    """The closing lines."""
    lists = [
        f"{name}: " + ", ".join(f"{key} {count}" for key, count in found[name].items())
        for name in ("mutations", "commands", "kinds")
    ]
    end = f"{found['cases']} cases in {found['minutes']} minutes ({found['cases_per_minute']} a minute), seed {found['seed']}"
    return "\n".join([*lists, f"{end}: {found['findings']} findings"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--minutes", type=float, default=2.0, metavar="N", help="how long; making the subjects comes first"
    )
    parser.add_argument("--seed", type=int, metavar="S", help="default: a random one, which is printed")
    parser.add_argument("--case", type=int, metavar="K", help="do this one case, and show what the command printed")
    parser.add_argument("--record", type=pathlib.Path, metavar="FILE", help="write counts, versions and date as JSON")
    parser.add_argument(
        "--folder", metavar="DIR", help="work in DIR/fuzz and leave it there; default: a temporary folder"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
