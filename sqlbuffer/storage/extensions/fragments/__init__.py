"""Fragments in groups for `compat.minestudio`: added, fetched at random, kept while prepared."""
