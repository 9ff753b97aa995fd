"""A run that makes no progress leaves the stacks of all threads, and is not ended by that."""

import faulthandler
import threading

import fake_training
import hanging
import pytest
from checks import check_complete, until

from attnjax.sweep import ExecutionConfig, run_here, run_workers, scan, seeds
from attnjax.sweep.run_context import RunContext
from attnjax.sweep.stop import Stop
from attnjax.sweep.watchdog import Watchdog, watchdog

pytestmark = pytest.mark.slow


def written(store, names):
    """What stands in the files of these names in the folder of logs."""
    return "".join(path.read_text() for path in (store.root / "logs").glob(names))


def test_a_hang_leaves_its_stacks_in_the_folder_and_says_where(make):
    store, events = make(seeds(1)), []

    def train(configs, directories, context):
        until(lambda: any(event.reason for event in events) and "in until" in written(store, "stacks-*.txt"))
        fake_training.train(configs, directories, context)

    summary = run_here(store, train, ExecutionConfig(stall=0.3), progress=events.append)
    assert str(summary) == "1 runs: 1 done"
    (stacks,) = (store.root / "logs").iterdir()
    told = next(event for event in events if event.reason)
    assert told.state == "running"
    assert told.reason == f"no step for 0.3 s; the stacks of all threads are in {stacks}"
    text = stacks.read_text()
    assert "Timeout (0:00:00.300000)!" in text
    assert "in until" in text
    assert not scan(store.root).foreign


def test_steps_records_and_notes_are_progress_and_asking_to_stop_is_none(make):
    store, calls = make(seeds(1)), []
    here = store.directory(store.runs[0].run)
    context = RunContext({here: 0}, Stop(), lambda event: None, lambda: calls.append(1))
    record = {"step": 1, "length": 10, "metric": "loss", "split": "test", "value": 0.5}
    context.truncate_after(here, 0)
    context.log_manifest(here, parameters=1)
    context.step(here, 1)
    context.metrics(here, {"step": 1})
    context.results(here, record)
    assert len(calls) == 5
    context.stopping()
    assert len(calls) == 5


def test_progress_starts_the_time_anew(tmp_path, monkeypatch):
    now, armed = [0.0], []
    monkeypatch.setattr("attnjax.sweep.watchdog.time.monotonic", lambda: now[0])
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: armed.append(now[0]))
    dog = Watchdog(600.0, 2, "nowhere")
    for moment in (10.0, 10.5, 11.5, 300.0):
        now[0] = moment
        dog.progress()
    assert armed == [10.0, 11.5, 300.0], "at most once a second"


def test_no_empty_file_stays(make):
    store = make(seeds(1))
    run_here(store, fake_training.train)
    assert not list((store.root / "logs").iterdir())


def test_a_worker_that_hangs_has_its_stacks_in_its_log_and_the_driver_says_so(make):
    store, events, stop = make(seeds(1)), [], Stop()

    def progress(event):
        events.append(event)
        if event.reason.startswith("no step"):
            until(lambda: "in until_told" in written(store, "worker-*.txt"))
            (store.directory(event.run) / "go").touch()

    run_workers(store, "hanging:until_told", 1, ExecutionConfig(stall=0.5), threads=1, progress=progress, stop=stop)
    (log,) = (store.root / "logs").glob("worker-*.txt")
    assert any(event.reason == f"no step for 0.5 s; the stacks of all threads are in {log}" for event in events)
    assert "in until_told" in log.read_text()
    check_complete(store)


def test_the_command_line_says_on_standard_error_where_the_stacks_are(tmp_path):
    process = hanging.start(tmp_path, "asleep", "--stall", "0.5")
    lines = iter(process.stderr.readline, "")
    told = next(line for line in lines if "no step for" in line)
    stacks = tmp_path / "out" / "logs" / f"stacks-{process.pid}.txt"
    assert f"at step 0: no step for 0.5 s; the stacks of all threads are in {stacks}" in told
    until(lambda: "in asleep" in stacks.read_text())
    process.kill()
    process.communicate()


def test_a_link_in_place_of_the_file_is_not_followed(tmp_path):
    (tmp_path / "logs").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with watchdog(tmp_path, 600.0) as dog:
        assert isinstance(dog, Watchdog)
    assert not list((tmp_path / "elsewhere").iterdir())


def test_nothing_is_armed_after_the_block(tmp_path, capfd):
    with watchdog(tmp_path, 0.2) as dog, dog.watching(lambda text: None):
        pass
    threading.Event().wait(0.5)
    assert capfd.readouterr().err == ""
    faulthandler.cancel_dump_traceback_later()
