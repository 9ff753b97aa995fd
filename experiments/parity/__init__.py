"""Published weights beside transformers. See `python -m experiments.parity --help`."""
