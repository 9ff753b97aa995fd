"""Several processes train one model through the command line: as one process would, whatever is lost on the way."""

import argparse
import json
import shutil
import signal
import socket
import subprocess
import sys

import pytest

from attnjax.cli import argument_types as types, main
from attnjax.cli.hosts import Hosts, hosts
from attnjax.config.mesh import MeshShape
from attnjax.records.runs import read_manifest
from attnjax.sweep import load
from attnjax.train import processes
from tests.hosts import attnjax, digest, ends, environment, free_port, started, state, the_run, together, until_step
from tests.trees import tree

JOINED = ["--mesh", "data=2", "--coordinator", "10.0.0.1:1234"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--processes", "2"], "--processes and --process-id need --coordinator HOST:PORT: where process 0 listens"),
        (JOINED, "--coordinator needs --processes and --process-id, which only tasks of SLURM may leave out"),
        ([*JOINED, "--process-id", "1"], "--coordinator needs --processes and --process-id, which only tasks"),
        ([*JOINED, "--processes", "1", "--process-id", "0"], "--processes must be 2 or more; one process trains without"),
        ([*JOINED, "--processes", "2", "--process-id", "2"], "--process-id must be 0 .. 1 with --processes 2, got 2"),
        ([*JOINED, "--processes", "3", "--process-id", "0"], "a multiple of 3 devices, as many of each process; got data=2"),
        ([*JOINED[2:], "--processes", "2", "--process-id", "0"], "--mesh must name a multiple of 2 devices, as many of"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused_before_anything_is_joined(options, sentence, monkeypatch, capsys):
    for name in ("SLURM_NTASKS", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert main(["run", "rope_vs_sinusoidal", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("text", ["10.0.0.1:1234", "node-1.cluster:65535", "[fe80::1]:80", "[::1]:9", "a_b:1"])
def test_coordinators_are_a_host_and_a_port(text):
    assert types.coordinator(text) == text


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", ":80", "host:", "host:0", "host:65536", "fe80::1:80", "[host]:80", "[::g]:80", "h:1/x", "-h:1"]
)  # fmt: skip
def test_other_coordinators_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be HOST:PORT of process 0, an IPv6 address in brackets"):
        types.coordinator(text)


def test_tasks_of_slurm_know_how_many_they_are():
    given = argparse.Namespace(coordinator="n1:80", processes=None, process_id=None, mesh=MeshShape(data=6))
    slurm = {"SLURM_NTASKS": "3", "SLURM_PROCID": "2"}
    assert hosts(given, slurm) == Hosts("n1:80", 3, 2)
    with pytest.raises(ValueError, match="^SLURM_PROCID must be a whole number from 0 to 999999999, got 'x'$"):
        hosts(given, slurm | {"SLURM_PROCID": "x"})
    with pytest.raises(ValueError, match="--coordinator needs"):
        hosts(given, {"SLURM_PROCID": "2"})
    given.processes, given.process_id = 2, 0
    assert hosts(given, slurm) == Hosts("n1:80", 2, 0)
    given.coordinator = given.processes = given.process_id = None
    assert hosts(given, slurm) is None


def test_a_port_that_is_taken_is_told_in_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ValueError, match=f"^--coordinator: port {port} of this host cannot be used: Address already"
        ):
            processes.join(f"127.0.0.1:{port}", 2, 0)


def test_processes_are_numbered_as_their_devices_are():
    processes._check_order(("0", "1", "2"), 1)
    with pytest.raises(
        ValueError, match="^the devices number the processes in an order of their own: here --process-id must"
    ):
        processes._check_order(("0", "2", "1"), 1)


def test_a_process_whose_others_do_not_come_asks_to_be_started_again(tmp_path):
    code = f"from attnjax.train.processes import join; join('127.0.0.1:{free_port()}', 2, 1, timeout=1)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path, 1), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 75
    assert "attnjax: 2 processes did not meet at 127.0.0.1:" in done.stderr
    assert "within 1 s; this is process 1\n" in done.stderr


@pytest.mark.slow
def test_processes_with_different_configs_do_not_train(tmp_path):
    own = ((), ("train.batch=8",))
    for code, _, errors in together(tmp_path, "run", "tiny.json", "--out", "out", each=own):
        assert code == 2
        assert "attnjax: error: process 1 has another config than process 0: " in errors
    assert [path.name for path in tmp_path.rglob("out")] == []


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The sha256 of the parameters that one process ends with, on two devices."""
    folder = tmp_path_factory.mktemp("alone")
    process = attnjax(folder, "run", "tiny.json", "--mesh", "data=2", "--out", "out", devices=2)
    assert process.wait(timeout=240) == 0
    process.communicate()
    return digest(folder / "out")


@pytest.mark.slow
def test_two_processes_have_the_bits_of_one_and_the_second_start_does_nothing(tmp_path, undisturbed):
    command = ("run", "tiny.json", "--out", "out")
    for told in ("[1/1]", "1 runs: 1 done; 1 of them before"):
        (first, output, _), (second, follower, errors) = together(tmp_path, *command)
        assert (first, second) == (0, 0), errors
        assert told in output
        assert [line for line in follower.splitlines() if not line.startswith("[Gloo]")] == []
        assert "attnjax" not in errors
    assert digest(tmp_path / "0" / "out") == undisturbed
    table = read_manifest(the_run(tmp_path / "0" / "out"))
    assert (table["process_count"], table["mesh"], table["changed_on_resume"]) == (2, "data=2", [])
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == ["tiny.json"]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_fails_no_run_and_any_number_of_processes_go_on(tmp_path, undisturbed, victim):
    command, out = ("run", "tiny.json", "--out", "out"), tmp_path / "0" / "out"
    with started(tmp_path, *command) as both:
        until_step(out, 12, both)
        both[victim].kill()
        found = ends(both)
    assert found[victim][0] == -signal.SIGKILL
    assert found[1 - victim][0] in (75, -signal.SIGABRT), found
    assert state(out).state == "running"
    shutil.copytree(tmp_path / "0", tmp_path / "alone")
    assert [code for code, _, _ in together(tmp_path, *command)] == [0, 0]
    assert digest(out) == undisturbed
    table = read_manifest(the_run(out))
    assert table["resumed_from"] >= 12
    assert table["changed_on_resume"] == []
    if victim:
        alone = attnjax(tmp_path / "alone", *command)
        assert ends([alone])[0][0] == 0
        table = read_manifest(the_run(tmp_path / "alone" / "out"))
        assert table["changed_on_resume"] == ["mesh", "process_count"]
        assert table["determinism"] == "statistical"


@pytest.mark.slow
def test_a_process_that_hangs_is_lost_after_some_seconds(tmp_path):
    """Its connections stay: JAX misses its sign of life, and ends the other process itself."""
    out = tmp_path / "0" / "out"
    with started(tmp_path, "run", "tiny.json", "--out", "out") as both:
        until_step(out, 12, both)
        both[1].send_signal(signal.SIGSTOP)
        assert both[0].wait(timeout=120) in (75, -signal.SIGABRT)
    assert state(out).state == "running"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("SIGTERM", 1), ("SIGUSR1", 0)])
def test_a_warning_of_one_process_stops_all_after_saving(tmp_path, undisturbed, name, number):
    command, out = ("run", "tiny.json", "--out", "out"), tmp_path / "0" / "out"
    with started(tmp_path, *command) as both:
        until_step(out, 12, both)
        both[number].send_signal(getattr(signal, name))
        found = ends(both)
    assert [code for code, _, _ in found] == [75, 75], found
    reason = f"{name} of process 1" if number else name
    assert f"stopped: {reason}; the same command continues" in found[0][1]
    now = state(out)
    assert (now.state, now.reason) == ("preempted", reason)
    assert str(now.step) in {path.name for path in (the_run(out) / "checkpoints").iterdir()}
    one = attnjax(tmp_path / "0", *command, "--mesh", "data=2", devices=2)
    assert ends([one])[0][0] == 0
    assert digest(out) == undisturbed
    assert read_manifest(the_run(out))["changed_on_resume"] == ["process_count"]


@pytest.mark.slow
def test_what_one_process_lacks_fails_the_run_in_all(tmp_path):
    """Process 0 has the text, process 1 has not."""
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "text.txt").write_text("to be or not to be, " * 400)
    words = ("task.name=text", 'task.options={"path": "text.txt"}', "task.length_max=16", "evaluate.lengths=16")
    (first, output, _), (second, _, errors) = together(tmp_path, "run", "tiny.json", *words, "--out", "out")
    assert (first, second) == (1, 1), (output, errors)
    assert "failed" in output
    assert "process 1: ValueError: Text: no file or folder at 'text.txt'" in state(tmp_path / "0" / "out").reason
    assert "ValueError: Text: no file or folder at 'text.txt'" in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failing", "codes", "state_after"), [("0", (1, 75), "failed"), ("1", (75, 1), "running"), ("01", (1, 1), "failed")]
)
def test_an_error_amid_shared_work_ends_each_process_and_the_next_start_says_how_the_run_ended(
    tmp_path, monkeypatch, failing, codes, state_after
):
    """Those without the error have lost a process; only process 0 can say that the run has failed."""
    monkeypatch.setenv("FAILING", failing)
    command, out = ("run", "tiny.json", "--out", "out", "--trainer", "tests.hosts:train"), tmp_path / "0" / "out"
    found = together(tmp_path, *command)
    for (code, _, errors), expected in zip(found, codes, strict=True):
        assert code in ((75, -signal.SIGABRT) if expected == 75 else (1,)), found
        assert expected == 75 or "no such luck" in errors + found[0][1]
    assert state(out).state == state_after
    if state_after == "failed":
        assert state(out).reason == "RuntimeError: no such luck"
        assert [code for code, _, _ in together(tmp_path, *command)] == [1, 1]


@pytest.mark.slow
def test_workers_train_the_rest_where_one_run_cannot_be_saved(tmp_path):
    """A link stands in place of the checkpoints of one of two runs that train together. Process 1 sees no folder at all."""
    over = ("--over", "train.learning_rate=1e-3,1e-4", "train.steps=12")
    planned = attnjax(tmp_path / "0", "sweep", "tiny.json", *over, "--plan", "--out", "out")
    assert ends([planned])[0][0] == 0
    store = load(tmp_path / "0" / "out")
    bad, good = (entry.run for entry in store.runs)
    (store.folder(bad) / "checkpoints").symlink_to(tmp_path)
    found = together(tmp_path, "work", "out")
    assert [code for code, _, _ in found] == [0, 0], found
    assert (store.status(good).state, store.status(bad).state) == ("done", "failed")
    assert "link" in store.status(bad).reason
    assert json.loads((store.folder(good) / "manifest.json").read_text())["steps"] == 12


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_each_process_saves_the_member_that_it_has_where_it_sees_the_folder(tmp_path, shared):
    """A copy of the folder under the same name does not count as the folder, and stays as it is."""
    over = ("--over", "train.learning_rate=1e-3,1e-4", "train.steps=12")
    planned = attnjax(tmp_path / "0", "sweep", "tiny.json", *over, "--plan", "--out", "out")
    assert ends([planned])[0][0] == 0
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    before = tree(tmp_path / "1" / "out")
    each = [(str(tmp_path / name / "out"),) for name in ("0", "0" if shared else "1")]
    found = together(tmp_path, "work", each=each, mesh="population=2")
    assert [code for code, _, _ in found] == [0, 0], found
    assert tree(tmp_path / "1" / "out") == before
    store = load(tmp_path / "0" / "out")
    folders = [store.folder(entry.run) / "checkpoints" for entry in store.runs]
    assert [sorted(path.name for path in folder.iterdir()) for folder in folders] == [["12", "8"]] * 2
    wrote = {path.name for folder in folders for path in (folder / "12" / "state").glob("ocdbt.process_*")}
    assert wrote == ({"ocdbt.process_0", "ocdbt.process_1"} if shared else {"ocdbt.process_0"})
    assert {json.loads((folder.parent / "manifest.json").read_text())["steps"] for folder in folders} == {12}
