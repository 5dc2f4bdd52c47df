"""Connections and transactions of both databases, and the choice between two implementations."""
