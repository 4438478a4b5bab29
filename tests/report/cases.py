"""Fitted models to report on: quick, without a framework."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import numpy as np
import pandas as pd

import vhat
from vhat.fit import Curve
from vhat.report import Options, Subject

HOSTILE = ("<script>alert('x')</script>", "a \"quoted\" & 'name'", "</script><img src=x onerror=alert(1)>")


def bent(theta, X):
    X = np.asarray(X)
    return theta[0] + theta[1] * np.tanh(theta[2] * X[:, 0]) + theta[3] * X[:, 1] * X[:, 2]


def table(rows, seed, columns=HOSTILE):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3))
    y = 100 * bent([1.0, 2.0, 1.5, 0.5], X) + 20 * rng.normal(size=rows)
    return pd.DataFrame(X, columns=list(columns)), y


def bent_fit(rows=60, columns=HOSTILE):
    X, y = table(rows, 0, columns)
    return vhat.from_numpy(bent, [90.0, 180.0, 1.2, 40.0], X, y, weight_decay=1e-6).polish()


def curve():
    return Curve(
        weight_decay=np.array([0.01, 0.1, 1.0]),
        score=np.array([3.0, 2.5, 2.75]),
        standard_error=np.array([0.2, 0.15, 0.1]),
        relative_gradient=np.array([1e-12, 1e-12, 1e-12]),
        status=np.array(["converged"] * 3, dtype=object),
        remark=np.array(["", "", "a remark"], dtype=object),
        measure="mean Winkler score of 95% intervals, leave-one-out",
    )


def subject(rows=60):
    return Subject(bent_fit(rows), training=(("Network", "<b>none</b>"),), curve=curve())


def options(**changed):
    return Options(**{"held_out": table(30, 1), "response": "<i>yield</i> (kg)"} | changed)


class Elements(HTMLParser):
    """The elements of a page, and the text of its scripts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.found and self.found[-1][0] == "script":
            self.scripts[-1] += data


def data_of(path):
    """The data inside a page, read as a browser would."""
    return json.loads(Elements(path.read_text()).scripts[0])
