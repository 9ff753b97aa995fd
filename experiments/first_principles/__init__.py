"""Attention and positions from first principles: every worked example as text, numbers and a figure.

    python -m experiments.first_principles [--out FOLDER] [--only NAME ...]

One module per example: `numbers()` computes, `text(numbers)` says it in Markdown, `draw(numbers)` shows it. What was
computed is kept in `record.json`; README.md and the figures are made from that file alone.
"""
