"""Rows that may be sampled: not used up, not stale, of the session, not in quarantine."""
