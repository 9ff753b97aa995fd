"""How fast: us and others on the same inputs, on one machine, in one run. See `python -m experiments.speed --help`."""
