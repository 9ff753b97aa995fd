"""An extension of Griffe, which reads docstrings for the site: a section "Example:" is read as its "Examples:"."""

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Renames the section in every docstring, so that its code is shown as code."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
