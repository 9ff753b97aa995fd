"""Runs of a config at the smallest size, which the commands of experiments measure in tests."""

from attnjax.cli.planning import planned
from attnjax.sweep import prepare, run_here
from attnjax.train import train


def run_tiny(folder, config, length, *overrides, chosen=lambda run: True):
    """Train the first chosen run of a config at one length for two steps."""
    tiny = ("model.layers=1", "model.model=8", "model.heads=2", "model.hidden=8", "train.steps=2", "train.batch=2")
    tiny += ("train.warmup=1", "evaluate.count=4", "evaluate.batch=4", f"task.length_min={length}")
    tiny += (f"task.length_max={length}", f"evaluate.lengths={length}", f"evaluate.bucket_sizes={length}")
    runs = [run for run in planned(config, [*tiny, *overrides]).runs if chosen(run)][:1]
    assert run_here(prepare(folder, "tiny", runs), train).of("done")
