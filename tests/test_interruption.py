"""Ctrl-C at any moment of a start ends a command with 130, without a traceback."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from attnjax.cli import main
from attnjax.cli.interruption import after_imports

ROOT = pathlib.Path(__file__).parents[1]
TINY = {"task": {"name": "bucket_sort", "length_max": 4}, "model": {"layers": 1, "model": 8, "heads": 1, "hidden": 8}}
ARMED = """
import os, signal, sys, threading
from attnjax.cli import main

def interrupt():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ended.wait(0.0001)
    if not ended.wait(float(sys.argv[1])):
        os.kill(os.getpid(), signal.SIGINT)

ended = threading.Event()
threading.Thread(target=interrupt).start()
code = main(sys.argv[2:])
ended.set()
sys.exit(code)
"""


@pytest.fixture(autouse=True)
def heed_interruptions():
    """A shell starts what runs in its background with SIGINT ignored, and processes that tests start inherit it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("moment", [0.0, 0.04])
def test_an_interruption_while_modules_are_imported_is_130_without_a_traceback(tmp_path, moment):
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", ARMED, str(moment), "show", "tiny.json"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "attnjax: interrupted\n")


INTERRUPTS = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(0.2)\nended = True\n"


def test_an_import_is_not_interrupted_but_what_follows_it_is(tmp_path, monkeypatch):
    (tmp_path / "interrupts_itself.py").write_text(INTERRUPTS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def work() -> None:
        import interrupts_itself

        assert interrupts_itself.ended
        assert not threading.Event().wait(60), "was not interrupted"

    with pytest.raises(KeyboardInterrupt), after_imports():
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interruption_that_waits_when_the_command_ends_is_not_lost(tmp_path, monkeypatch):
    (tmp_path / "interrupts_at_its_end.py").write_text(INTERRUPTS.replace("time.sleep(0.2)\n", ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt), after_imports():
        import interrupts_at_its_end
    assert interrupts_at_its_end.ended


@pytest.mark.parametrize("dropped", [lambda: None, lambda: int("x")], ids=["in silence", "for another error"])
def test_an_interruption_that_is_dropped_on_its_way_is_raised_at_the_end(dropped):
    def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(60)
        except KeyboardInterrupt:
            dropped()

    with pytest.raises(KeyboardInterrupt), after_imports():
        work()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_import_that_does_not_end_is_interrupted_nevertheless(tmp_path, monkeypatch):
    monkeypatch.setattr("attnjax.cli.interruption.PATIENCE", 0.1)
    (tmp_path / "endless_import.py").write_text(INTERRUPTS.replace("0.2", "60"))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(KeyboardInterrupt), after_imports():
        import endless_import  # noqa: F401


def test_a_config_may_be_interrupted_at_once(tmp_path, capsys):
    (tmp_path / "endless.py").write_text(INTERRUPTS.replace("0.2", "60"))
    assert main(["show", str(tmp_path / "endless.py")]) == 130
    assert capsys.readouterr().err == "attnjax: interrupted\n"


def test_the_handler_of_somebody_else_stays():
    mine = lambda *_: None
    before = signal.signal(signal.SIGINT, mine)
    try:
        with after_imports():
            assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
