"""Live curves: numbers that a run records go to TensorBoard as well, while it trains.

    SWEEP/live/tensorboard/NAME/    tensorboard --logdir SWEEP/live/tensorboard

The library is the extra `attnjax[tensorboard]`. The records of a run do not depend on it.
"""

import contextlib
import importlib
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnjax.config import RunConfig, encoding_name, run_id
from attnjax.records.values import finite

FORMATS = ("tensorboard",)


def library() -> Any:
    """Return the module that writes events. Raises ValueError, naming the extra, where it is not installed."""
    try:
        return importlib.import_module("tensorboardX")
    except ImportError as error:
        raise ValueError("--log tensorboard needs tensorboardX: pip install 'attnjax[tensorboard]'") from error


@contextlib.contextmanager
def recorded(context: Any, kind: str, root: pathlib.Path, configs: Sequence[RunConfig]) -> Iterator[Any]:
    """Yield a run context that passes everything on to `context`, and writes curves of these runs; for kind "" that itself."""
    if not kind:
        yield context
        return
    curves = Curves(context, root / "live" / kind, configs)
    try:
        yield curves
    finally:
        for writer in curves.writers.values():
            writer.close()


class Curves:
    """A run context that also writes metrics and results as events, see `recorded`."""

    def __init__(self, context: Any, folder: pathlib.Path, configs: Sequence[RunConfig]):
        self._context, self._folder, self._library = context, folder, library()
        self._configs = {run_id(config): config for config in configs}
        self.writers: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def truncate_after(self, directory: pathlib.Path, step: int) -> None:
        """Begin the curves of a run that goes on after `step`; events after it are superseded."""
        self._context.truncate_after(directory, step)
        run = directory.parent.name
        config = self._configs[run]
        words = (encoding_name(config.model, options=True), config.task.name, config.seed, run)
        name = re.sub(r"[^\w.=-]+", "_", "-".join(map(str, words)))[-140:]
        self.writers[run] = self._library.SummaryWriter(str(self._folder / name), purge_step=step + 1)

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
        writer = self.writers[directory.parent.name]
        for name, value in numbers.items():
            if finite(value):
                writer.add_scalar(name, value, step)
        writer.flush()
