"""Connections, transactions, retries and errors of a database."""
