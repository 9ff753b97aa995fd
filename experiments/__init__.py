"""Experiments: one folder per question, and the first look that README's first command prints."""
