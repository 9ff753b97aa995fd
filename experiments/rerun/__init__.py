"""Does a cell of committed records come out again under another rounding? `python -m experiments.rerun --help`."""
