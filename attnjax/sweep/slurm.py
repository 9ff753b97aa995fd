"""Workers as an array of SLURM jobs: a script of the shell that people can read and edit, submitted with `sbatch`.

Every job of the array is one worker. It gets SIGUSR1 before its time ends or it is preempted, saves, gives its runs back and
exits with 130; the script then puts the job back into the queue, and the next start goes on with whatever run is free. So does
a worker that is killed; one whose node is lost is put back by SLURM (`--requeue`). A job that is cancelled gets SIGTERM, saves,
and stays away.
"""

import os
import pathlib
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from attnjax.safety import inside, write
from attnjax.sweep.local import import_path
from attnjax.sweep.store import LOGS, Store

SCRIPT = "slurm.sh"
PLAIN = re.compile(r"[\w./+=:@,-]+")
"""Names of folders that a shell and sbatch read as they are written."""

TEMPLATE = """\
#!/bin/bash
# {workers} workers of the sweep in {root}. Submit it again with: sbatch {script}
{options}

# SLURM warns this script, and the script its worker. The traps come first: a signal may come at any time.
worker= warned= ended=
trap 'warned=1; [[ -z $worker ]] || kill -USR1 "$worker" 2>/dev/null' USR1 USR2
trap 'warned=1 ended=1; [[ -z $worker ]] || kill -USR1 "$worker" 2>/dev/null' TERM

export PYTHONPATH={path}
cd -- {folder} || exit 1
{setup}

code=130
if [[ -z $warned ]]; then
    {command} &
    worker=$!
    [[ -z $warned ]] || kill -USR1 "$worker"
    # A signal interrupts `wait`, which then says nothing about the worker.
    while :; do
        wait "$worker"
        code=$?
        kill -0 "$worker" 2>/dev/null || break
    done
fi

# Among the jobs of an array, SLURM_JOB_ID of one is the number of the whole array.
job=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID}}
job=${{job:-$SLURM_JOB_ID}}
# 130: runs are left after a signal. Above: a signal ended the worker, 143: SIGTERM, which comes to both.
if ((code >= 130)) && ((${{SLURM_RESTART_COUNT:-0}} < 100)); then
    # After SIGTERM a job that was cancelled stays away, and one that SLURM itself puts back into the queue has left already.
    state=RUNNING
    [[ -z $ended && $code != 143 ]] || state=$(squeue --noheader --format="%T %r" --jobs "$job")
    case $state in
        RUNNING* | *TimeLimit)
            scontrol requeue "$job" ||
                echo "job $job could not be put back into the queue; for a new one: sbatch {script}" >&2
            ;;
    esac
fi
exit "$code"
"""


def submit(store: Store, command: Sequence[str], workers: int, options: Mapping[str, str]) -> str:
    """Write the script into the logs of a sweep, submit it, and return the number of the array.

    Args:
      store: the sweep.
      command: a worker.
      workers: how many jobs the array has.
      options: of sbatch, without the dashes, and `setup`: a line of the shell before the worker starts.

    Raises ValueError, with the words of SLURM, where it refuses, and OSError where it is missing.
    """
    path = inside(store.root, LOGS, SCRIPT)
    path.parent.mkdir(exist_ok=True)
    write(path, script(path, store, command, workers, options).encode())
    told = _slurm("sbatch", "--parsable", str(path)).strip().splitlines()
    found = re.fullmatch(r"(\d+)(;[\w.-]+)?", told[-1] if told else "")
    if found is None:
        raise ValueError(f"sbatch did not name a job: {told}")
    return found[1]


def script(path: pathlib.Path, store: Store, command: Sequence[str], workers: int, options: Mapping[str, str]) -> str:
    """Return the text of the script."""
    if not PLAIN.fullmatch(str(path)):
        raise ValueError(f"sbatch or a shell would read {str(path)!r} otherwise: choose a folder with a plain name")
    given = {
        "job-name": f"attnjax-{store.name}",
        "array": f"1-{workers}",
        "open-mode": "append",
        "output": f"{path.parent}/slurm-%A_%a.txt",
        "signal": "B:USR1@120",
        **{name: value for name, value in options.items() if name != "setup"},
    }
    return TEMPLATE.format(
        workers=workers,
        root=store.root,
        script=path,
        options="\n".join(["#SBATCH --requeue", *(f"#SBATCH --{name}={value}" for name, value in given.items())]),
        path=shlex.quote(import_path()),
        folder=shlex.quote(os.getcwd()),
        setup=options.get("setup", ""),
        command=shlex.join(command),
    )


def _slurm(*command: str) -> str:
    """Return what a command of SLURM prints. Raises ValueError, with its words, where it refuses."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[:500]
        raise ValueError(f"{command[0]} refused: {words or f'exit status {done.returncode}'}")
    return done.stdout
