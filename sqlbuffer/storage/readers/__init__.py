"""How steps are read with what lies around them: a reader for each kind of thing that a batch
holds.
"""
