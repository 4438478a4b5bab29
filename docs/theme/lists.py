"""Lists whose items go on under their text, two or three spaces in, as every other reader of Markdown has them."""

from __future__ import annotations

from typing import Any

from markdown import Extension, Markdown
from markdown.blockprocessors import ListIndentProcessor, OListProcessor, UListProcessor

__all__ = ["makeExtension"]

_INDENT = 2


class Lists(Extension):
    """Python-Markdown wants four spaces."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Make the processors of lists anew, with the smaller indent."""
        before, md.tab_length = md.tab_length, _INDENT
        kinds = (("indent", 90, ListIndentProcessor), ("olist", 40, OListProcessor), ("ulist", 30, UListProcessor))
        for name, priority, kind in kinds:
            md.parser.blockprocessors.register(kind(md.parser), name, priority)
        md.tab_length = before


def makeExtension(**options: Any) -> Lists:
    """Make the extension: the name that Python-Markdown looks for."""
    return Lists(**options)
