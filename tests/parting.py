"""A training function with an error that only the processes named in the environment have, amid work that all share."""

import os

import jax
import numpy as np
from jax.experimental import multihost_utils


def check_mesh(mesh, run):
    """It takes every mesh."""


def train(configs, directories, context):
    """Fail in some processes, while the others wait for them."""
    if str(jax.process_index()) in os.environ["FAILING"]:
        raise RuntimeError("no such luck")
    multihost_utils.process_allgather(np.arange(3))
