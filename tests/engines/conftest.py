"""The training functions and checks of tests/sweep, which worker processes find as well."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "sweep"))
