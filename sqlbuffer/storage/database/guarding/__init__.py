"""Connections that only read, and statements of users that change nothing."""
