"""What only somebody who means it does: a changed config under the run id that belongs to it, leases, leftovers, links in wait.

Each function takes (draw, root, canary), the folder of a sweep and the canary beside it, and returns what it did in words.
"""

import json
import os
import pathlib
import random
from typing import Any

from attnjax.config import canonical_json, parse, run_id
from attnjax.sweep.lease import BEAT, RELEASED, Owner, heartbeat_line, identity_line, this_process
from tests.fuzz import tree, values
from tests.fuzz.subjects import readable

Draw = random.Random
Path = pathlib.Path
ELSEWHERE = "../canary/secret.txt"


def _fields(draw: Draw, text: bool) -> dict[str, Any]:
    """The change of a config that a stranger may have reasons for."""
    if text:
        return draw.choice(({"task.options.path": ELSEWHERE}, {"task.options.path": "../canary/pipe"}, {"seed": 7}))
    sizes = [{f"model.{name}": 10**8} for name in ("layers", "model", "heads", "hidden")]
    lengths = [{"evaluate.lengths": [2, 10**9]}, {"task.length_max": 10**9}, {"evaluate.bucket_sizes": [10**9]}]
    return draw.choice(
        ({"task.name": "text", "task.options.path": ELSEWHERE}, {"train.steps": 10**9}, *sizes, *lengths)
    )


def config(draw: Draw, root: Path, canary: Path) -> str:
    """Another config, sound in itself: the folder has the name that belongs to it, and the sweep lists it."""
    path = tree.pick(draw, root, "f", "config.json")
    if path is None:
        return ""
    try:
        table = json.loads(path.read_bytes())
        fields = _fields(draw, table["task"]["name"] == "text")
        for key, value in fields.items():
            *parts, last = key.split(".")
            inner = table
            for part in parts:
                inner = inner[part]
            inner[last] = value
        forged = parse(table)
    except (ValueError, TypeError, KeyError) as error:
        return f"a forged config was refused: {error}"[:100]
    old, new = path.parent.name, run_id(forged)
    path.write_text(canonical_json(forged))
    path.parent.rename(path.parent.with_name(new))
    for file in tree.entries(root, "f"):
        if file.name in ("sweep.json", "manifest.json", "metrics.jsonl", "results.jsonl"):
            file.write_bytes(readable(file).replace(old.encode(), new.encode()))
    return f"{old} is now {new}, with {fields}"


def lease(draw: Draw, root: Path, canary: Path) -> str:
    """A lease of a process that lives, died, is elsewhere, or of nobody; or a link where the next one will be made."""
    run = tree.pick(draw, root, "f", "config.json")
    if run is None:
        return ""
    number = draw.choice(("000001", "000002", "000041", "999999"))
    path = run.parent / f"lease-{number}"
    path.unlink(missing_ok=True)
    owners = {
        "alive": identity_line(this_process(1, 0)) + heartbeat_line(BEAT, 1),
        "dead": identity_line(Owner(**{**vars(this_process(1, 0)), "pid": 2**22 + 5})) + heartbeat_line(BEAT, 1),
        "released": identity_line(this_process(1, 0)) + heartbeat_line(RELEASED, 1),
        "elsewhere": identity_line(Owner("elsewhere", "0" * 32, 5, "1")) + heartbeat_line(BEAT, 1),
        "torn": identity_line(this_process(1, 0))[:20],
        "of huge numbers": b'{"machine": "x", "pid": 1' + b"0" * 500 + b', "attempt": 1e999}\nbeat 1\n',
        "of deep JSON": b"[" * 4000,
    }
    kind = draw.choice((*sorted(owners), "a link"))
    if kind == "a link":
        path.symlink_to(os.path.relpath(canary / draw.choice(("lease-000001", "absent", "pipe")), path.parent))
    else:
        path.write_bytes(owners[kind])
    return f"lease {number} is {kind}"


def leftover(draw: Draw, root: Path, canary: Path) -> str:
    """Entries that code which tidies up would follow: links named like what it removes, renames or writes."""
    names = ("logs", "report", "index.sqlite", "README.md", values.MARKUP[:8], "0" * 16)
    inside = ("checkpoints_damaged", "traceback.txt", "checkpoints/80", "checkpoints/100.orbax-checkpoint-tmp-1")
    inside += (
        "checkpoints_damaged/40",
        "checkpoints_damaged/60",
        "status.json.tmp",
        "checkpoints/40.orbax-checkpoint-tmp-1",
    )
    runs = sorted(path.parent for path in root.glob("*/config.json"))
    where = [root / name for name in names] + [run / name for run in runs for name in inside]
    path = draw.choice(where)
    if os.path.lexists(path) or path.parent.is_symlink() or path.parent.is_file():
        return ""
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(draw.choice((canary, canary / "60", canary / "status.json", canary / "absent")))
    return f"{path.relative_to(root)} is a link to {os.readlink(path).rpartition('/')[2]}"


FORGERIES = (config, config, lease, leftover, leftover)
