"""Children that are spawned: each imports what it needs, for a second of a processor."""

from tests.storage.database.test_processes import check_children


def test_spawned_children_use_the_buffer_of_their_parent(buffer):
    check_children(buffer, "spawn")
