"""What a case leaves behind: named arrays, statuses and words, and how the results of vhat become such entries.

Fields are read by their documented names, so that a result may gain a field without a difference being reported. A
field that a commit does not have is recorded as "absent".
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

__all__ = ["Entry", "Record", "Step", "load", "save"]

Kind = Literal["number", "count", "status", "words", "printed"]
UNIT = 1.0
"""Scale of quantities that are shares of one or relative residuals: rounding at 1e-16 is no difference there."""


@dataclass(frozen=True)
class Entry:
    """One recorded quantity.

    Attributes:
        kind: ``"number"``: an array; ``"count"``: iterations and other work, compared bit for bit only; ``"status"``: a
            text that a program may depend on (statuses, verdicts, types of errors and warnings, names of solvers);
            ``"words"``: a text for people, left out by ``--ignore-words``; ``"printed"``: the same, where rounding may
            change a digit that is shown, so that it is compared bit for bit only.
        value: The array or the text.
        scale: Magnitude below which a number is rounding, for a comparison with a tolerance; 0 takes the largest
            magnitude of the array alone.
    """

    kind: Kind
    value: np.ndarray | str
    scale: float = 0.0


class Record:
    """The entries of one case by name, in the order in which they were made."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[Step]:
        """Record one step of a case; its warnings and its exception become entries, and the case goes on."""
        step = Step(self.entries, name)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                yield step
            except Exception as error:
                step.failed(error)
        step.status("warnings", [type(each.message).__name__ for each in heard])
        step.words("warning texts", "\n".join(str(each.message) for each in heard))


class Step:
    """Writes the entries of one step under the name of the step."""

    def __init__(self, entries: dict[str, Entry], name: str) -> None:
        self._entries = entries
        self._name = name

    def number(self, name: str, value: Any, scale: float = 0.0) -> None:
        """Record an array or a number; None, and a field that is absent, become a status."""
        if value is None or isinstance(value, str):
            self.status(name, value)
            return
        self._add(name, Entry("number", np.array(value), scale))

    def count(self, name: str, value: Any) -> None:
        """Record an amount of work, such as iterations."""
        if isinstance(value, str):
            self.status(name, value)
            return
        self._add(name, Entry("count", np.array(value)))

    def status(self, name: str, value: Any) -> None:
        """Record a text, or an array of texts, that a program may depend on."""
        if value is None or isinstance(value, str):
            self._add(name, Entry("status", str(value)))
            return
        self._add(name, Entry("status", ", ".join(str(each) for each in np.ravel(np.asarray(value)))))

    def words(self, name: str, value: str) -> None:
        """Record a text for people."""
        self._add(name, Entry("words", str(value)))

    def printed(self, name: str, value: Any) -> None:
        """Record how a result prints."""
        self._add(name, Entry("printed", str(value)))

    def failed(self, error: Exception) -> None:
        """Record an exception."""
        self.status("error", type(error).__name__)
        self.words("error text", str(error))

    # -- results of vhat -----------------------------------------------------------------------
    def interval(self, band: Any) -> None:
        """Record an interval."""
        for name in ("center", "lower", "upper", "half_width", "standard_error", "weighted_norm", "noise", "df"):
            self.number(name, _field(band, name))
        for name in ("unsupported", "undetermined"):
            self.number(name, _field(band, name), UNIT)
        self.number("delta", _field(band, "delta"))
        for name in ("status", "bound", "target", "curvature", "solver"):
            self.status(name, _field(band, name))
        tail = _field(band, "tail")
        for name in ("v", "c", "mean", "redraws", "lost"):
            self.number(f"tail {name}", _field(tail, name))
        for name in ("noise_source", "guarantee"):
            self.words(name, _field(band, name))
        self.printed("printed", band)

    def norm(self, found: Any) -> None:
        """Record weighted norms."""
        self.number("value", _field(found, "value"))
        self.number("unsupported", _field(found, "unsupported"), UNIT)
        self.number("residual", _field(found, "residual"), UNIT)
        self.count("steps", _field(found, "steps"))
        for name in ("status", "curvature", "solver"):
            self.status(name, _field(found, name))

    def audit(self, audit: Any) -> None:
        """Record every line of an audit."""
        self.status("lines", [line.name for line in audit])
        self.status("holds", str(audit.holds))
        self.printed("printed", audit)
        for line in audit:
            self.number(f"{line.name}: value", line.value, UNIT)
            self.number(f"{line.name}: threshold", line.threshold)
            self.status(f"{line.name}: verdict", line.verdict)
            self.words(f"{line.name}: remedy", line.remedy)
            self.words(f"{line.name}: meaning", line.meaning)

    def left_out(self, found: Any) -> None:
        """Record leave-one-out predictions."""
        for name in ("prediction", "residual", "weighted_norm"):
            self.number(name, _field(found, name))
        self.number("leverage", _field(found, "leverage"), UNIT)
        self.number("rough", _field(found, "rough"))
        for name in ("status", "curvature", "solver"):
            self.status(name, _field(found, name))

    def polished(self, record: Any) -> None:
        """Record where a polish ended and what it took."""
        self.number("objective", _field(record, "objective"))
        for name in ("gradient_norm", "relative_gradient"):
            self.number(name, _field(record, name), UNIT)
        sign = _field(record, "definiteness")
        self.number("smallest eigenvalue", _field(sign, "value"))
        self.status("definiteness", _field(sign, "verdict"))
        self.status("status", _field(record, "status"))
        for name in ("warmup_steps", "steps", "products", "escapes"):
            self.count(name, _field(record, name))

    def calibrated(self, found: Any) -> None:
        """Record the scores of a calibration and what it claims."""
        for name in ("scores", "repeated", "rough", "finest"):
            self.number(name, _field(found, name))
        self.status("source", _field(found, "source"))
        self.words("guarantee", _field(found, "guarantee"))

    def acquisition(self, found: Any) -> None:
        """Record a choice of points."""
        for name in ("indices", "before", "after", "gains"):
            self.number(name, _field(found, name))
        self.status("status", _field(found, "status"))
        self.words("caveat", _field(found, "caveat"))

    def plan(self, plan: Any) -> None:
        """Record a plan: the solver by its class, the cost, and the text."""
        self.status("solver", type(plan.solver).__name__)
        for name in ("memory", "gradients"):
            self.number(name, _field(plan, name))
        self.words("printed", str(plan))

    def _add(self, name: str, entry: Entry) -> None:
        full = f"{self._name}: {name}"
        if full in self._entries:
            raise KeyError(f"the entry {full!r} was recorded before: a case must name its steps differently.")
        self._entries[full] = entry


