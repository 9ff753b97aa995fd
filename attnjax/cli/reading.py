"""The verbs that train nothing and write no runs: `show`, `report`, `explore`."""

import argparse
import json
import os

from attnjax.cli.compilation_cache import keep_programs
from attnjax.cli.planning import planned, swept
from attnjax.config import SCHEMA, cell_id, run_id, to_dict
from attnjax.config.outside import import_modules
from attnjax.sweep import find_folder, find_run, groups


def show(arguments: argparse.Namespace) -> int:
    """`attnjax show CONFIG`: the config, its runs, and the size of the model."""
    plan = planned(arguments.config, arguments.overrides)
    print(json.dumps({"schema": SCHEMA, **to_dict(plan.config)}, indent=2))
    print(f"\nrun      {run_id(plan.config)}\ncell     {cell_id(plan.config)}")
    runs = [one.config for one in plan.runs]
    cells = len({cell_id(config) for config in runs})
    different = swept(plan)
    above = "; what they change in the config above:" if different else ""
    print(f"sweep    {len(runs)} runs of {cells} cells, in {len(groups(runs))} populations{above}", flush=True)
    for key, values in different.items():
        print(f"  {key:<30}{values}")
    if plan.untuned:
        print("note: `attnjax run` tunes these runs first; its option --dry-run shows among which candidates")
    if not arguments.no_model:
        import_modules(plan.imports)
        from attnjax.train import describe

        for name, value in describe(plan.config).items():
            whole = isinstance(value, int) and not isinstance(value, bool)
            print(f"{name:<24}{f'{value:,}' if whole else value}")
    return 0


def report(arguments: argparse.Namespace) -> int:
    """`attnjax report NAME`: figures, tables and a page."""
    from attnjax import report

    for path in report.build(find_folder(arguments.folder), arguments.out):
        print(path)
    return 0


def explore(arguments: argparse.Namespace) -> int:
    """`attnjax explore [RUN [RUN]]`: the interactive page."""
    if arguments.runs:
        keep_programs()
    import_modules(arguments.imports)
    from attnjax.explore import build

    texts, runs = [os.fsencode(text) for text in arguments.text], [find_run(run) for run in arguments.runs]
    path = build(runs, arguments.out, texts, arguments.layer, arguments.head)
    print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    return 0
