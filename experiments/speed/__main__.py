"""`python -m experiments.speed` is `attnjax bench`."""

from attnjax.cli import main

if __name__ == "__main__":
    import sys

    sys.exit(main(["bench", *sys.argv[1:]]))
