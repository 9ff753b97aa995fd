"""Live curves: numbers that a run records go to TensorBoard or Weights & Biases as well, while it trains.

    SWEEP/live/tensorboard/NAME/    tensorboard --logdir SWEEP/live/tensorboard
    SWEEP/live/wandb/               offline runs, for `wandb sync`, unless WANDB_MODE is set

The libraries are extras: `attnjax[tensorboard]`, `attnjax[wandb]`. The records of a run do not depend on either.
"""

import contextlib
import importlib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnjax.config import RunConfig, encoding_name, run_id, to_dict
from attnjax.records.values import finite

FORMATS = ("tensorboard", "wandb")
FOLDER = "live"


def library(kind: str) -> Any:
    """Return the module that writes a format. Raises ValueError, naming the extra, where it is not installed."""
    name = "tensorboardX" if kind == "tensorboard" else kind
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"--log {kind} needs the package {name}: pip install 'attnjax[{kind}]'") from error


@contextlib.contextmanager
def recorded(context: Any, kind: str, root: pathlib.Path, configs: Sequence[RunConfig]) -> Iterator[Any]:
    """Yield a run context that passes everything on to `context`, and writes curves of these runs; for kind "" that itself."""
    if not kind:
        yield context
        return
    curves = Curves(context, kind, root / FOLDER, configs)
    try:
        yield curves
    finally:
        curves.close()


class Curves:
    """A run context that also writes metrics and results as events, see `recorded`."""

    def __init__(self, context: Any, kind: str, folder: pathlib.Path, configs: Sequence[RunConfig]):
        self._context, self._kind, self._folder, self._library = context, kind, folder, library(kind)
        self._configs = {run_id(config): config for config in configs}
        self._writers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def truncate_after(self, directory: pathlib.Path, step: int) -> None:
        """Begin the curves of a run that goes on after `step`; events after it are superseded."""
        self._context.truncate_after(directory, step)
        run = directory.parent.name
        config = self._configs[run]
        words = (encoding_name(config.model, options=True), config.task.name, config.seed, run)
        name = re.sub(r"[^\w.=-]+", "_", "-".join(map(str, words)))[-140:]
        self._folder.mkdir(exist_ok=True)
        if self._kind == "tensorboard":
            folder = str(self._folder / self._kind / name)
            self._writers[run] = self._library.SummaryWriter(folder, purge_step=step + 1)
        else:
            mode = os.environ.get("WANDB_MODE", "offline")
            fields = {"project": config.name, "name": name, "id": run, "config": to_dict(config), "resume": "allow"}
            self._writers[run] = self._library.init(mode=mode, dir=str(self._folder), reinit="create_new", **fields)

    def metrics(self, directory: pathlib.Path, record: Mapping[str, Any]) -> None:
        """Record a line of the training log, and write its numbers as training/NAME."""
        self._context.metrics(directory, record)
        numbers = {f"training/{name}": value for name, value in record.items() if name not in ("step", "seconds")}
        self._write(directory, record["step"], numbers)

    def results(self, directory: pathlib.Path, *found: Mapping[str, Any]) -> None:
        """Record evaluations, and write them as SPLIT/METRIC/LENGTH."""
        self._context.results(directory, *found)
        for row in found:
            name = f"{row.get('split')}/{row.get('metric')}/{row.get('length')}"
            self._write(directory, row["step"], {name: row["value"]})

    def _write(self, directory: pathlib.Path, step: int, numbers: Mapping[str, Any]) -> None:
        writer = self._writers[directory.parent.name]
        sound = {name: value for name, value in numbers.items() if finite(value)}
        if self._kind == "wandb":
            writer.log(sound, step=step)
        else:
            for name, value in sound.items():
                writer.add_scalar(name, value, step)
            writer.flush()

    def close(self) -> None:
        """End all curves."""
        for writer in self._writers.values():
            writer.finish() if self._kind == "wandb" else writer.close()
