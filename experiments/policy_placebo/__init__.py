"""Where positions come from, under six encodings, with cells where it must make no difference."""
