"""Batches for a training loop, one after the other: drawn, or in
passes, resumable, fetched ahead.
"""
