"""Models that a process keeps loaded, so that each worker of a cluster reads a model once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vhat.errors import StoreError
from vhat.store.reading import fingerprint

if TYPE_CHECKING:
    from vhat.estimator import NetworkRegressor

__all__ = ["loaded_model", "one_at_a_time"]

_MOST = 2
"""Models kept at a time: a worker serves one run as a rule, and two while one run replaces another."""
_models: OrderedDict[tuple[str, str], NetworkRegressor] = OrderedDict()
_in_use = threading.Lock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one thread of this process use the models, with one thread of linear algebra.

    A model fills caches as it answers, and Python's warning filters belong to the whole process: threads must take
    turns. The number of threads of a matrix product decides the order of its sums, hence the last bits of every
    number; with one thread they do not depend on where the work is done.
    """
    from threadpoolctl import threadpool_limits  # comes with scikit-learn, which every saved estimator needs

    with _in_use, threadpool_limits(1):
        yield


def loaded_model(directory: str, expected: str | None = None) -> NetworkRegressor:
    """Return a saved model, from memory where this process has read it before.

    Args:
        directory: Where it is saved.
        expected: Its fingerprint, :func:`vhat.store.reading.fingerprint`; None for whatever is there.

    Raises:
        StoreError: When there is no model, or another one than expected.
    """
    from vhat.cli import saved_models

    found = fingerprint(directory)
    _check(directory, found, expected)
    key = (directory, found)
    if key not in _models:
        network = saved_models.load(Path(directory))
        _check(directory, fingerprint(directory), found)
        _models[key] = network
        while len(_models) > _MOST:
            _models.popitem(last=False)
    _models.move_to_end(key)
    return _models[key]


def _check(directory: str, found: str, expected: str | None) -> None:
    if expected is not None and found != expected:
        raise StoreError(f"the model in {directory} was saved anew while it was in use. Ask again.")
