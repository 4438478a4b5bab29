"""What the library warns of while a report is made."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from vhat.errors import VhatWarning, outside

__all__ = ["heard"]


@contextmanager
def heard() -> Iterator[list[str]]:
    """Collect what the library warns of, once each, and warn of it again."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", VhatWarning)
        yield said
    ours = {str(each.message): each for each in recorded if isinstance(each.message, VhatWarning)}
    said.extend(ours)
    for each in recorded:
        if not isinstance(each.message, VhatWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    for each in ours.values():
        warnings.warn(each.message, stacklevel=outside())
