"""Ids of rows and chunks. No database."""

import uuid

import pytest

from sqlbuffer.steps import uuid7, uuid7s


@pytest.mark.parametrize("ids", [[uuid7()], uuid7s(500)], ids=["one", "many"])
def test_ids_are_uuids_of_version_7(ids):
    found = [uuid.UUID(text) for text in ids]
    assert [str(one) for one in found] == ids
    assert {(one.version, one.variant) for one in found} == {(7, uuid.RFC_4122)}
    assert len(set(ids)) == len(ids)


def test_later_ids_are_greater_by_the_millisecond():
    first = uuid7()
    later = next(text for text in iter(uuid7, None) if text[:13] != first[:13])
    assert later > first
    assert uuid7s(0) == []
