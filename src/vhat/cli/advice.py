"""Translate advice of the library, which names Python calls, into commands and options of the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["AUDIT", "MESSAGES", "in_options"]

MESSAGES: Mapping[str, str] = MappingProxyType(
    {
        "network.calibrate(X_held_out, y_held_out) calibrates": "vhat calibrate MODEL HELD_OUT.csv calibrates",
        'bound="isoperimetric" asks': "--bound isoperimetric asks",
        "observation_noise= says": "--observation-noise says",
        "calibrate() goes back to leave-one-out": "vhat calibrate MODEL, without a table, goes back to leave-one-out",
        "Give held_out= other rows.": "Give --held-out other rows.",
        "or use calibrate('loo').": "or leave vhat calibrate out: vhat fit has calibrated by leave-one-out.",
        "Give smaller hidden_layer_sizes.": "Give a smaller --hidden.",
        "noise= was given": "--noise was given",
        'Leave noise= out; or ask for bound="isoperimetric"; or calibrate with it, network.fitted_.calibrate(X, y, '
        "noise=...).interval(X).": "Leave --noise out, or ask for --bound isoperimetric.",
        "Give noise=, from replicates": "Give --noise, from replicates",
        "raise weight_decay, or take fewer units": "fit with more --weight-decay, or fewer units (--hidden)",
    }
)
"""Python expressions in errors and warnings, and what to type on the command line instead."""
AUDIT: Mapping[str, str] = MappingProxyType(
    {
        "audit(refits=10)": "--refits 10",
        " Where training was stopped early, fitted.linearised(validation=(X, y)) takes the network as it is. Where it "
        "was to reach a minimum, train longer or call fitted.polish().": " Fit with --recipe minimum.",
        "fitted.linearised(validation=(X, y)) takes the model as it is.": "Fit with --activation tanh and --recipe "
        "minimum.",
        " Pass the optimiser's weight_decay all the same: linearised() takes its proportions between parameters only, "
        "and finds the size of lam itself.": "",
        "bound='asymptotic'": "--bound asymptotic",
        'Give noise=, one number per row; or fit with sample_weight=1/noise^2 and noise="weights".': "Add a "
        "column of 1/noise^2, fit with --weights COLUMN, and give --noise weights.",
        "fitted.calibrate(...)": "vhat calibrate",
        "noise=": "--noise",
        "weight_decay": "--weight-decay",
    }
)
"""Python expressions in the lines of an audit, and what to type on the command line instead."""


def in_options(advice: str, names: Mapping[str, str] = MESSAGES) -> str:
    """Return advice with its Python calls replaced by commands and options.

    Args:
        advice: Sentences of the library, written for users of Python.
        names: Python expressions and their replacements. Of two that match at the same place, the first is used.
    """
    python = re.compile("|".join(map(re.escape, names)))
    return python.sub(lambda found: names[found[0]], advice)
