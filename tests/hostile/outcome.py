"""What came of a hostile case, and whether that is allowed."""

from __future__ import annotations

import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import vhat

SECONDS = 60
"""Of CPU time, after which a case counts as hanging: a busy machine is no hang."""
PATIENCE = 900
"""Seconds on the clock after which one counts as hanging that computes nothing, such as one that waits for a pipe."""


@dataclass(frozen=True)
class Outcome:
    """What came of a case.

    Attributes:
        name: ``"refused"``, ``"answered"``, ``"same"``, ``"warned"``; failures are ``"wrong"``, ``"raw"``, ``"mute"``,
            ``"hang"``.
        told: The message, or what is wrong.
    """

    name: str
    told: str = ""

    @property
    def fails(self) -> bool:
        return self.name in ("wrong", "raw", "mute", "hang")


class _Hang(BaseException):
    """The time is up."""


def _ring(*_: Any) -> None:
    raise _Hang


def limited(
    ask: Callable[[], np.ndarray], wanted: np.ndarray | None, known: Mapping[str, np.ndarray] | None = None
) -> Outcome:
    """Call a function and judge what comes.

    Args:
        ask: Returns limits of intervals.
        wanted: What it must return where it returns; None where anything finite, or NaN with a warning, will do.
        known: Names of answers that are told apart.
    """
    alarm = threading.current_thread() is threading.main_thread()
    if alarm:
        before = {number: signal.signal(number, _ring) for number in (signal.SIGALRM, signal.SIGPROF)}
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = np.asarray(ask(), dtype=np.float64)
    except _Hang:
        return Outcome("hang", f"after {SECONDS} seconds of CPU time, or {PATIENCE} on the clock")
    except vhat.VhatError as error:
        words = str(error)
        return Outcome("refused" if len(words.split()) >= 4 else "mute", f"{type(error).__name__}: {words}")
    except Exception as error:
        return Outcome("raw", f"{type(error).__name__}: {error} {_where(error)}")
    finally:
        if alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.setitimer(signal.ITIMER_PROF, 0)
            for number, handler in before.items():
                signal.signal(number, handler)
    return _judged(found, wanted, known or {}, [str(each.message) for each in said])


def _judged(found: np.ndarray, wanted: Any, known: Mapping[str, np.ndarray], said: list[str]) -> Outcome:
    for name, answer in known.items():
        if found.shape == answer.shape and np.allclose(found, answer, rtol=1e-6, atol=0):
            return Outcome(name)
    if wanted is not None:
        if found.shape == np.shape(wanted) and np.allclose(found, wanted, rtol=1e-6, atol=1e-9):
            return Outcome("answered")
        return Outcome("wrong", f"{found.tolist()} and not {np.asarray(wanted).tolist()}")
    if np.isfinite(found).all():
        return Outcome("answered")
    return Outcome("warned", said[0]) if said else Outcome("mute", f"{found.tolist()} without a warning")


def _where(error: BaseException) -> str:
    """The last line of the library that the error passed."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if "/vhat/" in frame.filename]
    return f"({own[-1].filename.rpartition('/src/')[2]}:{own[-1].lineno})" if own else ""
