"""A page for each encoding: its formula, a picture, who uses it, what committed results say of it, and its class."""

import pathlib
import re

import attnjax as aj
from attnjax import registry
from experiments.first_look import HERE, THERE, curve
from scripts.site import results

NOBODY = "no published model that we know of"
USED_BY = {
    "nope": "SmolLM3 and Llama 4, every fourth layer (`no_rope_layer_interval` in huggingface/transformers)",
    "sinusoidal": "the Transformer of 2017 (arXiv:1706.03762)",
    "learned": "BERT (arXiv:1810.04805), GPT-2 (openai/gpt-2)",
    "rope": (
        "LLaMA 2 and 3 (arXiv:2307.09288, arXiv:2407.21783), Mistral (arXiv:2310.06825), Qwen2 (arXiv:2407.10671), "
        "Qwen3 (arXiv:2505.09388), SmolLM3; GPT-NeoX (arXiv:2204.06745) and Pythia (arXiv:2304.01373) on a quarter of each head"
    ),
    "xpos": "Kosmos-1 (arXiv:2302.14045)",
    "alibi": "BLOOM (arXiv:2211.05100), MPT (`alibi` in huggingface/transformers)",
    "t5": "T5 (arXiv:1910.10683)",
    "kerple": NOBODY,
    "fire": NOBODY,
    "transformer_xl": "Transformer-XL (arXiv:1901.02860), XLNet (arXiv:1906.08237)",
    "cope": NOBODY,
    "sandwich": NOBODY,
    "pope": NOBODY,
    "fox": "models of its authors, of 760 million parameters (zhixuan-lin/forgetting-transformer)",
    "cable": NOBODY,
    "repo": "OLMo-2 with 1 billion parameters, trained further by its authors (SakanaAI/repo)",
    "selective_rope": NOBODY,
    "ssmax": f"{NOBODY}; TabICLv2 (arXiv:2602.11139) has a variant whose scale depends on the query",
    "llama4_temperature": (
        "Llama 4 in its layers without RoPE, Ministral 3 in all (`attn_temperature_tuning` and `llama_4_scaling_beta` in "
        "huggingface/transformers)"
    ),
    "axial_rope": "its authors' vision transformers `rope_axial_deit`, `swin_rope_axial` (arXiv:2403.13298, naver-ai/rope-vit)",
    "mixed_rope": "its authors' vision transformers `rope_mixed_deit`, `swin_rope_mixed` (arXiv:2403.13298, naver-ai/rope-vit)",
    "mrope": "Qwen2-VL (arXiv:2409.12191)",
    "dape": NOBODY,
    "stick_breaking": "a model of its authors, of 3 billion parameters (shawntan/stickbreaking-attention)",
    "path": NOBODY,
    "self_extend": f"{NOBODY}; its authors put it on LLaMA 2, Mistral, Phi-2 and Gemma (datamllab/LongLM)",
    "rerope": NOBODY,
    "leaky_rerope": NOBODY,
    "dual_chunk": (
        "Qwen2.5-1M (arXiv:2501.15383; `dual_chunk_attention_config` in the config.json of Qwen/Qwen2.5-14B-Instruct-1M)"
    ),
    "lm_infinite": NOBODY,
    "streaming_llm": NOBODY,
    "log_n": "Qwen-7B past its trained length (tech_memo.md in QwenLM/Qwen)",
}
"""Published models, with the paper or the repository that shows it. Those of a method's authors count where weights are out."""
OPTIONS = {
    "learned": {"length": 2048},
    "self_extend": {"group": 8, "window": 64},
    "rerope": {"window": 64},
    "leaky_rerope": {"window": 64, "factor": 8},
    "dual_chunk": {"chunk": 96, "local": 32},
    "lm_infinite": {"first": 4, "window": 64},
    "streaming_llm": {"first": 4, "window": 64},
}
"""Of the pictures: positions that the table of `Learned` has, and windows small enough to be seen."""
SCALES = "The encoding multiplies queries: where all keys are equal, all weights are equal too."
NOTES = {
    "nope": "Without an encoding equal tokens have equal weights.",
    "ssmax": SCALES,
    "llama4_temperature": SCALES,
    "log_n": SCALES,
    "repo": "Equal tokens have equal predicted positions here, so nothing tells them apart.",
    "fire": "The distance is divided by the position of the query, so the two curves differ.",
}
"""What the picture of an encoding needs a word on."""
FLOOR = "Weights below e^-87, the smallest that float32 holds, are drawn there."
DARK, LIGHT = "#0072B2", "#D55E00"

