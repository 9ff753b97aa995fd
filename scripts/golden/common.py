"""What the scripts of this folder share: float64 for library code, seeded inputs, gradients, and other people's files.

Nothing here imports attnjax, and the tests that read the arrays import none of these libraries. `tests/golden/README.md` says
how to run the scripts, with which versions, and what each array is.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib.util
import json
import os
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Arrays = dict[str, np.ndarray]
ARRAYS = Path(__file__).parents[2] / "tests" / "golden"
SOURCES = tomllib.loads((Path(__file__).parent / "sources.toml").read_text(encoding="utf-8"))


# Double precision ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def double() -> Iterator[None]:
    """Let every name by which library code asks for float32 mean float64."""
    names = {"float": torch.float64, "float32": torch.float64, "FloatTensor": torch.DoubleTensor}
    default = torch.get_default_dtype()
    with mock.patch.multiple(torch, **names), mock.patch.object(Tensor, "float", Tensor.double):
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def in_double(make: Callable[[], Arrays], tolerance: float) -> Arrays:
    """What `make` returns in float64, after a check that it agrees with the same code run as published."""
    single = make()
    with double():
        kept = make()
    for name, array in kept.items():
        scale = max(1.0, np.abs(array).max())
        np.testing.assert_allclose(single[name], array, rtol=tolerance, atol=tolerance * scale, err_msg=name)
        if not np.isfinite(array).all():
            raise AssertionError(f"{make.__name__}: {name} is not finite")
    return kept


def main(sets: Mapping[Callable[[], Arrays], float], prefix: str = "") -> None:
    """Write the sets that the command names, or all: PREFIX_NAME.npz for each function NAME, with its tolerance."""
    parser = argparse.ArgumentParser(description="Make reference arrays; tests/golden/README.md says how.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to make; all of them without one")
    names = parser.parse_args().names
    for name in ("torch", "transformers", "x-transformers", "einops", "numpy"):
        print(name, version(name))
    for make, tolerance in sets.items():
        if names and make.__name__ not in names:
            continue
        arrays = in_double(make, tolerance)
        path = ARRAYS / f"{prefix}{make.__name__}.npz"
        np.savez_compressed(path, **arrays)
        print(f"{path.name:32} {path.stat().st_size:7} bytes, {len(arrays)} arrays")


# Inputs, layers and gradients ----------------------------------------------------------------------------------------


def draw(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Seeded normal numbers in float32, stored as they are."""
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def tensor(array: np.ndarray) -> Tensor:
    """A leaf of the default type."""
    return torch.tensor(array, dtype=torch.get_default_dtype(), requires_grad=True)


def numpy(x: Tensor) -> np.ndarray:
    """The array of a tensor."""
    return x.detach().numpy()


def causal(length: int) -> Tensor:
    """True where a key is not in the future."""
    return torch.ones(length, length, dtype=torch.bool).tril()


def hide(mask: Tensor) -> Tensor:
    """The additive form of a boolean mask."""
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


def gradients(out: Tensor, w: np.ndarray, leaves: Mapping[str, Tensor]) -> Arrays:
    """d sum(out * w) / d leaf for each leaf."""
    grads = torch.autograd.grad((out * torch.tensor(w, dtype=out.dtype)).sum(), list(leaves.values()))
    return {f"grad_{name}": numpy(grad) for name, grad in zip(leaves, grads, strict=True)}


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None = None) -> Tensor:
    """torch's own attention on [B,T,N,H] arrays; `mask` is boolean or additive, [*, *, T, S]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True).transpose(1, 2)


class Given(nn.Module):
    """A layer that returns what it was made with; it replaces a projection whose result is an input here."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, _: Tensor) -> Tensor:
        return self.value


# Files of other repositories -----------------------------------------------------------------------------------------


def stand_ins(contents: Mapping[str, Mapping[str, Any]]) -> dict[str, ModuleType]:
    """Modules of the given contents by name, for imports of what is not installed."""
    made = {name: ModuleType(name) for name in contents}
    for name, module in made.items():
        module.__path__ = []
        vars(module).update(contents[name])
    return made


def load(path: str, name: str, modules: Mapping[str, Any] | None = None) -> ModuleType:
    """The file OWNER/NAME/PATH as module `name`, unchanged, with stand-ins for other modules while it loads."""
    return _module(known(path), name, modules)


def known(path: str) -> Path:
    """The file OWNER/NAME/PATH under the folder that the variable REFERENCES names.

    A file other than that of `sources.toml` is refused; those that it does not list, neighbours that a listed file imports, are
    not checked.
    """
    owner, repository, inner = path.split("/", 2)
    file = Path(os.environ["REFERENCES"]) / path
    found, listed = hashlib.sha256(file.read_bytes()).hexdigest(), SOURCES[f"{owner}/{repository}"]
    if not found.startswith(listed.get(inner, "")):
        raise ValueError(f"{file} has SHA-256 {found}, not that of {owner}/{repository} at {listed['commit']}")
    return file


def definitions(path: str, *names: str, before: str = "") -> ModuleType:
    """A module of the classes and functions of these names alone, as the file OWNER/NAME/PATH or notebook writes them.

    For files that import what is not installed. "Class.method" is the function of that method; `before` is code that they need.
    """
    text = known(path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        cells = ("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")
        text = "\n".join(cell for cell in cells if not cell.startswith("!"))
    parts = [textwrap.dedent(_source(text, ast.parse(text).body, name.split("."))) for name in names]
    imports = "from __future__ import annotations\nimport math\nfrom typing import *\nimport torch\n"
    imports += "import torch.nn as nn\nimport torch.nn.functional as F\n"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "definitions.py"
        file.write_text("\n\n".join([imports, before, *parts]), encoding="utf-8")
        return _module(file, "reference_definitions", None)


def _source(text: str, body: list[ast.stmt], names: list[str]) -> str:
    node = next(node for node in body if getattr(node, "name", None) == names[0])
    return _source(text, node.body, names[1:]) if names[1:] else ast.get_source_segment(text, node, padded=True) or ""


def _module(file: Path, name: str, modules: Mapping[str, Any] | None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(name)
    made = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {**(modules or {}), name: made}):
        spec.loader.exec_module(made)
    return made
