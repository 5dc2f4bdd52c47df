"""Workers of torch's DataLoader that are spawned: each imports torch, for 3 s of a processor."""

from tests.loading.test_torch import check_dataset_by_index, check_pass


def test_spawned_workers_cover_a_pass_once_between_them(buffer):
    check_pass(buffer, 2, "spawn")


def test_a_dataset_by_index_is_shuffled_and_collated_by_spawned_workers(buffer):
    check_dataset_by_index(buffer, 2, "spawn")
