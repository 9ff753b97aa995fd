"""Workers as an array of SLURM jobs: a script of the shell that people can read, submitted with `sbatch`.

Every job of the array is one worker. It gets SIGUSR1 before its time ends or it is preempted, saves, gives its runs back and
exits with 75; the script then puts the job back into the queue, and the next start goes on with whatever run is free. A worker
that is killed, or whose node is lost, is started again too: by the script, or by SLURM (`--requeue`). A job that is cancelled
gets SIGTERM, saves, and is not started again. A preempted one gets SIGTERM as well where the cluster says so: it goes back into
the queue by SLURM, or by the script where SLURM lets it run on for a while.

The script is kept beside the logs, so that it can be read, changed and submitted again by hand, and so are the numbers of
the arrays, so that the next submission can say which workers there are already.
"""

import contextlib
import os
import pathlib
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence

from attnjax.config.names import safe_name
from attnjax.records import files, jsonl
from attnjax.records.values import text
from attnjax.sweep.profiles import Profile
from attnjax.sweep.store import LOGS, Store
from attnjax.sweep.workers import import_path

SCRIPT, SUBMITTED = "slurm.sh", "slurm.jsonl"
LATEST = 20
"""Submissions that are asked about."""
SECONDS = 60
"""That a command of SLURM may take."""
JOB = re.compile(r"(\d+)(;[\w.-]+)?")
UNSAFE = "$ ` ; & | < > ( ) #"
"""What a shell or sbatch does not take for a part of a name: the script says in plain text where it lies."""
FORGOTTEN = "Invalid job id"
"""What squeue says of a job that ended a while ago."""

TEMPLATE = """\
#!/bin/bash
# {workers} workers of the sweep in {root}.
# Submit it again with: sbatch {script}
{options}

# SLURM warns this script, and the script its worker. The traps come first: a signal may come while the lines below are run.
worker= warned= ended=
trap 'warned=1; [[ -z $worker ]] || kill -USR1 "$worker" 2>/dev/null' USR1 USR2
trap 'warned=1 ended=1; [[ -z $worker ]] || kill -USR1 "$worker" 2>/dev/null' TERM

export PYTHONPATH={path}
cd -- {folder} || exit 1
{setup}

code=75
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
# 75: runs are left. Above 128: a signal ended the worker, 143: SIGTERM, which comes to both.
if ((code == 75 || code > 128)) && ((${{SLURM_RESTART_COUNT:-0}} < {restarts})); then
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


class Slurm:
    """See `executors.Executor`."""

    def __init__(self, store: Store, command: Sequence[str], workers: int, profile: Profile):
        self._store, self._command, self._workers, self._profile = store, command, workers, profile

    def submit(self) -> str:
        """Write the script, submit it, and return the number of the array."""
        logs = files.inside(self._store.root, LOGS)
        logs.mkdir(exist_ok=True)
        files.write(logs / SCRIPT, self.script(logs))
        told = _slurm("sbatch", "--parsable", str(logs / SCRIPT)).strip()
        found = JOB.fullmatch(told.splitlines()[-1] if told else "")
        if found is None:
            raise ValueError(f"sbatch did not name a job: {told[:200]!r}")
        with contextlib.suppress(OSError):  # the jobs are submitted, whatever the disk says now
            jsonl.append(logs / SUBMITTED, {"array": found[1], "workers": self._workers})
        return found[1]

    def living(self) -> Mapping[str, int]:
        """How many workers of each array that was submitted for this folder are queued or running.

        Raises ValueError, with the words of squeue, where it cannot say.
        """
        rows = jsonl.read(files.inside(self._store.root, LOGS) / SUBMITTED).tables[-LATEST:]
        arrays = dict.fromkeys(row["array"] for row in rows if JOB.fullmatch(text(row.get("array"))))
        counts = Counter(_queued("%F", *arrays) if arrays else ())
        return {array: counts[array] for array in arrays if counts[array]}

    def poll(self, workers: str) -> Mapping[str, int]:
        """Jobs of the array that have not ended by state, as squeue calls it. Raises ValueError where squeue cannot say."""
        return Counter(_queued("%T", workers))

    def stop(self, workers: str) -> None:
        """Warn the workers, so that they save, and take the jobs away."""
        _slurm("scancel", workers)

    def script(self, logs: pathlib.Path) -> str:
        """The text of the script."""
        profile, root = self._profile, self._store.root
        options = [
            f"--job-name=attnjax-{safe_name(self._store.name, 'the name of a sweep')}",
            f"--array=1-{self._workers}",
            "--requeue",
            "--open-mode=append",
            f"--output={logs}/slurm-%A_%a.txt",
            f"--signal=B:USR1@{profile.warning}",
            *(
                f"--{name}={value}"
                for name in ("partition", "account", "qos", "time")
                if (value := getattr(profile, name))
            ),
            *([f"--mem={profile.memory}"] if profile.memory else []),
            *([f"--gpus-per-task={profile.gpus}", "--ntasks=1"] if profile.gpus else []),
            *([f"--cpus-per-task={profile.cpus}"] if profile.cpus else []),
            *profile.options,
        ]
        if any(character in str(root) for character in " \t\n%\\\"'"):
            raise ValueError(
                f"sbatch cannot name a log in {str(root)!r}: choose a folder without blanks, quotes and percent signs"
            )
        if any(character in str(root) for character in UNSAFE.split()):
            raise ValueError(
                f"sbatch or a shell would not take {str(root)!r} for one name: choose a folder without any of {UNSAFE}"
            )
        return TEMPLATE.format(
            workers=self._workers,
            root=root,
            script=logs / SCRIPT,
            options="\n".join(f"#SBATCH {one}" for one in options),
            path=shlex.quote(os.pathsep.join(import_path())),
            folder=shlex.quote(os.getcwd()),
            setup="\n".join(profile.setup),
            command=shlex.join(self._command),
            restarts=profile.restarts,
        )


def _queued(form: str, *jobs: str) -> list[str]:
    """A word of squeue for each of these jobs that has not ended."""
    try:
        return _slurm("squeue", "--array", "--noheader", f"--format={form}", "--jobs", ",".join(jobs)).split()
    except ValueError as error:
        if FORGOTTEN in str(error):
            return []
        raise


def _slurm(*command: str) -> str:
    """What a command of SLURM prints. Raises ValueError, with its words, where it is missing or refuses."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise ValueError(
            f"there is no {command[0]} on this machine: run the command where jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise ValueError(f"{command[0]} did not answer within {SECONDS} s; is SLURM's controller up?") from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[:500]
        raise ValueError(f"{command[0]} refused: {words or f'exit status {done.returncode}'}")
    return done.stdout
