"""Damaged files in JAX's cache of compiled programs cost the time of compiling, and change no bit of a run."""

import re

import pytest

from tests.train import killing


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes) -> bytes:
    return b""


def flipped(data: bytes) -> bytes:
    """With one bit changed, in the middle: the header is whole, and so is the length."""
    changed = bytearray(data)
    changed[len(data) // 2] ^= 1
    return bytes(changed)


DAMAGE = (truncated, emptied, flipped)


@pytest.mark.slow
def test_damaged_programs_are_compiled_again_and_change_no_bit(tmp_path):
    train = lambda out: killing.finish(killing.start(tmp_path, out, "train.steps=6", "evaluate.every=6"))
    assert "Error reading" not in train("whole")
    programs = sorted((tmp_path / "cache").glob("*-cache"))
    assert len(programs) > len(DAMAGE)
    for number, path in enumerate(programs):
        path.write_bytes(DAMAGE[number % len(DAMAGE)](path.read_bytes()))

    output = train("damaged")

    # Every program was looked up, found to be damaged, and told of in one line.
    told = set(re.findall(r"Error reading persistent compilation cache entry for '(\w+)'", output))
    assert told == {path.name.split("-")[0] for path in programs}
    assert "Traceback" not in output
    log, results, manifest = killing.records(tmp_path / "damaged")
    expected_log, expected_results, expected = killing.records(tmp_path / "whole")
    assert (log, results) == (expected_log, expected_results)
    assert manifest["parameters_sha256"] == expected["parameters_sha256"]
    assert killing.status(tmp_path / "damaged")["state"] == "done"
