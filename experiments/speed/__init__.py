"""Speed of attnjax beside other libraries, on the same inputs and in turns. See `python -m experiments.speed --help`."""
