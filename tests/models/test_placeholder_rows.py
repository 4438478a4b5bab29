"""Problems with placeholder rows in place of training rows, which sketches and the workers of a cluster have."""

from __future__ import annotations

import numpy as np
import torch

import vhat
from vhat.models.placeholder_rows import with_placeholder_rows
from vhat.models.torch import linearised


def test_many_rows_are_differentiated_together_whatever_the_number_of_placeholder_rows(monkeypatch):
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double().eval()
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3))
    problem = vhat.from_torch(module, X, rng.normal(size=(50, 1)), weight_decay=1e-2).problem
    placeholders = with_placeholder_rows(problem)
    counts = []
    original = linearised.row_factors

    def counted(model, theta, rows):
        counts.append(len(rows[0]))
        return original(model, theta, rows)

    monkeypatch.setattr(linearised, "row_factors", counted)
    with placeholders.scope():
        inputs = placeholders.inputs(rng.normal(size=(200, 3)))
        placeholders.factors(inputs)
    assert counts == [200]
