"""SLURM workers without SLURM: the script, what it does with the end of its worker, profiles, and errors in sentences."""

import os
import pathlib
import re
import signal
import stat
import subprocess
import time

import pytest
from checks import until

from attnjax.cli import main
from attnjax.records import jsonl
from attnjax.sweep import seeds
from attnjax.sweep.execute import ExecutionConfig
from attnjax.sweep.executors import attend, worker_command
from attnjax.sweep.profiles import Profile, profile
from attnjax.sweep.slurm import Slurm
from attnjax.sweep.stop import Stop


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


def slurm(store, command=("true",), **fields):
    return Slurm(store, command, 3, Profile(**fields))


def test_a_worker_gets_the_options_of_the_sweep(tmp_path):
    execution = ExecutionConfig(True, 4, 30.0, 2, wait=True, stall=90.0, imports=("mine:Task",), mesh="data=2")
    command = worker_command(tmp_path, "a:train", execution)
    assert command[1:] == [
        *("-m", "attnjax", "work", str(tmp_path), "--trainer", "a:train", "--patience", "30", "--attempts", "2"),
        *("--stall", "90", "--population", "4", "--mesh", "data=2", "--wait", "--fail-fast", "--import", "mine:Task"),
    ]


def test_the_script_says_what_the_profile_says(make, programs):
    programs("sbatch", 'echo "$@" >"$0.asked"; echo "17;there"')
    store = make(seeds(1))
    fields = {"partition": "gpu", "time": "04:00:00", "gpus": 1, "cpus": 8, "memory": "32G", "warning": 60}
    submitted = slurm(store, ["python", "x y"], **fields, setup=("module load cuda",), options=("--nice=5",)).submit()
    assert submitted == "17"
    script = store.root / "logs" / "slurm.sh"
    lines = script.read_text().splitlines()
    assert [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")] == [
        "--job-name=attnjax-small",
        "--array=1-3",
        "--requeue",
        "--open-mode=append",
        f"--output={store.root}/logs/slurm-%A_%a.txt",
        "--signal=B:USR1@60",
        *(
            "--partition=gpu",
            "--time=04:00:00",
            "--mem=32G",
            "--gpus-per-task=1",
            "--ntasks=1",
            "--cpus-per-task=8",
            "--nice=5",
        ),
    ]
    order = [lines.index(line) for line in ("module load cuda", "    python 'x y' &", "    worker=$!")]
    assert order == sorted(order)
    assert [number for number, line in enumerate(lines) if line.startswith("trap ")][-1] < order[0]
    subprocess.run(["bash", "-n", script], check=True)
    assert asked("sbatch") == f"--parsable {script}"


@pytest.mark.parametrize(
    ("end", "restarts", "requeued"),
    [
        ("exit 75", 0, True),
        ("kill -KILL $$", 0, True),
        ("exit 0", 0, False),
        ("exit 2", 0, False),
        ("exit 75", 100, False),
    ],
)
def test_a_job_goes_back_into_the_queue_when_its_worker_asks_for_it_or_was_killed(
    make, programs, end, restarts, requeued
):
    programs("scontrol", 'echo "$@" >"$0.asked"')
    store = make(seeds(1))
    script = slurm(store, ["bash", "-c", end]).script(store.root / "logs")
    environment = {**os.environ, "SLURM_JOB_ID": "17", "SLURM_RESTART_COUNT": str(restarts)}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, check=False, timeout=60)
    assert asked("scontrol") == "requeue 17" * requeued
    assert done.returncode == (137 if "KILL" in end else int(end.split()[1]))


def asked(name):
    """What the stand-in of a program was asked for, in one line; "" where it was not called."""
    path = pathlib.Path(os.environ["PATH"].split(":")[0]) / f"{name}.asked"
    return path.read_text().strip() if path.exists() else ""


ENDS = [
    (signal.SIGUSR1, "", True),
    (signal.SIGUSR2, "", True),
    (signal.SIGTERM, "COMPLETING None", False),  # cancelled, or requeued by SLURM, which needs no help
    (signal.SIGTERM, "PENDING BeginTime", False),
    (signal.SIGTERM, "", False),
    (signal.SIGTERM, "RUNNING None", True),  # will be preempted after its grace, or somebody sent the signal alone
    (signal.SIGTERM, "COMPLETING TimeLimit", True),
]
"""A signal, what squeue says of the job afterwards, and whether the script puts it back into the queue."""


