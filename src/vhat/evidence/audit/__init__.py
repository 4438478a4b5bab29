"""Does the theory apply to this fitted model? One line an assumption: a number, a threshold, a verdict, a remedy."""

from vhat.evidence.audit.audit import audit_fit, moved_by
from vhat.evidence.audit.result import Audit, Line, Verdict
from vhat.evidence.audit.stationarity import stationarity_line

__all__ = ["Audit", "Line", "Verdict", "audit_fit", "moved_by", "stationarity_line"]
