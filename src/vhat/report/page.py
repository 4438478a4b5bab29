"""From plain data to one self-contained file: nothing is fetched, and nothing in the data is ever read as code."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from vhat.atomic_files import replacing
from vhat.errors import InputError
from vhat.report.contents import collect
from vhat.report.numbers import readable, sentence, share, short, told
from vhat.report.options import Options, Subject

__all__ = ["refuse_existing", "render", "write"]


def write(subject: Subject, path: str | os.PathLike[str], options: Options, *, force: bool = False) -> Path:
    """Write a report.

    Args:
        subject: What it is about.
        path: The file, such as ``"report.html"``.
        options: What is asked.
        force: Write over a file that is there.

    Returns:
        The file.

    Raises:
        InputError: For a file that is there already or cannot be written, and as :func:`vhat.report.collect`.
    """
    target = refuse_existing(path, force=force)
    content = render(collect(subject, options)).encode()
    refuse_existing(path, force=force)  # again: the intervals may have taken hours
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
    """Return the path, before any work is done for it.

    Raises:
        InputError: When it is a directory, lies in none, or is there already.
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
    """Whether this is a device or a pipe: it is written to, and never replaced by a file."""
    return path.exists() and not path.is_file()


def render(page: dict[str, Any]) -> str:
    """Return the page of what :func:`vhat.report.collect` has worked out."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("vhat.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short, "told": told, "share": share, "percent": _percent, "sentence": sentence}
    environment.globals |= {"readable": readable}
    parts = {name: Markup(_part(file)) for name, file in _PARTS.items()}  # files of this package
    return environment.get_template("page.html").render(page=page, data=Markup(_inline(page)), **parts)


_FILES = ("style.css", "numbers.js", "scales.js", "chart.js", "quality.js", "figures.js")
_PARTS = {name.partition(".")[0]: name for name in _FILES}


@cache
def _part(file: str) -> str:
    return (Path(__file__).parent / "page" / file).read_text(encoding="utf-8")


def _inline(page: dict[str, Any]) -> str:
    """Return JSON that may stand inside a script element: no character of it opens or closes a tag."""
    text = json.dumps(page, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.3g}%"