@pytest.mark.parametrize(("number", "state", "requeued"), ENDS)
def test_a_warning_reaches_the_worker_the_script_waits_for_it_and_a_cancelled_job_stays_away(
    make, programs, tmp_path, number, state, requeued
):
    programs("scontrol", 'echo "$@" >>"$0.asked"')
    programs("squeue", f'echo "$@" >>"$0.asked"; echo "{state}"')
    store = make(seeds(1))
    worker = (
        f"trap 'sleep 0.3; touch {tmp_path}/saved; exit 75' USR1; touch {tmp_path}/begun; while :; do sleep 0.1; done"
    )
    script = slurm(store, ["bash", "-c", worker]).script(store.root / "logs")
    array = {"SLURM_JOB_ID": "17", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}
    process = subprocess.Popen(["bash", "-c", script], env={**os.environ, **array})
    until((tmp_path / "begun").exists)
    time.sleep(0.2)
    process.send_signal(number)
    assert process.wait(60) == 75
    assert (tmp_path / "saved").exists()
    assert asked("scontrol") == "requeue 17_3" * requeued  # with 17 the whole array would begin again
    assert asked("squeue") == "--noheader --format=%T %r --jobs 17_3" * (number == signal.SIGTERM)


@pytest.mark.parametrize(("number", "requeued"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_a_signal_during_the_lines_of_setup_starts_no_worker(make, programs, tmp_path, number, requeued):
    programs("scontrol", 'echo "$@" >>"$0.asked"')
    programs("squeue", "echo COMPLETING None")
    store, setup = make(seeds(1)), (f"touch {tmp_path}/begun", "sleep 1", f"touch {tmp_path}/loaded")
    script = slurm(store, ["touch", str(tmp_path / "worked")], setup=setup).script(store.root / "logs")
    process = subprocess.Popen(["bash", "-c", script], env={**os.environ, "SLURM_JOB_ID": "17"})
    until((tmp_path / "begun").exists)
    process.send_signal(number)
    assert process.wait(60) == 75
    assert [(tmp_path / name).exists() for name in ("loaded", "worked")] == [True, False]
    assert asked("scontrol") == "requeue 17" * requeued


def test_a_worker_that_sigterm_ended_before_the_script_heard_of_it_is_asked_about(make, programs):
    programs("scontrol", 'echo "$@" >>"$0.asked"')
    programs("squeue", "echo COMPLETING None")
    store = make(seeds(1))
    script = slurm(store, ["bash", "-c", "kill -TERM $$"]).script(store.root / "logs")
    done = subprocess.run(["bash", "-c", script], env={**os.environ, "SLURM_JOB_ID": "17"}, check=False, timeout=60)
    assert (done.returncode, asked("scontrol")) == (143, "")


def test_a_requeue_that_is_refused_is_a_sentence_in_the_log(make, programs):
    programs("scontrol", "echo 'slurm_requeue error: Access denied' >&2; exit 1")
    store = make(seeds(1))
    script = slurm(store, ["bash", "-c", "exit 75"]).script(store.root / "logs")
    environment = {**os.environ, "SLURM_JOB_ID": "17"}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert done.stderr.splitlines() == [
        "slurm_requeue error: Access denied",
        f"job 17 could not be put back into the queue; for a new one: sbatch {store.root}/logs/slurm.sh",
    ]


def test_what_slurm_cannot_or_will_not_do_is_one_sentence(make, programs, monkeypatch):
    store = make(seeds(1))
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", path.split(":")[0])
    with pytest.raises(
        ValueError, match=r"^there is no sbatch on this machine: run the command where jobs are submitted$"
    ):
        slurm(store).submit()
    monkeypatch.setenv("PATH", path)
    programs("sbatch", 'echo "sbatch: error: Batch job submission failed: Invalid account" >&2; exit 1')
    with pytest.raises(
        ValueError, match=r"^sbatch refused: sbatch: error: Batch job submission failed: Invalid account$"
    ):
        slurm(store).submit()
    programs("sbatch", "echo Submitted")
    with pytest.raises(ValueError, match="sbatch did not name a job: 'Submitted'"):
        slurm(store).submit()
    programs("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm(store).poll("17") == {}
    programs("squeue", "printf 'RUNNING\\nPENDING\\nRUNNING\\n'")
    assert slurm(store).poll("17") == {"RUNNING": 2, "PENDING": 1}
    programs("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    refused = r"^squeue refused: slurm_load_jobs error: Unable to contact slurm controller$"
    with pytest.raises(ValueError, match=refused):  # workers may still run: it must not look as if all had ended
        slurm(store).poll("17")


def test_a_second_submission_says_which_workers_are_queued_or_running_already(tmp_path, programs, capsys):
    config = tmp_path / "small.json"
    config.write_text('{"name": "small", "train": {"steps": 10}, "evaluate": {"lengths": [10]}}')
    command = ["sweep", str(config), "--out", str(tmp_path / "out"), "--trainer", "fake_training:train"]
    command += ["--executor", "slurm", "--workers"]
    programs("sbatch", "echo 17")
    programs("squeue", 'echo "$@" >>"$0.asked"; printf "17\\n17\\n"')
    assert main([*command, "2"]) == 0
    assert "note" not in capsys.readouterr().out
    assert asked("squeue") == ""
    programs("sbatch", "echo 18")
    assert main([*command, "3"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == "note: 2 workers of job 17 are still queued or running; 3 more are submitted"
    jsonl.append(tmp_path / "out" / "logs" / "slurm.jsonl", {"array": "; rm -rf"}, {"array": 3}, {"workers": 1})
    programs("squeue", 'echo "$@" >>"$0.asked"; exit 0')
    assert main([*command, "1"]) == 0
    assert "note" not in capsys.readouterr().out
    assert asked("squeue").splitlines()[1:] == ["--array --noheader --format=%F --jobs 17,18"]
    programs("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert main([*command, "1"]) == 0
    told = capsys.readouterr().out.splitlines()
    why = "squeue refused: Unable to contact slurm controller"
    assert told[0] == f"note: whether workers are still queued or running is not known: {why}"
    tables = jsonl.read(tmp_path / "out" / "logs" / "slurm.jsonl").tables
    assert [(row.get("array"), row.get("workers")) for row in tables[:2]] == [("17", 2), ("18", 3)]


def test_a_driver_can_stay_with_the_jobs_and_stop_them(make, programs, monkeypatch):
    """Nothing does so yet. The loop of the driver on Ray serves SLURM as well, which is what the protocol is for."""
    monkeypatch.setattr("attnjax.sweep.executors.LOOK", 0.01)
    programs("sbatch", "echo 17")
    programs("squeue", '[ -e "$0.ended" ] || echo RUNNING')
    programs("scancel", 'echo "$@" >"$0.asked"; touch "${0%scancel}squeue.ended"')
    stop = Stop()
    stop.set("SIGTERM")
    attend(slurm(make(seeds(1))), make(seeds(1)), lambda event: None, stop)
    assert asked("scancel") == "17"


def test_a_folder_that_sbatch_cannot_write_to(make, tmp_path):
    store = make(seeds(1), root=tmp_path / "50% done")
    with pytest.raises(ValueError, match="choose a folder without blanks, quotes and percent signs"):
        slurm(store).script(store.root / "logs")


@pytest.mark.parametrize(
    "name", ["a$(touch${IFS}run)", "a`b`", "a;b", "a&b", "a|b", "a<b", "a>b", "a(b", "a)b", "a$b", "a#b"]
)
def test_a_folder_whose_name_sbatch_or_a_shell_would_read_otherwise_is_refused(make, tmp_path, name):
    store = make(seeds(1), root=tmp_path / name)
    told = f"sbatch or a shell would not take {str(store.root)!r} for one name: "
    told += "choose a folder without any of $ ` ; & | < > ( ) #"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}$"):
        slurm(store).script(store.root / "logs")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[slurm", "is no TOML file"),
        ("[ray]", r"has no table \[slurm\]"),
        ("[slurm]\npartitions = 'a'", "unknown field 'partitions'; choose from partition, account"),
        ("[slurm]\ngpus = 'two'", "gpus must be a number of at least 0, got 'two'"),
        ("[slurm]\ngpus = true", "gpus must be a number of at least 0, got True"),
        ("[slurm]\ntime = '1 day'", "time must be one word, got '1 day'"),
        ('[slurm]\npartition = "a\\n#SBATCH --x"', "partition must be one word"),
        ("[slurm]\nsetup = 'module load'", "setup must be a list of lines of text"),
        ('[slurm]\nsetup = ["a\\nb"]', "setup must be a list of lines of text"),
        ("[slurm]\noptions = ['gpu']", "options must begin with --"),
    ],
)
def test_profiles_that_are_none(tmp_path, text, words):
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        profile(path, "slurm")


def test_a_profile_of_every_field(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('[slurm]\npartition = "gpu"\ngpus = 2\nwarning = 30\nsetup = ["module load a"]\n')
    assert profile(path, "slurm") == Profile(partition="gpu", gpus=2, warning=30, setup=("module load a",))
    assert profile(None, "slurm") == Profile()
