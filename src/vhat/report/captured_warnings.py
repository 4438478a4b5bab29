"""Collect warnings of the library during the making of a report."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from vhat.errors import VhatWarning, outside

__all__ = ["collect_warnings"]


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Yield a list that holds each warning of vhat once after the block, and issue all warnings again.

    Warnings of other libraries are issued again unchanged, and are not in the list.
    """
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always", VhatWarning)
        yield texts
    ours = {str(each.message): each for each in recorded if isinstance(each.message, VhatWarning)}
    texts.extend(ours)
    for each in recorded:
        if not isinstance(each.message, VhatWarning):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    for each in ours.values():
        warnings.warn(each.message, stacklevel=outside())
