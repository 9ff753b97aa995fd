"""What compiles and runs on accelerators. See `python -m experiments.devices --help`."""
