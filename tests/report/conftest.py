"""These tests have run on one of the two supported stacks only, so they are left to `pytest -m nightly` for now."""

import pathlib

import pytest


def pytest_collection_modifyitems(items):
    here = pathlib.Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.nightly)
