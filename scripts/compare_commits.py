"""Time attention of two checkouts of attnjax beside each other, in turns, on this machine.

    git worktree add ../before COMMIT
    python scripts/compare_commits.py ../before . --lengths 64 128 512 2048

For every encoding that both have: causal attention of B = 4 examples (1 from T = 2,048 on), N = 8 heads, H = 64 channels,
float32, forward and with the gradients of q, k, v and parameters. Each checkout runs in a process of its own; they take turns,
so that both see the same machine, and the best time of each counts. Prints a table of ratios, after over before.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable

N, H = 8, 64
NAMES = ["nope", "rope", "xpos", "pope", "alibi", "t5", "kerple", "sandwich", "fire", "transformer_xl", "cope"]
CALLS = {64: 20, 128: 10, 512: 3}
"""Calls in one turn, by length."""


def program(name: str, length: int, gradient: bool) -> Callable[[], None]:
    """A compiled call, which has run twice."""
    import jax

    import attnjax as aj

    batch = 4 if length < 2048 else 1
    arrays = tuple(jax.random.normal(jax.random.key(i), (batch, length, N, H)) for i in range(3))
    encoding = aj.encoding(name)
    params = encoding.init(jax.random.key(3), aj.Sizes(N * H, N, N, H))
    params = params if jax.tree.leaves(params) else None
    attend = lambda q, k, v, params: aj.attend(q, k, v, encoding=encoding, params=params, mask=aj.Mask(causal=True))
    wanted = (0, 1, 2) if params is None else (0, 1, 2, 3)
    run = jax.jit(jax.grad(lambda *args: (attend(*args) ** 2).sum(), argnums=wanted) if gradient else attend)
    call = lambda: jax.block_until_ready(run(*arrays, params))
    call(), call()
    return call


def work() -> None:
    """Answer each line [name, length, gradient] with the best time of a call, in seconds."""
    key, call = None, None
    for line in sys.stdin:
        asked = tuple(json.loads(line))
        if asked != key:
            key, call = asked, program(*asked)
        times = []
        for _ in range(CALLS.get(asked[1], 1)):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        print(json.dumps(min(times)), flush=True)


def worker(checkout: pathlib.Path) -> subprocess.Popen:
    """A process that imports attnjax from a checkout."""
    environment = os.environ | {"PYTHONPATH": str(checkout.resolve()), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--worker"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=checkout, env=environment, **pipes)


def ask(process: subprocess.Popen, *what: object) -> float:
    """The time that a worker answers."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 512, 2048])
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    workers = [worker(options.before), worker(options.after)]
    print("| encoding |" + "".join(f" T = {length}, forward | with gradients |" for length in options.lengths))
    print("|---|" + "---:|" * 2 * len(options.lengths), flush=True)
    for name in NAMES:
        cells = []
        for what in ((name, length, gradient) for length in options.lengths for gradient in (False, True)):
            times = [[], []]
            for turn in range(options.rounds):
                for i in (0, 1) if turn % 2 else (1, 0):
                    times[i].append(ask(workers[i], *what))
            cells.append(f" {min(times[1]) / min(times[0]):.2f} |")
        print(f"| {name} |" + "".join(cells), flush=True)
    for process in workers:
        process.terminate()


if __name__ == "__main__":
    work() if "--worker" in sys.argv else main()
