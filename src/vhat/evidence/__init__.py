"""Evidence for an interval: the audit, the way to a certified minimum, leave-one-out, and acquisition."""
