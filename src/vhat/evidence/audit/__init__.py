"""Does the theory apply to this fitted model? One line an assumption: a number, a threshold, a verdict, a remedy."""

from vhat.evidence.audit.checks import audit_fit, moved_by, stationarity_line
from vhat.evidence.audit.line import Audit, Line

__all__ = ["Audit", "Line", "audit_fit", "moved_by", "stationarity_line"]
