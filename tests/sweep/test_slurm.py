"""SLURM workers without SLURM: the script, what it does with the end of its worker, and errors in sentences."""

import os
import pathlib
import signal
import stat
import subprocess
import time

import pytest
from checks import until

from attnjax.cli import main
from attnjax.sweep import ExecutionConfig, seeds, slurm
from attnjax.sweep.worker import TRAINER, worker_words


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Makes programs that the commands of SLURM are replaced by; nothing else of SLURM is on the path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name, text):
        path = folder / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return make


def script(store, *command, **options):
    return slurm.script(store.root / "logs" / "slurm.sh", store, command, 3, options)


def asked(name):
    """What the stand-in of a program was asked for, in one line; "" where it was not called."""
    path = pathlib.Path(os.environ["PATH"].split(":")[0]) / f"{name}.asked"
    return path.read_text().strip() if path.exists() else ""


def test_a_worker_gets_the_options_of_the_sweep(tmp_path):
    execution = ExecutionConfig(
        population=4, patience=30.0, attempts=2, wait=True, imports=("mine:Task",), mesh="data=2"
    )
    assert worker_words(tmp_path, "a:train", execution) == [
        *("work", str(tmp_path), "--trainer", "a:train", "--population", "4", "--patience", "30.0", "--attempts", "2"),
        *("--mesh", "data=2", "--wait", "--import", "mine:Task"),
    ]
    assert worker_words(tmp_path, TRAINER, ExecutionConfig()) == ["work", str(tmp_path)]


def test_the_script_has_the_options_of_sbatch(make, programs):
    programs("sbatch", 'echo "$@" >"$0.asked"; echo "17;there"')
    store = make(seeds(1))
    options = {"partition": "gpu", "time": "04:00:00", "signal": "B:USR1@60", "setup": "module load cuda"}
    assert slurm.submit(store, ["python", "x y"], 3, options) == "17"
    path = store.root / "logs" / "slurm.sh"
    lines = path.read_text().splitlines()
    given = [line.removeprefix("#SBATCH --") for line in lines if line.startswith("#SBATCH")]
    assert {"requeue", "array=1-3", "job-name=attnjax-small", "partition=gpu", "time=04:00:00", "signal=B:USR1@60"} <= {
        *given
    }
    assert lines.index("module load cuda") < lines.index("    python 'x y' &")
    subprocess.run(["bash", "-n", path], check=True)
    assert asked("sbatch") == f"--parsable {path}"


@pytest.mark.parametrize(
    ("end", "restarts", "requeued"),
    [
        ("exit 130", 0, True),
        ("kill -KILL $$", 0, True),
        ("kill -TERM $$", 0, False),  # before the script heard of it: squeue says that it was cancelled
        ("exit 2", 0, False),
        ("exit 130", 100, False),
    ],
)
def test_a_job_goes_back_into_the_queue_when_its_worker_was_interrupted_or_killed(
    make, programs, end, restarts, requeued
):
    programs("scontrol", 'echo "$@" >"$0.asked"')
    programs("squeue", "echo COMPLETING None")
    environment = {**os.environ, "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": str(restarts)}
    subprocess.run(["bash", "-c", script(make(seeds(1)), "bash", "-c", end)], env=environment, check=False, timeout=60)
    assert asked("scontrol") == "requeue 17" * requeued


@pytest.mark.parametrize(
    ("number", "state", "requeued"),
    [
        (signal.SIGUSR1, "", True),
        (signal.SIGTERM, "COMPLETING None", False),  # cancelled, or requeued by SLURM, which needs no help
        (signal.SIGTERM, "RUNNING None", True),  # will be preempted after its grace
    ],
)
def test_a_warning_reaches_the_worker_and_a_cancelled_job_stays_away(make, programs, tmp_path, number, state, requeued):
    programs("scontrol", 'echo "$@" >>"$0.asked"')
    programs("squeue", f'echo "{state}"')
    worker = f"trap 'touch {tmp_path}/saved; exit 130' USR1; touch {tmp_path}/begun; while :; do sleep 0.1; done"
    array = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    process = subprocess.Popen(
        ["bash", "-c", script(make(seeds(1)), "bash", "-c", worker)], env={**os.environ, **array}
    )
    until((tmp_path / "begun").exists)
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(60) == 130
    assert (tmp_path / "saved").exists()
    assert asked("scontrol") == "requeue 17_3" * requeued  # with 17 the whole array would begin again


def test_a_signal_during_setup_starts_no_worker(make, programs, tmp_path):
    programs("scontrol", 'echo "$@" >>"$0.asked"')
    text = script(make(seeds(1)), "touch", str(tmp_path / "worked"), setup=f"touch {tmp_path}/begun; sleep 0.3")
    process = subprocess.Popen(["bash", "-c", text], env={**os.environ, "SLURM_JOB_ID": "17"})
    until((tmp_path / "begun").exists)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(60) == 130
    assert ((tmp_path / "worked").exists(), asked("scontrol")) == (False, "requeue 17")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("", "No such file.*sbatch"),
        ('echo "sbatch: error: Invalid account" >&2; exit 1', "^sbatch refused: sbatch: error: Invalid account$"),
        ("echo Submitted", "did not name a job"),
    ],
)
def test_what_slurm_cannot_or_will_not_do_is_one_sentence(make, programs, monkeypatch, answer, told):
    monkeypatch.setenv("PATH", os.environ["PATH"].split(":")[0])
    if answer:
        programs("sbatch", answer)
    with pytest.raises((ValueError, FileNotFoundError), match=told):
        slurm.submit(make(seeds(1)), ["true"], 1, {})


@pytest.mark.parametrize("name", ["50% done", "a$(touch run)"])
def test_a_folder_whose_name_sbatch_or_a_shell_would_read_otherwise_is_refused(make, tmp_path, name):
    with pytest.raises(ValueError, match="choose a folder with a plain name"):
        script(make(seeds(1), root=tmp_path / name), "true")


def test_a_cluster_option_is_of_one_line(capsys):
    with pytest.raises(SystemExit):
        main(["run", "theta", "--executor", "slurm", "--cluster", "time=1\n#SBATCH --x"])
    assert "must be KEY=VALUE" in capsys.readouterr().err
