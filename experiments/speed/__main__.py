"""`python -m experiments.speed` is `attnjax bench`."""

import sys

from attnjax.cli import main

if __name__ == "__main__":
    sys.exit(main(["bench", *sys.argv[1:]]))
