"""Make the reference arrays `frontier_*.npz` of newer encodings from their authors' code and from transformers.

Nothing here imports attnjax. REFERENCES is a folder with the files that `references.py` lists:

    golden/bin/pip install torch==2.13.0 transformers==5.23.0 x-transformers==2.31.10 numpy==2.4.6 einops==0.8.2
    golden/bin/python tests/golden/make_frontier.py REFERENCES [NAME ...]

The published code runs unchanged, in float32 and again in float64 (`make_golden.in_double`), on inputs that float32
holds exactly. What is not installed on a machine without a GPU (fla's kernels) has a stand-in in plain torch.
README.md says what each array is.
"""

import argparse
import functools
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import frontier_logits as logits
import frontier_positions as positions
import numpy as np
from make_golden import FOLDER, Arrays, in_double

SETS: dict[Callable[[Path], Arrays], float] = {
    positions.fox: 1e-5,
    positions.cable: 1e-5,
    positions.repo: 1e-4,
    positions.selective_rope: 1e-4,
    logits.scalable_softmax: 1e-5,
    logits.llama4: 1e-5,
    logits.sinks: 1e-5,
    logits.stick_breaking: 1e-4,
    positions.multimodal_rope: 1e-4,
    positions.axial_rope: 1e-5,
    logits.dape: 1e-5,
    logits.path_attention: 1e-4,
    logits.gated: 1e-5,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("references", type=Path, help="folder with the files of references.py")
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to make; all of them without one")
    args = parser.parse_args()
    for name in ("torch", "transformers", "x-transformers", "numpy"):
        print(name, version(name))
    for make, tolerance in SETS.items():
        if args.names and make.__name__ not in args.names:
            continue
        given = functools.partial(make, args.references)
        arrays = in_double(functools.update_wrapper(given, make), tolerance)
        path = FOLDER / f"frontier_{make.__name__}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path.name:30} {path.stat().st_size:7} bytes, {len(arrays)} arrays")


if __name__ == "__main__":
    main()
