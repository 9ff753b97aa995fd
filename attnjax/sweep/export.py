"""Recorded runs in the formats of other programs: event files of TensorBoard, offline runs of Weights & Biases.

    OUT/tensorboard/NAME/events.out.tfevents.ID    a scalar for each number of the training log and of the evaluations
    OUT/wandb/NAME/run-ID.wandb                    the same; `wandb sync FILE` uploads it, nothing else does

Both are functions of config and records alone, so nothing about the machine is in them, and a run that goes on is exported
again in place. The libraries are extras: `attnjax[tensorboard]`, `attnjax[wandb]`.
"""

import contextlib
import importlib
import itertools
import json
import pathlib
import re
import tempfile
from typing import Any, NamedTuple

from attnjax.config import encoding_name, to_dict
from attnjax.folder import enter
from attnjax.records.values import finite, printable, whole
from attnjax.sweep.scan import Run

FORMATS = ("tensorboard", "wandb")
LIBRARIES = ("tensorboardX", "wandb")
LARGEST_FILE = 2**31
UNSAFE = re.compile(r"^\.|[^\w.-]+", re.ASCII)
"""What names of folders and projects do not contain: texts of configs may have anything in them."""


class Scalar(NamedTuple):
    """A recorded number: the step, the name, the value, and the most seconds of training that were recorded by then."""

    step: int
    name: str
    value: float
    seconds: float


def scalars(run: Run) -> list[Scalar]:
    """Every finite number of the training log, as `training/loss`, and of the evaluations, as `test/accuracy/64`, by step.

    What is no record of a step is passed over: its file is told as damaged where runs are read.
    """
    found: list[tuple[Any, str, Any, Any]] = []
    for row in run.metrics().tables:
        names = sorted(row.keys() - {"schema", "step", "seconds"})
        found += [(row.get("step"), f"training/{name}", row[name], row.get("seconds")) for name in names]
    for row in run.results().tables:
        name = f"{row.get('split')}/{row.get('metric')}/{row.get('length')}"
        found.append((row.get("step"), name, row.get("value"), None))
    kept = sorted((one for one in found if whole(one[0]) and finite(one[2])), key=lambda one: one[0])
    clock = itertools.accumulate((one[3] if finite(one[3]) else 0.0 for one in kept), max)
    return [
        Scalar(step, printable(name)[:200], value, now) for (step, name, value, _), now in zip(kept, clock, strict=True)
    ]


def export(run: Run, kind: str, out: pathlib.Path) -> pathlib.Path:
    """Write one run to `out` as `kind`, one of `FORMATS`, and return the file.

    Raises ValueError where the run has no sound config or the library is not installed; OSError where the disk refuses.
    """
    if run.config is None:
        raise ValueError(f"{run.directory} cannot be exported: {'; '.join(run.problems)}")
    write, module = {"tensorboard": _tensorboard, "wandb": _wandb}[kind], library(kind)
    label = f"{encoding_name(run.config.model, options=True)}-{run.config.task.name}-{run.config.seed}-{run.run}"
    label = UNSAFE.sub("_", label)[-140:]
    with tempfile.TemporaryDirectory() as made:
        path = write(run, label, module, pathlib.Path(made).resolve())
        with enter(path.parent) as folder:
            data = folder.read(path.name, LARGEST_FILE)
    out.mkdir(parents=True, exist_ok=True)
    with enter(out, follow=True) as root, root.make(kind) as service, service.make(label) as folder:
        folder.write(path.name, data)
    return out / kind / label / path.name


def library(kind: str) -> Any:
    """The module that writes a format. Raises ValueError, naming the extra, where it is not installed."""
    name = dict(zip(FORMATS, LIBRARIES, strict=True))[kind]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{kind} needs the package {name}: pip install 'attnjax[{kind}]' ({error})") from None


def _tensorboard(run: Run, label: str, tensorboard: Any, folder: pathlib.Path) -> pathlib.Path:
    """Write an event file. `SummaryWriter` would put the name of this machine into the name of the file."""
    summary, event = tensorboard.summary, tensorboard.proto.event_pb2.Event
    text = summary.text("config", f"```json\n{json.dumps(_config(run), indent=2)}\n```")
    events = [event(file_version="brain.Event:2"), event(summary=text)]
    for one in scalars(run):
        shown = summary.scalar(one.name, one.value)
        events.append(event(wall_time=one.seconds, step=one.step, summary=shown))
    path = folder / f"events.out.tfevents.{run.run}"
    with contextlib.closing(tensorboard.record_writer.RecordWriter(str(path))) as file:
        for one in events:
            file.write(one.SerializeToString(deterministic=True))
    return path


def _wandb(run: Run, label: str, wandb: Any, folder: pathlib.Path) -> pathlib.Path:
    """Write an offline run. The logs beside its file, which hold settings and paths, are not kept."""
    project = UNSAFE.sub("_", run.directory.parent.name) or "attnjax"
    fields = {"project": project, "name": label, "id": run.run, "dir": folder, "config": _config(run)}
    with wandb.init(mode="offline", settings=wandb.Settings(**_private(), root_dir=str(folder)), **fields) as written:
        for step, group in itertools.groupby(scalars(run), key=lambda one: one.step):
            written.log({one.name: one.value for one in group}, step=step)
    wandb.teardown()  # the file is complete when the process that writes it has ended
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return path


def _private() -> dict[str, Any]:
    """Settings of wandb that keep host, user, program, arguments, git, code, console, packages and load to themselves.

    Those named explicitly also hold against variables of the environment.
    """
    off = dict.fromkeys(("save_code", "x_save_requirements"), False)
    on = ("disable_code", "disable_git", "disable_job_creation", "silent", "x_disable_stats", "x_disable_meta")
    blank = dict.fromkeys(("host", "username", "email", "program", "program_relpath", "program_abspath"), "-")
    more = {"x_disable_machine_info": True, "console": "off", "run_notes": "", "run_tags": (), "mode": "offline"}
    return off | dict.fromkeys(on, True) | blank | more


def _config(run: Run) -> dict[str, Any]:
    assert run.config is not None
    return to_dict(run.config)
