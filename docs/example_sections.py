"""An extension of the API pages: shows `Example:` sections of docstrings as code."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the sections as Griffe knows them; it would take `Example:` for a remark."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrites the docstring of one object of the source."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE
            )
