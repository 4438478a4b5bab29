"""Times that can be compared on a machine that others use too: interleaved, and medians of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Job:
    """Something to time several times over.

    Attributes:
        run: Called with the number of the repetition; must not return before its work is done. What it returns is
            dropped, unless it is a float: then it has measured its own seconds (in another process).
        times: How often.
        warm: Whether to call it once beforehand, untimed (compilation, caches).
    """

    run: Callable[[int], Any]
    times: int = 5
    warm: bool = True


@dataclass(frozen=True)
class Stopwatch:
    """A way to measure seconds.

    Attributes:
        name: "wall", or "cpu": seconds of processor time, which a busy machine hardly changes.
        say: Told what is going on.
    """

    name: str = "wall"
    say: Callable[[str], None] = lambda _: None

    def seconds(self, work: Callable[[], Any]) -> float:
        """How long ``work`` takes."""
        now = CLOCKS[self.name]
        began = now()
        own = work()
        return own if isinstance(own, float) else now() - began

    def interleaved(self, jobs: dict[str, Job]) -> dict[str, np.ndarray]:
        """Time all jobs, their repetitions spread evenly over the same stretch of time.

        Returns:
            The seconds of each repetition, by name.
        """
        for name, job in jobs.items():
            if job.warm:
                self.say(f"{name}: first call")
                job.run(0)
        turns = sorted(((i + 0.5) / job.times, name, i) for name, job in jobs.items() for i in range(job.times))
        seconds = {name: np.empty(job.times) for name, job in jobs.items()}
        for _, name, i in turns:
            self.say(f"{name}: {i + 1} of {jobs[name].times}")
            seconds[name][i] = self.seconds(lambda name=name, i=i: jobs[name].run(i))
        return seconds

    def fastest(self, candidates: dict[str, Callable[[], Any]], times: int = 5) -> str:
        """The name of the quickest of several ways to do the same."""
        seconds = self.interleaved({name: Job(lambda _, work=work: work(), times) for name, work in candidates.items()})
        return min(seconds, key=lambda name: float(np.median(seconds[name])))
