"""Parts of chunks. No database."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sqlbuffer.encoding.chunks import execute_times, same_steps, select_steps
from sqlbuffer.encoding.column_chunks import pack_columns
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields import parse_specs
from tests.encoding.chunk_columns import each, steps

LAYOUT = Layout(parse_specs({"x": "int64"}))


@pytest.mark.thorough
@settings(max_examples=60)
@given(steps(), st.data())
def test_selected_steps_are_those_of_the_chunk(drawn, data):
    chunks = pack_columns(drawn.layout, drawn.columns).chunks
    assume(chunks)
    chunk = data.draw(st.sampled_from(chunks))
    places = sorted(data.draw(st.lists(st.integers(0, chunk.n_steps - 1), min_size=1, unique=True)))
    part = select_steps(drawn.layout, chunk, places)
    assert (part.id, part.n_steps) == (chunk.id, len(places))
    assert same_steps(drawn.layout, part, range(part.n_steps), chunk, places).all()
    for name in ("reward", "terminated", "initial_priority", "ids", "payloads"):
        own, of = each(getattr(part, name), part.n_steps), each(getattr(chunk, name), chunk.n_steps)
        assert [value is None for value in own] == [of[place] is None for place in places]
    assert each(part.ids, part.n_steps) == [each(chunk.ids, chunk.n_steps)[i] for i in places]
    for name, values in (part.fields or {}).items():
        assert [repr(value) for value in values] == [repr(chunk.fields[name][i]) for i in places]
    whole = select_steps(drawn.layout, chunk, range(chunk.n_steps))
    assert (whole.records, whole.payloads) == (chunk.records, chunk.payloads)


def test_the_rest_of_a_chunk_of_an_episode_begins_later():
    (chunk,) = pack_columns(LAYOUT, {"x": range(10), "step": range(5, 15)}, episode="e").chunks
    rest = select_steps(LAYOUT, chunk, range(4, 10))
    assert (rest.t, rest.step, rest.steps, rest.n_steps) == (4, 9, None, 6)
    with pytest.raises(ValueError, match="stay together"):
        select_steps(LAYOUT, chunk, [1, 3])


def test_times_are_interpolated():
    assert execute_times(10.0, 20.0, 5, np.arange(5)).tolist() == [10.0, 12.5, 15.0, 17.5, 20.0]
    assert execute_times(10.0, 10.0, 1, 0) == 10.0