def _field(result: Any, name: str) -> Any:
    """Return a field of a result; "absent" where this commit has no such field."""
    return getattr(result, name, "absent")


# -- on disk ---------------------------------------------------------------------------------------


def save(cases: Mapping[str, Mapping[str, Entry]], folder: Path) -> None:
    """Write records as ``entries.json`` and ``arrays.npz``."""
    arrays: dict[str, np.ndarray] = {}
    document: dict[str, dict[str, dict[str, Any]]] = {}
    for case, entries in cases.items():
        document[case] = {}
        for name, entry in entries.items():
            described: dict[str, Any] = {"kind": entry.kind, "scale": entry.scale}
            if isinstance(entry.value, str):
                described["text"] = entry.value
            else:
                described["array"] = f"a{len(arrays)}"
                arrays[described["array"]] = entry.value
            document[case][name] = described
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "arrays.npz", **arrays)  # type: ignore[arg-type]  # keyword names are array names
    (folder / "entries.json").write_text(json.dumps(document), encoding="utf-8")


def load(folder: Path) -> dict[str, dict[str, Entry]]:
    """Read what :func:`save` has written."""
    document = json.loads((folder / "entries.json").read_text(encoding="utf-8"))
    with np.load(folder / "arrays.npz", allow_pickle=False) as arrays:
        return {
            case: {name: _entry(described, arrays) for name, described in entries.items()}
            for case, entries in document.items()
        }


def _entry(described: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Entry:
    value = described["text"] if "text" in described else arrays[described["array"]]
    return Entry(described["kind"], value, described["scale"])
