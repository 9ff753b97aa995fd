"""From one config to many runs, each with one result: planning, a folder per run, and workers. Never imports JAX.

A sweep from Python:

    store = prepare(root, "name", plan(config, sweep))
    summary = run_here(store, train)        # or run_workers(store, "module:function", 4)
"""

from attnjax.sweep.attempt import RunContext, Train
from attnjax.sweep.find import find_folder, find_run
from attnjax.sweep.local import run_workers
from attnjax.sweep.outcome import Stop, Summary
from attnjax.sweep.plan import chain, expand, groups, plan, population_key, product, seeds, vary
from attnjax.sweep.store import Entry, Store, load, prepare
from attnjax.sweep.worker import ExecutionConfig, retry, run_here

__all__ = [
    "Entry",
    "ExecutionConfig",
    "RunContext",
    "Stop",
    "Store",
    "Summary",
    "Train",
    "chain",
    "expand",
    "find_folder",
    "find_run",
    "groups",
    "load",
    "plan",
    "population_key",
    "prepare",
    "product",
    "retry",
    "run_here",
    "run_workers",
    "seeds",
    "vary",
]
