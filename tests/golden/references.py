"""Files of other people's repositories, loaded unchanged from a folder; for `make_frontier.py` and `make_untrained.py`.

The folder holds each file as OWNER/NAME/PATH, for example `axiomlab/Cable/src/Cable.py`, as

    git -C CLONE show COMMIT:PATH > FOLDER/OWNER/NAME/PATH

writes it. None of them is in this repository. A file other than the one the arrays were made with is refused.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock


@dataclasses.dataclass(frozen=True)
class Source:
    """One file: where it is published, at which commit, and the SHA-256 of its bytes."""

    repository: str
    commit: str
    path: str
    sha256: str

    def file(self, folder: Path) -> Path:
        """The path of the file under `folder`, after a check of its bytes."""
        file = folder / self.repository / self.path
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != self.sha256:
            raise ValueError(f"{file} has SHA-256 {found}, not {self.sha256} of {self.repository} at {self.commit}")
        return file


FLA, FLA_COMMIT = "fla-org/flash-linear-attention", "bc3b101dcb713ddc5bd8924b66754eb68b5ccf89"
REPO, REPO_COMMIT = "SakanaAI/repo", "1508a73ac7303e0bce6404cbf0aa8ddba8f08578"
GATED, GATED_COMMIT = "qiuzh20/gated_attention", "49645df63aafe9e680bc44a9c0ca280d4aefa8e9"

FORGETTING = Source(
    FLA,
    FLA_COMMIT,
    "fla/ops/forgetting_attn/naive.py",
    "4433d7c34d599e14cc575db9385bc455e0c3321b770588f9810238a1a4fe4f53",
)
PATH_ATTENTION = Source(
    FLA, FLA_COMMIT, "fla/ops/path_attn/naive.py", "e10b0a89951c174ab82096eb92ee17bbf211dd8060fa7e84a62a3b140396f659"
)
CABLE = Source(
    "axiomlab/Cable",
    "8bc6b83e872899c50827e6940344350c37fadaa8",
    "src/Cable.py",
    "3c1661be850248a071683af5b5cee1034cf99d91b78cee2fe26ff349938697d4",
)
REPO_MODEL = Source(
    REPO,
    REPO_COMMIT,
    "transformers/src/transformers/models/olmo2/modeling_olmo2.py",
    "f90bb3d5eb55576a750f6ea7be3c59282e2e0b574f2aac78fa35a432df69de26",
)
REPO_CONFIG = Source(
    REPO,
    REPO_COMMIT,
    "transformers/src/transformers/models/olmo2/configuration_olmo2.py",
    "efe3054f4826b06df293735385e7ac5b37b7e8964c8044a3c1d42d53ca357b86",
)
REPO_MODES = Source(
    REPO,
    REPO_COMMIT,
    "transformers/src/transformers/custom_modules/pe_utils.py",
    "60006511a567e42816de4c0325674b8af5cf1d6dd2a863cd631666820c0a3fa9",
)
SELECTIVE_ROPE = Source(
    "timurcarstensen/selective-rope",
    "d12e82503de1b5062870bd52ded9b4f364ce0ad3",
    "src/selective_rope/modules/rotary.py",
    "d9c7097a59ef682500d58865978425c5d33926dc0872ae736dc39ca9185203c3",
)
STICK_BREAKING = Source(
    "shawntan/stickbreaking-attention",
    "3147a3841b025a31d271fc8f873120ff6fa0461b",
    "stickbreaking_attention/sb_ref.py",
    "2241503a668415eac7c23219772a1fdcf214520921ddb2c8e2257d9c5f110e2d",
)
ROPE_VIT = Source(
    "naver-ai/rope-vit",
    "ce85c2e56c5ff3aadc10e1a849872081f7b86293",
    "self-attn/rope_self_attn.py",
    "68b8a483622946e7822a9f2821345104cde586ee6c9d59543b2b481d8f89840d",
)
DAPE = Source(
    "chuanyang-Zheng/DAPE",
    "bde344a844f2bd1f498b2bac70240dcda41c50c1",
    "DAPE.py",
    "97b5cc8e3717de91f0b34a9c4257bfdfac1be8f8f9bc75ae9b5d749c2aefbd24",
)
GATED_MODEL = Source(
    GATED, GATED_COMMIT, "modeling_qwen3.py", "49ff727cca160fb180c50b60891e16e91bb455641489f3dd17bce38434e590ae"
)
GATED_CONFIG = Source(
    GATED, GATED_COMMIT, "configuration_qwen3.py", "899072d90e611ff24c4e6d6689b745385a931d85ff81a851f4dc52ee614ef2ad"
)
SCALABLE_SOFTMAX = Source(
    "gdevos010/Scalable-Softmax",
    "108e969f50956b47f134e9712a0fa7bdf521718d",
    "src/scalable_softmax.py",
    "795a2a0ab33c6bb2ec8c78865596a2744d5d781b28427417ec2755c877dda78c",
)
SELF_EXTEND = Source(
    "datamllab/LongLM",
    "cdbbb061dc76438c46d7e1ddc500f8e4bf255574",
    "self_extend_patch/Llama.py",
    "5a9b4b6f91094b6c7301b4f8eb341de8cc95102ba5c8b60d106284be81b56f12",
)
REROPE = Source(
    "bojone/rerope",
    "acfe78840357a94d0bb504cb8865eeaa752df1a6",
    "rerope_patch.py",
    "5c68798f2af0086b008c4dd297137e36bd72d96ce13199fcf4491635c0d4dfd8",
)
LEAKY_REROPE = Source(
    "bojone/rerope",
    "acfe78840357a94d0bb504cb8865eeaa752df1a6",
    "leaky_rerope_patch.py",
    "9364b88d75bf53caef2dcb18eac0c73de5cfd4ea2c497f4dbe72204870b3ae96",
)
LAMBDA_ATTENTION = Source(
    "Glaciohound/LM-Infinite",
    "a0ce64c6b7ae54f6059668c899603a6eb0c94c18",
    "models/lambda_attention.py",
    "382d12992bc840b2ca4eebe5bc1c778cf10e6ca082bff1d1297ee96d1038f54c",
)
LM_INFINITE = Source(
    "Glaciohound/LM-Infinite",
    "a0ce64c6b7ae54f6059668c899603a6eb0c94c18",
    "models/llama.py",
    "aeb4047c1c6c76234359c59cf14258e9d50d03b3aaf516890b844f575da15ce3",
)
DUAL_CHUNK = Source(
    "HKUNLP/ChunkLlama",
    "2add4d7c99d24dcc1ab03414cc602abb2e28cf2c",
    "chunkllama_attn_replace.py",
    "3f464feebe1e5466d241e42c719b2ef74be81b8e7a6faef06e848d71c8b93d93",
)
STREAMING_CACHE = Source(
    "mit-han-lab/streaming-llm",
    "2e5042606d69933d88fbf909bd77907456b9b4dd",
    "streaming_llm/kv_cache.py",
    "9264553f7046c026b02848fc192710e6d737cb7e08aa45a01ddf43d59ea6e8fb",
)
STREAMING_LLAMA = Source(
    "mit-han-lab/streaming-llm",
    "2e5042606d69933d88fbf909bd77907456b9b4dd",
    "streaming_llm/pos_shift/modify_llama.py",
    "a5bef7ba3ab334f49b3e78318d6c6eaa257a04ce9a2a1e2bfea1f0fba6eb1bb9",
)
RESONANCE = Source(
    "sheryc/resonance_rope",
    "4a7f5a703b2e96756939db51916937ab7c5ab3a9",
    "llama_finetuning/scaled_rope/LlamaYaRNScaledResonanceRotaryEmbedding.py",
    "d674dfe9072e540ce122063e311f4578ccb9b6c8b0ef0aab656bd2576002d114",
)


def module(name: str, **contents: Any) -> ModuleType:
    """A module of the given contents, to stand in `sys.modules` for one that is not installed."""
    made = ModuleType(name)
    made.__path__ = []
    for key, value in contents.items():
        setattr(made, key, value)
    return made


@contextlib.contextmanager
def installed(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Let imports find `modules`."""
    with mock.patch.dict(sys.modules, {each.__name__: each for each in modules}):
        yield


def load(source: Source, folder: Path, name: str) -> ModuleType:
    """The file as module `name`; relative imports are those of that name."""
    spec = importlib.util.spec_from_file_location(name, source.file(folder))
    if spec is None or spec.loader is None:
        raise ImportError(name)
    made = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {name: made}):
        spec.loader.exec_module(made)
    return made
