"""The commands that train nothing: report, list, show."""

import argparse
import importlib
import json
import pathlib
from collections import Counter
from typing import Any

from attnjax.cli.catalog import task_lines
from attnjax.cli.planning import planned, shown, swept
from attnjax.config import ENCODING_NAMES, SCHEMA, TASK_NAMES, cell_id, run_id, to_dict
from attnjax.config.files import available, opening
from attnjax.config.names import check_name
from attnjax.config.outside import import_modules
from attnjax.sweep import groups, scan


def report(arguments: argparse.Namespace) -> int:
    """`attnjax report DIR`."""
    build = provided("attnjax.report", "build")
    for path in build(arguments.folder, arguments.out, published=arguments.published):
        print(path)
    return 0


def list_(arguments: argparse.Namespace) -> int:
    """`attnjax list WHAT`."""
    what, name = arguments.what, arguments.name
    if what == "runs":
        if name is None:
            raise ValueError("list runs needs the folder of a sweep: attnjax list runs DIR")
        return _list_runs(pathlib.Path(name))
    if what == "tasks":
        lines = task_lines() if name is None else [_card(name)]
    elif what == "configs":
        lines = [f"{path.stem:<24}{_first_line(path)}".rstrip() for path in available()]
    else:
        lines = list(ENCODING_NAMES)
    print("\n".join(lines) or "none")
    return 0


def show(arguments: argparse.Namespace) -> int:
    """`attnjax show CONFIG`."""
    plan = planned(arguments.config, arguments.overrides)
    print(json.dumps({"schema": SCHEMA, **to_dict(plan.config)}, indent=2))
    print(f"\nrun      {run_id(plan.config)}\ncell     {cell_id(plan.config)}")
    runs = [one.config for one in plan.runs]
    cells = len({cell_id(config) for config in runs})
    different = {key: shown(values) for key, values in swept(plan).items()}
    above = "; where they differ from the config above:" if different else ""
    print(f"sweep    {len(runs)} runs of {cells} cells, in {len(groups(runs))} populations{above}", flush=True)
    for key, values in different.items():
        print(f"  {key:<30}{values}")
    for note in plan.notes:
        print(f"note: {note}")
    if not arguments.no_model:
        import_modules(plan.imports)
        for name, value in provided("attnjax.train", "describe")(plan.config).items():
            print(f"{name:<24}{_shown(value)}")
    return 0


def _list_runs(folder: pathlib.Path) -> int:
    found = scan(folder)
    for run in found.runs:
        state, step, reason = ("damaged", "", "; ".join(run.problems)) if run.status is None else run.status
        print(f"{run.run}  {state:<10}{step:>9}  {reason}".rstrip())
    counts = Counter("damaged" if run.status is None else run.status.state for run in found.runs)
    print(", ".join(f"{count} {state}" for state, count in counts.items()) or "no runs")
    for problem in found.problems:
        print(f"problem: {problem}")
    if unchecked := found.without_checksums():
        print(f"note: {unchecked}")
    if found.foreign:
        print(f"not of a sweep: {', '.join(found.foreign)}")
    return 0


def _card(name: str) -> str:
    """The data card of a task with its default options."""
    check_name("the task", name, TASK_NAMES)
    return provided("attnjax.tasks", "card")(provided("attnjax.tasks", "task")(name)).rstrip()


def provided(module: str, function: str) -> Any:
    """A function of a part that loads only now, because it needs JAX or Matplotlib."""
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{module}.{function} is not there: {error}") from error


def _first_line(path: pathlib.Path) -> str:
    try:
        return opening(path).partition("\n")[0]
    except ValueError as error:
        return f"(damaged: {error})"


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
