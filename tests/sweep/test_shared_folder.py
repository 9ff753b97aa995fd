"""A folder on a file system that is full or read-only, and one shared with hosts that are gone and with other engines."""

import errno
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import threading

import fake_training
import hanging
import pytest
from checks import check_complete, until

from attnjax.cli import main
from attnjax.records import files, status
from attnjax.sweep import ExecutionConfig, load, run_here, scan, seeds
from attnjax.sweep.lease import holder

TRAINER = "fake_training:train"
REFUSALS = (errno.EROFS, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.ESTALE)


def config(tmp_path: pathlib.Path, **options: str) -> str:
    path = tmp_path / "small.json"
    table = {"name": "small", "train": {"steps": 10, "checkpoint_every": 2}, "evaluate": {"lengths": [10, 20]}}
    path.write_text(json.dumps(table | {"task": {"options": options}}))
    return str(path)


@pytest.fixture
def planned(tmp_path, capsys):
    """A sweep of two runs that has not begun, and its command."""
    command = ["sweep", config(tmp_path), "--seeds", "2", "--out", str(tmp_path / "out"), "--trainer", TRAINER]
    assert main([*command, "--plan"]) == 0
    capsys.readouterr()
    return load(tmp_path / "out"), command


@pytest.mark.parametrize("number", REFUSALS)
def test_a_folder_that_takes_no_file_is_a_sentence_and_nothing_changes(planned, monkeypatch, capsys, number):
    """As a read-only mount, a folder of somebody else, a full disk or quota, or a server that is gone."""
    store, command = planned
    real = os.open

    def refusing(path, flags, *rest, **named):
        if flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
            raise OSError(number, os.strerror(number), path)
        return real(path, flags, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refusing)
        assert main(["work", str(store.root), "--trainer", TRAINER]) == 1
        told = capsys.readouterr().out
        assert (
            f"unwritten {store.runs[0].run} and 1 more: its lease could not be written: {os.strerror(number)}" in told
        )
        assert main(command) == 2
        told = capsys.readouterr().err
        assert told == f"attnjax: error: results cannot be written to {store.root}: {os.strerror(number)}\n"
        assert main(["list", "runs", str(store.root)]) == 0
    assert {one.status.state for one in scan(store.root).runs} == {"pending"}
    assert main(command) == 0
    check_complete(store)