INTERFACE = "The interface that all encodings fill in"
"""The heading above the docstring of the interface, which is that of NoPE's module."""

PAGE = """# {label}

{summary}.

| in configs | `model.encoding={name}` |
|---|---|
{facts}

![Log attention weight against distance, at two places]({name}.png)

*Log attention weight of a query on a key n positions back, where all tokens are equal, with the query at position {here}
(solid) and {there:,} (dashed). Where the curves coincide, the weight depends on the distance and not on the place. Learned
parameters are initial ones with a little noise.{note}*

## What our tables say

{results}

## {heading}

::: {module}
    options:
      members: false
      show_root_heading: false
      show_root_toc_entry: false

## The class

::: {module}.{cls}
    options:
      heading_level: 3
      show_root_heading: true
      show_root_full_path: false
"""


def write(root: pathlib.Path, staged: pathlib.Path) -> dict[str, str]:
    """Write a page and a picture for each encoding; returns the titles of the pages by their names."""
    (staged / "encodings").mkdir()
    facts = table(root)
    for name in registry.ENCODINGS:
        (staged / "encodings" / f"{name}.md").write_text(page(root, name, facts[name]), encoding="utf-8")
        draw(name, staged / "encodings" / f"{name}.png")
    return {name: row.label for name, row in registry.ENCODINGS.items()}


def page(root: pathlib.Path, name: str, facts: list[tuple[str, str]]) -> str:
    """The page of an encoding, which has its row of `table` and who uses it."""
    row = registry.ENCODINGS[name]
    module, cls = row.path.split(":")
    given = {**dict(facts), "used by": USED_BY[name]}
    return PAGE.format(
        label=row.label,
        summary=(getattr(aj, cls).__doc__ or "").split("\n")[0].rstrip("."),
        name=name,
        facts="\n".join(f"| {key} | {value} |" for key, value in given.items() if value),
        here=HERE,
        there=THERE,
        note=note(name, cls),
        heading=INTERFACE if module == "attnjax.positions.base" else "Formula, parameters, references",
        results=results.section(name),
        module=module,
        cls=cls,
    )


def note(name: str, cls: str) -> str:
    """What stands below the picture of an encoding beside what stands below all: options, and what would mislead.

    Example:
      >>> note("rerope", "ReRoPE")
      ' Drawn for `ReRoPE(window=64)`.'
    """
    options = ", ".join(f"{key}={value}" for key, value in OPTIONS.get(name, {}).items())
    found = [f"Drawn for `{cls}({options})`." if options else "", NOTES.get(name, "")]
    if curve(aj.encoding(name, **OPTIONS.get(name, {})), HERE).min() < -87:
        found.append(FLOOR)
    return "".join(f" {one}" for one in found if one)


def table(root: pathlib.Path) -> dict[str, list[tuple[str, str]]]:
    """The columns of the table of docs/encodings.md that begins with the encoding and its key, by the keys of its rows.

    Raises ValueError where an encoding has no row.
    """
    page = (root / "docs" / "encodings.md").read_text(encoding="utf-8")
    lines = page[page.index("| encoding | key |") :].partition("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header, found = rows[0], {}
    for row in rows[2:]:
        for key in re.findall(r"`(\w+)`", row[1]):
            pairs = zip(header, row, strict=True)
            found[key] = [(name, value) for name, value in pairs if name not in ("encoding", "key")]
    if missing := [name for name in registry.ENCODINGS if name not in found]:
        raise ValueError(f"docs/encodings.md has no row for {', '.join(missing)}")
    return found


def draw(name: str, path: pathlib.Path) -> None:
    """The picture of a page: log attention weight against distance at two places."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    encoding = aj.encoding(name, **OPTIONS.get(name, {}))
    fig, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
    axis.plot(curve(encoding, HERE), color=DARK, lw=2.2, label=f"query at position {HERE:,}")
    axis.plot(curve(encoding, THERE), color=LIGHT, lw=1.0, ls="--", label=f"query at position {THERE:,}")
    axis.set_xlabel("distance n = query position - key position")
    axis.set_ylabel("log attention weight")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    fig.savefig(path, dpi=110)
    plt.close(fig)
