"""A training function of hashes instead of arrays: quick, exact, resumable, and as ill-behaved as its config asks.

Each step hashes the state, so that the last one tells whether every step was done once, in order. Options of the task:
`work` hash rounds a step, `slow_until` 0.3 s more a step until that file exists, `fail_at` raises there.
"""

import ctypes
import hashlib
import json
import os
import pathlib
import signal
import time

ROUNDS = 2000


def expected(config) -> str:
    """The state after all steps, without interruption."""
    state = ""
    for step in range(config.train.steps):
        state = advance(config, state, step, rounds=1)
    return state


def advance(config, state: str, step: int, rounds: int) -> str:
    hashlib.pbkdf2_hmac("sha256", b"work", b"", rounds)  # the time that a step takes
    return hashlib.sha256(f"{state}/{step}/{config.seed}/{config.train.learning_rate}".encode()).hexdigest()


def train(configs, directories, context):
    together(configs, directories, context, load, save)


def sound(configs, directories, context):
    """The same with checkpoints as `attnjax.train` writes them."""
    together(configs, directories, context, restored, saved)


def watched(train, told):
    """The training function, which calls `told(run, step)` after each step."""

    def call(configs, directories, context):
        step = context.step

        def seen(directory, number):
            step(directory, number)
            told(directory.parent.name, number)

        context.step = seen
        train(configs, directories, context)

    return call


def together(configs, directories, context, load, save):
    states = {}
    for directory in directories:
        step, state = load(directory)
        context.truncate_after(directory, step)
        context.log_manifest(directory, parameter_count=7)
        states[directory] = (step, state)
    for config, directory in zip(configs, directories, strict=True):
        one(config, directory, *states[directory], context, save)


def one(config, directory, step, state, context, save):
    options = config.task.options
    while step < config.train.steps:
        if context.stopping():
            save(directory, step, state)
            context.step(directory, step)
            return
        if step == options.get("fail_at"):
            raise RuntimeError(f"broken at step {step}")
        if "slow_until" in options and not pathlib.Path(options["slow_until"]).exists():
            time.sleep(0.3)
        state = advance(config, state, step, options.get("work", ROUNDS))
        step += 1
        context.metrics(directory, {"step": step, "loss": 1.0 / step})
        if step % config.train.checkpoint_every == 0 or step == config.train.steps:
            save(directory, step, state)
        context.step(directory, step)
    record = {"step": step, "metric": "exact_match", "value": int(state[:4], 16) / 65536, "count": 1, "split": "test"}
    context.results(directory, *({**record, "length": length} for length in config.evaluate.lengths))
    context.step(directory, step)


def save(directory, step, state):
    folder = directory / "checkpoints"
    folder.mkdir(exist_ok=True)
    temporary = folder / ".new.tmp"
    temporary.write_text(json.dumps([step, state]))
    temporary.rename(folder / str(step))


def load(directory):
    folder = directory / "checkpoints"
    steps = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.is_dir() else []
    return json.loads((folder / str(steps[-1])).read_text()) if steps else (0, "")


def saved(directory, step, state):
    import numpy as np

    from attnjax.train import checkpoint

    checkpoint.save(directory / "checkpoints", step, {"state": np.frombuffer(state.encode(), np.uint8)})


def restored(directory):
    import numpy as np

    from attnjax.train import checkpoint

    found = checkpoint.restore(directory / "checkpoints", {"state": np.zeros(64, np.uint8)})
    return (found.step, found.state["state"].tobytes().decode()) if found else (0, "")


def never(configs, directories, context):
    raise AssertionError("nothing was left to do")


def dies(configs, directories, context):
    """Where `suicide` is asked for, each process gets to another step than the one before, and dies without a checkpoint."""
    if configs[0].task.options.get("suicide"):
        context.step(directories[0], int(directories[0].name.split("-")[1]))
        os.kill(os.getpid(), signal.SIGKILL)
    train(configs, directories, context)


def native(configs, directories, context):
    """Hangs in a mutex of the C library locked twice: no signal interrupts that, and no Python code runs in this thread."""
    mutex, library = ctypes.create_string_buffer(256), ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    (directories[0] / "begun").touch()
    library.pthread_mutex_lock(mutex)


def held(configs, directories, context):
    """Takes the first step, then hangs until there is a file `go` in the folder of the run."""
    context.step(directories[0], 1)
    (directories[0] / "begun").touch()
    while not (directories[0].parent / "go").exists():
        time.sleep(0.01)
    train(configs, directories, context)
