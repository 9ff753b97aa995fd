"""Training: populations of runs in one compiled program, evaluation by length, checkpoints that verify themselves."""

from attnjax.train.check import check, describe
from attnjax.train.loop import train
from attnjax.train.mesh import check_mesh

__all__ = ["check", "check_mesh", "describe", "train"]
