"""Training functions that hang, each in its own way, and the processes that run them."""

import ctypes
import os
import pathlib
import subprocess
import sys
import threading
import time

import fake_training

HERE = pathlib.Path(__file__).parent
PATHS = os.pathsep.join([str(HERE), str(HERE.parents[1])])


def announce(directories):
    """Tells whoever waits that training has begun."""
    (directories[0] / "begun").touch()


def asleep(configs, directories, context):
    announce(directories)
    time.sleep(600)


def waiting(configs, directories, context):
    announce(directories)
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def reading(configs, directories, context):
    ends = os.pipe()
    announce(directories)
    os.read(ends[0], 1)


def native(configs, directories, context):
    """A mutex of the C library locked twice: no signal interrupts that, and no Python code runs in this thread."""
    mutex, library = ctypes.create_string_buffer(256), ctypes.CDLL(None)
    library.pthread_mutex_lock(mutex)
    announce(directories)
    library.pthread_mutex_lock(mutex)


def start(root: pathlib.Path, function: str, *options: str) -> subprocess.Popen[str]:
    """`attnjax run` of a small config with one of the above, in a process of its own."""
    config = root / "small.json"
    config.write_text('{"name": "small", "train": {"steps": 4}, "evaluate": {"lengths": [10]}}')
    command = [sys.executable, "-m", "attnjax", "sweep", str(config), "--trainer", f"hanging:{function}"]
    return subprocess.Popen(
        [*command, "--out", str(root / "out"), *options],
        env={**os.environ, "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def begun(root: pathlib.Path) -> bool:
    """Whether training has begun."""
    return any((root / "out").glob("*/attempt-*/begun"))


def until_told(configs, directories, context):
    """Hangs until there is a file `go` in the folder of the run, then trains."""
    while not (directories[0].parent / "go").exists():
        time.sleep(0.01)
    fake_training.train(configs, directories, context)


def held(configs, directories, context):
    """Takes the first step, then hangs until there is a file `go`."""
    context.step(directories[0], 1)
    announce(directories)
    until_told(configs, directories, context)