def test_logs_that_cannot_be_written_are_a_sentence_and_no_run_is_claimed(planned, monkeypatch, capsys):
    store, command = planned
    real = pathlib.Path.open

    def refusing(path, *rest, **named):
        if path.name.startswith("worker-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr(pathlib.Path, "open", refusing)
    assert main([*command, "--workers", "2"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"attnjax: error: {store.root}/logs/worker-")
    assert told.endswith(".txt: No space left on device\n")
    assert [holder(store.directory(entry.run)) for entry in store.runs] == [None, None]


def test_a_script_of_slurm_that_cannot_be_written_is_a_sentence_and_is_not_submitted(planned, monkeypatch, capsys):
    store, command = planned
    real = files.write

    def refusing(path, *rest, **named):
        if path.name == "slurm.sh":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, *rest, **named)

    monkeypatch.setattr(files, "write", refusing)
    monkeypatch.setattr("attnjax.sweep.slurm._slurm", lambda *_: pytest.fail("nothing is submitted"))
    assert main([*command, "--executor", "slurm", "--workers", "2"]) == 2
    assert capsys.readouterr().err == f"attnjax: error: {store.root}/logs/slurm.sh: No space left on device\n"


def mounted(script: str, folder: pathlib.Path) -> list[str]:
    """What a script of the shell prints that may mount things, which nobody else sees; skips where that is not allowed."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace")
    attnjax = f"{sys.executable} -m attnjax"
    environment = {**os.environ, "PYTHONPATH": hanging.PATHS, "D": str(folder), "ATTNJAX": attnjax}
    environment["WORK"] = f"{attnjax} work {folder} --trainer {TRAINER} --population 1"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-euc", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).splitlines()


@pytest.mark.slow
def test_a_read_only_mount(planned):
    store, command = planned
    told = mounted(
        f"""mount --bind "$D" "$D"; mount -o remount,bind,ro "$D"
        $WORK || echo "code $?"; $ATTNJAX {" ".join(command)} || echo "code $?"
        $ATTNJAX report "$D" || echo "code $?"; $ATTNJAX list runs "$D" && echo "code $?" """,
        store.root,
    )
    assert [line for line in told if line.startswith("code")] == ["code 1", "code 2", "code 2", "code 0"]
    assert sum("Read-only file system" in line for line in told) >= 2
    assert not any("Traceback" in line for line in told)
    assert {one.status.state for one in scan(store.root).runs} == {"pending"}


@pytest.mark.slow
def test_two_machines_that_see_one_folder_under_two_paths_train_each_run_once(tmp_path):
    """Two directories of one bind mount, two workers of each. Runs are slow until all four hold one."""
    folder, elsewhere, all_here = tmp_path / "out", tmp_path / "elsewhere", tmp_path / "all_here"
    sweep = ["sweep", config(tmp_path, slow_until=str(all_here)), "--seeds", "12", "--out", str(folder), "--plan"]
    sweep += ["--trainer", TRAINER]
    assert main(sweep) == 0
    elsewhere.mkdir()
    told = mounted(
        f"""mount --bind "$D" {elsewhere}
        for folder in "$D" {elsewhere} "$D" {elsewhere}; do
            $ATTNJAX work "$folder" --trainer {TRAINER} --population 1 & echo "worker $!"
        done
        holders() {{ cat "$D"/*/lease-* 2>/dev/null | grep -o '"pid": [0-9]*' | sort -u | wc -l; }}
        until [ "$(holders)" = 4 ]; do sleep 0.2; done
        touch {all_here}; wait; $ATTNJAX list runs {elsewhere}""",
        folder,
    )
    assert told[-1] == "12 done"
    store = load(folder)
    check_complete(store)
    leases = [list(store.directory(entry.run).glob("lease-*")) for entry in store.runs]
    assert [len(of_run) for of_run in leases] == [1] * 12
    holders = {json.loads(one.read_text().splitlines()[0])["pid"] for [one] in leases}
    assert holders == {int(line.split()[1]) for line in told if line.startswith("worker ")}


@pytest.mark.slow
def test_a_full_file_system_loses_nothing_and_goes_on_when_it_has_room(tmp_path):
    folder = tmp_path / "mounted"
    folder.mkdir()
    sweep = f"$ATTNJAX sweep {config(tmp_path)} --seeds 2 --out $D/out --trainer {TRAINER} --plan"
    told = mounted(
        f"""mount -t tmpfs -o size=2m none "$D"; {sweep}
        WORK="$ATTNJAX work $D/out --trainer {TRAINER} --population 1"
        dd if=/dev/zero of="$D/filler" bs=4096 2>/dev/null || true
        $WORK || echo "code $?"
        rm "$D/filler"; $WORK && echo "code $?"; $ATTNJAX list runs "$D/out" """,
        folder,
    )
    assert [line for line in told if line.startswith("code")] == ["code 1", "code 0"]
    assert any("could not be written: No space left on device" in line for line in told)
    assert told[-1] == "2 done"


def lease_of(host: str, run: pathlib.Path, beat: int = 0) -> None:
    """The lease of a process of another host, and the status that it left."""
    table = {"schema": 1, "host": host, "machine": "another", "pid": os.getpid(), "started": "1", "step": 4}
    mode = "r+" if beat else "w"  # in place, as `Lease` does: readers never find it empty
    with (run / "lease-000001").open(mode) as file:
        file.write(json.dumps(table) + f"\nbeat {beat:012d}\n")
    if not beat:
        status.write(run, status.Status("running", 4))


def test_the_run_of_a_host_that_is_gone_is_taken_over_after_patience(make):
    store = make(seeds(2))
    lease_of("gone", store.directory(store.runs[0].run))
    summary = run_here(store, fake_training.train, ExecutionConfig(population=1, patience=0.3))
    assert str(summary) == "2 runs: 2 done"
    check_complete(store)
    assert scan(store.root).runs[0].manifest()["attempt"] == 2
    assert holder(store.directory(store.runs[0].run)).host != "gone"


def test_the_run_of_a_host_that_lives_is_left_to_it(make):
    store, ended = make(seeds(2)), threading.Event()
    run = store.directory(store.runs[0].run)
    lease_of("far", run)

    def live():
        beat = 0
        while not ended.wait(0.05):
            beat += 1
            lease_of("far", run, beat)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        summary = run_here(store, fake_training.train, ExecutionConfig(population=1, patience=1.0))
    finally:
        ended.set()
        thread.join()
    assert str(summary) == "2 runs: 1 running, 1 done"
    assert {run: str(owner) for run, owner in summary.others.items()} == {run.name: f"process {os.getpid()} on far"}
    assert status.read(run) == status.Status("running", 4)


@pytest.mark.slow
def test_a_script_of_slurm_by_hand_and_a_local_sweep_share_one_folder(tmp_path, monkeypatch, capsys):
    """The script is started without SLURM while another process trains; other runs are refused, or added on request."""
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\necho 17\n")
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", hanging.PATHS)
    root = tmp_path / "out"
    command = ["sweep", config(tmp_path), "--out", str(root), "--seeds", "4", "--population", "1"]
    assert main([*command, "--executor", "slurm", "--trainer", "hanging:held", "--workers", "1"]) == 0
    worker = subprocess.Popen(["bash", str(root / "logs" / "slurm.sh")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        until(lambda: hanging.begun(tmp_path))
        capsys.readouterr()
        assert main([*command, "--trainer", TRAINER]) == 3
        assert "works on it, at step 1" in capsys.readouterr().out
        assert main([*command[:-3], "6", "--population", "1", "--trainer", TRAINER]) == 2
        assert "2 of the 6 planned runs are not among them" in capsys.readouterr().err
        for run in load(root).runs:
            (root / run.run / "go").touch()
        worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    assert worker.returncode == 0
    check_complete(load(root))
    assert main([*command[:-3], "6", "--population", "1", "--trainer", TRAINER, "--extend"]) == 0
    assert len(load(root).runs) == 6
    check_complete(load(root))
