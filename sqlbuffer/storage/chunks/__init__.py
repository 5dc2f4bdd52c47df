"""Typed steps, stored in chunks: up to 256 consecutive steps of one episode, column by column."""
