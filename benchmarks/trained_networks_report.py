"""The tables of :mod:`benchmarks.trained_networks`."""

from __future__ import annotations

from typing import Any

import numpy as np

GOALS = {  # CPU seconds
    "ReLU 50": {"homoscedastic": 15, "heteroscedastic": 30, "heavy-tailed": 40},
    "ReLU 128-64": {"homoscedastic": 15, "heteroscedastic": 90, "heavy-tailed": 150},
}
BANDS = ("linearised", "calibrated", "split conformal")


def markdown(found: list[dict[str, Any]]) -> str:
    """Return both tables and every warning."""
    seeds = 1 + max(each["seed"] for each in found)
    lines = [
        "# Trained networks",
        "",
        "Mini-batch Adam, stopped early. CPU seconds on one thread, in a fresh process, from",
        "`vhat.from_torch(...).linearised(validation=...)` to 1000 intervals for a new response: median, and all.",
        "",
        "| data | network | p | CPU s | goal | of it for lam | all |",
        "|---|---|---|---|---|---|---|",
    ]
    groups = [(name, network) for network in GOALS for name in GOALS[network]]
    chosen = {key: [each for each in found if (each["generator"], each["network"]) == key] for key in groups}
    for (name, network), own in chosen.items():
        timed = [each for each in own if each["seed"] == 0]
        if timed:
            seconds = [each["seconds"] for each in timed]
            lam = np.median([each["of it for lam"] for each in timed])
            lines.append(
                f"| {name} | {network} | {own[0]['p']:,} | {np.median(seconds):.1f} | {GOALS[network][name]} | "
                f"{lam:.1f} | {', '.join(f'{s:.1f}' for s in seconds)} |"
            )
    lines += [
        "",
        f"90% intervals for 1000 new responses, {seeds} draws of data and network: coverage in per cent, and the",
        "Winkler score over that of split conformal prediction with the same 1000 calibration rows (95% bootstrap",
        "interval over draws and test rows).",
        "",
        "| data | network | draws | split conformal | linearised | Winkler ratio | calibrated | Winkler ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (name, network), own in chosen.items():
        scored = [each["scores"] for each in own if each["scores"] is not None]
        if scored:
            covered = {band: 100 * np.mean([each[band]["coverage"] for each in scored]) for band in BANDS}
            ratios = {band: _ratio(scored, band) for band in BANDS[:2]}
            lines.append(
                f"| {name} | {network} | {len(scored)} | {covered[BANDS[2]]:.1f} | {covered[BANDS[0]]:.1f} | "
                f"{ratios[BANDS[0]]} | {covered[BANDS[1]]:.1f} | {ratios[BANDS[1]]} |"
            )
    error = max(each["center error"] for each in found)
    equal = all(each["bit-equal"] for each in found)
    said = sorted({line for each in found for line in each["warnings"]})
    unsure = sum(not each["identified"] for each in found if each["repeat"] == 0)
    lines += [
        "",
        f"Parameters bit-equal in all: {'yes' if equal else 'NO'}. Largest difference of a center from the module in",
        f"double precision: {error:.1e}. lam not identified: {unsure} of {sum(e['repeat'] == 0 for e in found)}.",
        "",
        "Warnings: " + ("none." if not said else ""),
        *(f"- {line}" for line in said),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _ratio(scored: list[dict[str, Any]], band: str) -> str:
    """Return the ratio of Winkler scores to split conformal's, draws and then rows drawn again for its interval."""
    own = np.array([each[band]["winkler"] for each in scored])
    other = np.array([each[BANDS[2]]["winkler"] for each in scored])
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(2000):
        draws = rng.integers(len(own), size=len(own))
        rows = rng.integers(own.shape[1], size=own.shape)
        ratios.append(own[draws[:, None], rows].sum() / other[draws[:, None], rows].sum())
    low, high = np.quantile(ratios, (0.025, 0.975))
    return f"{own.sum() / other.sum():.3f} ({low:.3f} to {high:.3f})"
