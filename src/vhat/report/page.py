"""Render plain data as one self-contained HTML file. It downloads nothing, and never runs its data as code."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from vhat.atomic_files import replacing
from vhat.errors import InputError
from vhat.report.contents import collect
from vhat.report.numbers import distinct, readable, sentence, share, short
from vhat.report.options import Options, Subject

__all__ = ["refuse_existing", "render", "write"]


def write(subject: Subject, path: str | os.PathLike[str], options: Options, *, force: bool = False) -> Path:
    """Write a report.

    Args:
        subject: The fitted model.
        path: The file, such as ``"report.html"``.
        options: The options.
        force: Whether to replace an existing file.

    Returns:
        The path of the file.

    Raises:
        InputError: If the file exists or cannot be written, and as :func:`vhat.report.collect`.
    """
    target = refuse_existing(path, force=force)
    content = render(collect(subject, options)).encode()
    refuse_existing(path, force=force)  # check again: the computation may have taken hours
    try:
        if _is_device(target):
            with target.open("wb") as device:
                device.write(content)
        else:
            with replacing(target) as file:
                file.write(content)
    except OSError as error:
        raise InputError(f"the report cannot be written to {target}: {error.strerror}.") from error
    return target


def refuse_existing(path: str | os.PathLike[str], *, force: bool) -> Path:
    """Check that a file can be written, before any computation, and return its path.

    Raises:
        InputError: If it exists, is a directory, or its directory does not exist.
    """
    if not isinstance(path, str | os.PathLike) or "\0" in str(path):
        raise InputError(f"{path!r} is not the name of a file. Give a path, such as 'report.html'.")
    target = Path(path)
    if target.is_dir():
        raise InputError(f"{target} is a directory; give the name of a file, such as {target / 'report.html'}.")
    if not target.parent.is_dir():
        raise InputError(f"{target.parent} is not a directory, so that {target.name} cannot be written there.")
    if target.exists() and not force and not _is_device(target):
        raise InputError(f"{target} is there already. Give another name, or --force (force=True) to write over it.")
    return target


def _is_device(path: Path) -> bool:
    """Return whether a path is a device or a pipe, which is written to and never replaced by a file."""
    return path.exists() and not path.is_file()


def render(page: dict[str, Any]) -> str:
    """Return the HTML of the data that :func:`vhat.report.collect` returned."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("vhat.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "short": short,
        "distinct": distinct,
        "share": share,
        "percent": _percent,
        "sentence": sentence,
    }
    environment.globals |= {"readable": readable}
    # Markup is not escaped: these are files of this package, and JSON that cannot end its script element.
    parts = {name: Markup(_part(file)) for name, file in _PARTS.items()}
    return environment.get_template("page.html").render(page=page, data=Markup(_inline(page)), **parts)


_FILES = ("style.css", "numbers.js", "scales.js", "chart.js", "quality.js", "figures.js")
_PARTS = {name.partition(".")[0]: name for name in _FILES}
"""Files that are inserted into the template, by their names there."""


@cache
def _part(file: str) -> str:
    """Return the content of a file of the page."""
    return (Path(__file__).parent / "page" / file).read_text(encoding="utf-8")


def _inline(page: dict[str, Any]) -> str:
    """Return JSON that is safe inside a script element: no character of it opens or closes a tag."""
    text = json.dumps(page, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _percent(share: float | None) -> str:
    """Return a share in percent, with three significant digits."""
    return "–" if share is None else f"{100 * share:.3g}%"
