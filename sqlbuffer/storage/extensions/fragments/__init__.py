"""Fragments in chunks for `compat.minestudio`: added, fetched at random, kept while prepared."""
