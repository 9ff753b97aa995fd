"""The commands `attnjax report` and `attnjax show`, which train nothing."""

import argparse
import importlib
import json
from typing import Any

from attnjax.cli.planning import planned, shown, swept
from attnjax.config import SCHEMA, cell_id, run_id, to_dict
from attnjax.config.outside import import_modules
from attnjax.sweep import groups
from attnjax.sweep.find import check_folder


def report(arguments: argparse.Namespace) -> int:
    """`attnjax report DIR`."""
    check_folder(arguments.folder)
    build = provided("attnjax.report", "build")
    for path in build(arguments.folder, arguments.out, published=arguments.published):
        print(path)
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
    if plan.untuned:
        print("note: `attnjax sweep` tunes these runs first; its option --dry-run shows among which candidates")
    if not arguments.no_model:
        import_modules(plan.imports)
        for name, value in provided("attnjax.train", "describe")(plan.config).items():
            print(f"{name:<24}{_shown(value)}")
    return 0


def provided(module: str, function: str) -> Any:
    """A function of a module that is imported only now, because it needs JAX or Matplotlib."""
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{module}.{function} cannot be imported: {error}") from error


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
