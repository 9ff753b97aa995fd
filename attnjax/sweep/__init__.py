"""From one config to many runs, each exactly once: planning, a folder per run, and executors. Never imports JAX.

A sweep from Python:

    store = prepare(root, "name", plan(config, sweep))
    summary = run_here(store, train)        # or run_workers(store, "module:function", 4)
"""

from attnjax.records.remote import mirrored
from attnjax.sweep.execute import ExecutionConfig, retry, run_here
from attnjax.sweep.find import find_run
from attnjax.sweep.plan import chain, expand, groups, plan, population_key, product, seeds, subsample, vary, zipped
from attnjax.sweep.run_context import Event, RunContext, Train
from attnjax.sweep.scan import Found, Run, scan
from attnjax.sweep.store import Entry, Store, load, prepare
from attnjax.sweep.summary import Summary
from attnjax.sweep.workers import run_workers

__all__ = [
    "Entry",
    "Event",
    "ExecutionConfig",
    "Found",
    "Run",
    "RunContext",
    "Store",
    "Summary",
    "Train",
    "chain",
    "expand",
    "find_run",
    "groups",
    "load",
    "mirrored",
    "plan",
    "population_key",
    "prepare",
    "product",
    "retry",
    "run_here",
    "run_workers",
    "scan",
    "seeds",
    "subsample",
    "vary",
    "zipped",
]
