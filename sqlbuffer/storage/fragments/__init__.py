"""Fragments in chunks, fetched by chance and kept while they are prepared: what
`compat.minestudio` goes by.
"""
