"""A tree of arrays as files, by orbax, which is loaded with the first checkpoint: a start without one does not wait for it.

This is the only module that knows orbax. Its files are those of NumPy arrays that one process wrote, whichever process did.
"""

import contextlib
import operator
import os
from typing import Any

import jax
import numpy as np

from attnjax.config.files import parse_json
from attnjax.folder import Folder
from attnjax.train import leaves, sums
from attnjax.train.leaves import Damaged
from attnjax.typing import PyTree


def write(path: Any, arrays: PyTree) -> None:
    """Write arrays by orbax's handler alone: its `Checkpointer` waits five minutes where a folder cannot be made.

    `path` is a `pathlib.Path`; orbax is annotated with a class of its own.
    """
    import orbax.checkpoint as ocp

    # Compressing 1 GiB of floats saves 8 % of the bytes for as much processor time as all the rest.
    number = jax.process_index()
    arrays, how = (_of_this_process(arrays), _by_this_process(number)) if number else (arrays, {})
    with contextlib.closing(ocp.PyTreeCheckpointHandler(use_compression=False, **how)) as handler:
        handler.save(path, args=ocp.args.PyTreeSave(arrays))
        handler.finalize(path)


def _of_this_process(arrays: PyTree) -> PyTree:
    """Return arrays as orbax takes them from another process than the first.

    Of several processes orbax 0.12.8 writes NumPy arrays in the first alone, drops them elsewhere without a word, and refuses
    a `jax.Array` that has no part in another process. Of one that is replicated it writes replica 0: the one here.
    """
    here, first = jax.local_devices()[0], jax.devices()[0]
    replicas = jax.sharding.Mesh(np.array([here, first]), ("replica",))
    everywhere = jax.sharding.NamedSharding(replicas, jax.sharding.PartitionSpec())
    place = lambda x: jax.make_array_from_single_device_arrays(x.shape, everywhere, [jax.device_put(x, here)])
    return jax.tree.map(place, arrays)


def _by_this_process(number: int) -> dict[str, Any]:
    """Return what makes orbax write the files that the first process would write, in this one: all of them, for NumPy."""
    import orbax.checkpoint as ocp

    class Handler(ocp.type_handlers.ArrayHandler):
        def typestr(self) -> str:
            return "np.ndarray"

    arrays = Handler(primary_host=number, use_replica_parallel=False, enable_write_sharding_file=False)
    return {
        "multiprocessing_options": ocp.options.MultiprocessingOptions(number, {number}),
        "type_handler_registry": ocp.type_handlers.create_type_handler_registry((jax.Array, arrays)),
    }


def load(folder: Folder, like: PyTree) -> PyTree:
    """Read the arrays that `write` wrote, onto the host.

    Raises Damaged where they are not like `like`: before orbax opens files, since it follows a name that is a path to
    wherever it leads, and before memory is spent, since it allocates whatever a file claims.
    """
    import orbax.checkpoint as ocp

    wrong = Damaged("state holds other arrays than its table of leaves says")
    wanted = dict(zip(leaves.dotted(like), jax.tree.leaves(like), strict=True))
    with folder.enter("state") as state:
        rows = parse_json(state.read("_METADATA", sums.LARGEST).decode("utf-8"))["tree_metadata"].values()
    names = {".".join(part["key"] for part in row["key_metadata"]) for row in rows}
    if any("/" in name or os.sep in name for name in names - wanted.keys()):
        raise wrong
    path: Any = folder.path.resolve() / "state"
    with contextlib.closing(ocp.PyTreeCheckpointHandler()) as handler:
        tree = handler.metadata(path).tree
        found = dict(zip(leaves.dotted(tree), jax.tree.leaves(tree), strict=True))
        if found.keys() != wanted.keys():
            raise wrong
        for name, leaf in found.items():
            whole = all(map(operator.le, leaf.storage.chunk_shape, leaf.shape))
            if not whole or (leaf.shape, leaf.dtype) != (wanted[name].shape, wanted[name].dtype):
                raise wrong
        types = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
        return handler.restore(path, args=ocp.args.PyTreeRestore(like, restore_args=types))
