"""What the site needs beyond its pages: files of the repository that pages link to, and formulas as MathML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.theme.mathml import with_formulas

OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "benchmarks/*.md",
    "benchmarks/*.png",
    "demo/*.png",
    "study/results/*.png",
)
"""Files beside docs/ that are part of the site, under the path that they have in the repository."""

_PICTURE = re.compile(r"!\[([^\]]*)\]\(\.\./([^)]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add what lies outside docs/."""
    root = _root(config)
    for found in sorted(path for pattern in OUTSIDE for path in root.glob(pattern)):
        files.append(File.generated(config, found.relative_to(root).as_posix(), abs_src_path=str(found)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001
    """Let links between docs/ and the rest of the repository, as they read there, point to the same files of the site.

    A picture that a command has yet to make is a line that says so.
    """
    if "/" in page.file.src_uri:
        return markdown
    root = _root(config)

    def there(found: re.Match[str]) -> str:
        made = (root / found[2]).exists()
        return f"![{found[1]}]({found[2]})" if made else f"*Not made yet: {found[1]} (`{found[2]}`).*"

    return _PICTURE.sub(there, markdown).replace("](../", "](").replace("](docs/", "](")


def on_page_content(html: str, *, page: Any, config: Any, files: Files) -> str:  # noqa: ARG001
    """Typeset formulas."""
    return with_formulas(html)


def _root(config: Any) -> Path:
    return Path(config.config_file_path).parent
