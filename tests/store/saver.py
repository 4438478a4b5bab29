"""A process that saves two models in turn until it is killed, and forks a new one of itself for every line it reads."""

from __future__ import annotations

import itertools
import os
import sys

import numpy as np

import vhat

X = np.linspace(0.0, 1.0, 4000)


def line(x, a, b):
    return a + b * x


def model(slope):
    y = 1.0 + slope * X + 0.1 * np.sin(40 * X)
    return vhat.from_curve_fit(line, np.polyfit(X, y, 1)[::-1], X, y)


def main(folder):
    both = [model(2.0), model(-5.0)]
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            for each in itertools.cycle(both):
                each.save(folder)
        print(child, flush=True)
        os.waitpid(child, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
