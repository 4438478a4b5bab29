"""Cache of loaded models, so that each worker of a cluster reads a model once."""

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

_MAX_MODELS = 2
"""Number of cached models. A worker normally needs one, and two while one run replaces another."""
_models: OrderedDict[tuple[str, str], NetworkRegressor] = OrderedDict()
_in_use = threading.Lock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let one thread of this process at a time use the models, with one thread of linear algebra.

    Threads must take turns, because a model fills caches during a prediction, and because the warning filters of Python
    belong to the whole process. The number of threads of a matrix product determines the order of its sums, and so the
    last bits of every number. With one thread, the numbers do not depend on the machine that computes them.
    """
    from threadpoolctl import threadpool_limits  # comes with scikit-learn, which every saved estimator needs

    with _in_use, threadpool_limits(1):
        yield


def loaded_model(directory: str, expected: str | None = None) -> NetworkRegressor:
    """Return a saved model, from the cache if this process has read it before.

    Args:
        directory: The directory of the model.
        expected: Its :func:`vhat.store.reading.fingerprint`; None accepts any model.

    Raises:
        StoreError: If there is no model, or not the expected one.
    """
    from vhat.cli import saved_models

    found = fingerprint(directory)
    _check(directory, found, expected)
    key = (directory, found)
    if key not in _models:
        network = saved_models.load(Path(directory))
        _check(directory, fingerprint(directory), found)
        _models[key] = network
        while len(_models) > _MAX_MODELS:
            _models.popitem(last=False)
    _models.move_to_end(key)
    return _models[key]


def _check(directory: str, found: str, expected: str | None) -> None:
    if expected is not None and found != expected:
        raise StoreError(f"the model in {directory} was saved anew while it was in use. Ask again.")
