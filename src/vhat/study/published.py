"""The numbers of the paper's two tables: mean and standard deviation over its trials."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["PUBLISHED", "PUBLISHED_TRIALS", "Value"]

PUBLISHED_TRIALS = 5
"""Number of trials in the paper."""


class Value(NamedTuple):
    """A mean over trials.

    Attributes:
        mean: The mean.
        sd: Standard deviation over the trials; None for a single trial.
    """

    mean: float
    sd: float | None


_COLUMNS = ("mse", "mean width", "median width", "winkler", "coverage")

# d, method, n, then mean and standard deviation of each column; coverage in percent.
_ROWS: tuple[tuple[int, str, int, tuple[float, ...]], ...] = (
    (10, "proposed", 100, (0.0312, 0.0046, 2.1295, 1.2149, 0.5162, 0.0920, 2.3052, 1.0058, 99.60, 0.49)),
    (10, "proposed", 1000, (0.0246, 0.0054, 0.4846, 0.0120, 0.2418, 0.0131, 2.9416, 1.1417, 89.80, 2.32)),
    (10, "proposed", 10000, (0.0270, 0.0043, 1.0030, 0.5659, 0.3010, 0.0840, 2.1816, 1.1668, 96.00, 4.77)),
    (10, "proposed", 20000, (0.0233, 0.0049, 0.6623, 0.3477, 0.2333, 0.0891, 3.5615, 2.3433, 89.60, 10.67)),
    (10, "bootstrap", 100, (0.0329, 0.0059, 0.2356, 0.0246, 0.1132, 0.0125, 9.7120, 0.7665, 62.25, 4.44)),
    (10, "bootstrap", 1000, (0.0246, 0.0022, 0.1724, 0.0063, 0.0820, 0.0036, 10.4633, 0.9745, 56.60, 4.45)),
    (10, "bootstrap", 10000, (0.0332, 0.0027, 0.3059, 0.0077, 0.1453, 0.0041, 5.6643, 0.9700, 82.80, 4.31)),
    (10, "bootstrap", 20000, (0.0270, 0.0033, 0.2964, 0.0072, 0.1401, 0.0035, 5.4321, 0.6177, 83.00, 2.10)),
    (100, "proposed", 100, (0.0734, 0.0071, 3.4774, 4.5786, 0.7123, 0.7343, 8.2162, 2.3118, 84.40, 9.52)),
    (100, "proposed", 1000, (0.0406, 0.0053, 0.6456, 0.1690, 0.2281, 0.0658, 7.6975, 1.2885, 79.60, 2.73)),
    (100, "proposed", 10000, (0.0279, 0.0027, 0.7453, 0.3018, 0.3425, 0.0777, 1.9889, 0.2441, 96.00, 2.19)),
    (100, "proposed", 20000, (0.0268, 0.0035, 0.6712, 0.1748, 0.3042, 0.0083, 1.7652, 0.3218, 94.40, 1.36)),
    (100, "bootstrap", 100, (0.0666, 0.0053, 0.2128, 0.0141, 0.1029, 0.0077, 23.5971, 3.0576, 31.20, 4.79)),
    (100, "bootstrap", 1000, (0.0406, 0.0067, 0.1773, 0.0072, 0.0856, 0.0044, 18.0165, 1.7836, 42.20, 7.39)),
    (100, "bootstrap", 10000, (0.0345, 0.0035, 0.2348, 0.0048, 0.1141, 0.0013, 11.1751, 1.4537, 59.20, 4.45)),
    (100, "bootstrap", 20000, (0.0309, 0.0060, 0.2254, 0.0030, 0.1091, 0.0024, 10.4342, 2.1573, 60.80, 5.78)),
)


def _by_column(numbers: tuple[float, ...]) -> dict[str, Value]:
    """Return the value of each column from means and standard deviations in turn."""
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    return {name: Value(*pair) for name, pair in zip(_COLUMNS, pairs, strict=True)}


PUBLISHED: dict[tuple[int, str, int], dict[str, Value]] = {
    (d, method, n): _by_column(numbers) for d, method, n, numbers in _ROWS
}
"""The value of each column, by dimension, method and n."""
