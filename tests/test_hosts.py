"""Several processes train one model through the command line: as one process would, whatever is lost on the way."""

import argparse
import signal
import socket

import pytest

from attnjax.cli import argument_types as types, main
from attnjax.records.runs import folder_of, read_manifest
from attnjax.train import processes
from tests.hosts import attnjax, digest, ends, started, state, the_run, together, until_step

COORDINATOR = ["--coordinator", "10.0.0.1:1234"]
COMMAND = ("run", "tiny.json")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--processes", "2"], "--coordinator"),
        ([*COORDINATOR, "--process-id", "1"], "--processes"),
        ([*COORDINATOR, "--processes", "1", "--process-id", "0"], "got 1 and 0"),
        ([*COORDINATOR, "--processes", "2", "--process-id", "2"], "got 2 and 2"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_is_joined(options, named, capsys):
    assert main(["run", "rope_vs_sinusoidal", *options]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("text", ["10.0.0.1:1234", "node-1.cluster:65535", "[fe80::1]:80"])
def test_coordinators_are_a_host_and_a_port(text):
    assert types.coordinator(text) == text


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", ":80", "host:", "host:65536", "fe80::1:80", "[host]:80", "h:1/x", "-h:1"]
)
def test_other_coordinators_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="HOST:PORT"):
        types.coordinator(text)


def test_a_port_that_is_taken_is_told_in_one_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port} .*Address already"):
            processes.join(f"127.0.0.1:{port}", 2, 0)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The sha256 of the parameters that one process ends with, on two devices."""
    folder = tmp_path_factory.mktemp("alone")
    process = attnjax(folder, *COMMAND, "--mesh", "data=2", "--out", "out", devices=2)
    assert ends([process])[0][0] == 0
    return digest(folder / "out")


@pytest.mark.slow
def test_two_processes_have_the_bits_of_one_and_the_second_start_does_nothing(tmp_path, undisturbed):
    for told in ("1 runs: 1 done  ", "1 runs: 1 done; 1 of them before"):
        (first, output, _), (second, follower, errors) = together(tmp_path, *COMMAND)
        assert (first, second) == (0, 0), errors
        assert told in output
        assert [line for line in follower.splitlines() if not line.startswith("[Gloo]")] == []
    assert digest(tmp_path / "out") == undisturbed
    assert read_manifest(folder_of(the_run(tmp_path / "out")))["process_count"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_fails_no_run_and_the_next_start_goes_on(tmp_path, undisturbed, victim):
    out = tmp_path / "out"
    with started(tmp_path, *COMMAND) as both:
        until_step(out, 12, both)
        both[victim].kill()
        found = ends(both)
    assert found[victim][0] == -signal.SIGKILL
    assert found[1 - victim][0] in (1, -signal.SIGABRT), found
    assert state(out).state in ("running", "preempted")
    assert [code for code, _, _ in together(tmp_path, *COMMAND)] == [0, 0]
    assert digest(out) == undisturbed
    assert read_manifest(folder_of(the_run(out)))["resumed_from"] >= 12


@pytest.mark.slow
def test_a_process_that_hangs_is_lost_after_some_seconds(tmp_path):
    """Its connections stay: JAX misses its sign of life, and ends the other process itself."""
    out = tmp_path / "out"
    with started(tmp_path, *COMMAND) as both:
        until_step(out, 12, both)
        both[1].send_signal(signal.SIGSTOP)
        assert both[0].wait(timeout=120) in (1, -signal.SIGABRT)
    assert state(out).state == "running"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "number"), [("SIGTERM", 1), ("SIGUSR1", 0)])
def test_a_warning_of_one_process_stops_all_after_saving(tmp_path, undisturbed, name, number):
    out = tmp_path / "out"
    with started(tmp_path, *COMMAND) as both:
        until_step(out, 12, both)
        both[number].send_signal(getattr(signal, name))
        found = ends(both)
    first, second = (code for code, _, _ in found)
    assert first == second != 0, found
    now = state(out)
    assert now.state == "preempted"
    assert str(now.step) in {path.name for path in (folder_of(the_run(out)) / "checkpoints").iterdir()}
    one = attnjax(tmp_path, *COMMAND, "--out", "out", "--mesh", "data=2", devices=2)
    assert ends([one])[0][0] == 0
    assert digest(out) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize(("failing", "after"), [("0", ["failed"]), ("1", ["running", "preempted"]), ("01", ["failed"])])
def test_an_error_of_one_process_ends_all(tmp_path, monkeypatch, failing, after):
    """The others lose a process; only process 0 can say that the run has failed."""
    monkeypatch.setenv("FAILING", failing)
    found = together(tmp_path, *COMMAND, "--trainer", "tests.hosts:train")
    assert all(code in (1, -signal.SIGABRT) for code, _, _ in found), found
    assert any("no such luck" in errors + output for _, output, errors in found)
    assert state(tmp_path / "out").state in after
