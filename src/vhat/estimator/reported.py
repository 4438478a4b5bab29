"""What a report says of how an estimator was trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from vhat.report import Subject

if TYPE_CHECKING:
    from vhat.estimator.regressor import NetworkRegressor

__all__ = ["subject"]


def subject(network: NetworkRegressor, remarks: tuple[str, ...] = ()) -> Subject:
    """Return a fitted estimator as the subject of a report, with what is to be said of rows that were kept apart."""
    selection, asked = network.selection_, network.weight_decay
    kind = network.activation if len(network.widths_) > 2 else "linear"
    training = (
        ("Network", f"{' – '.join(map(str, network.widths_))}, {kind}"),
        ("Recipe", network.recipe if isinstance(network.recipe, str) else "a function of the user's"),
        (
            "Weight decay asked for",
            asked if isinstance(asked, str) else ", ".join(f"{lam:g}" for lam in np.ravel(asked)),
        ),
        ("Seed of the fit", f"{network.random_state}"),
        ("Scaling", "standardised inside"),
        ("Row numbers", "from 0, over the rows that were fitted: those of weight zero or kept apart have none"),
    )
    names = getattr(network, "feature_names_in_", None)
    return Subject(
        network.fitted_,
        training,
        columns=None if names is None else tuple(map(str, names)),
        response=network.target_name_,
        curve=None if selection is None else selection.curve,
        score_unit="standard deviations of the response",
        decay=f"The weight decay was set to {network.weight_decay_:.4g}; no others were tried.",
        remarks=remarks,
    )
