"""`v_fields` describes what buffers declare, in words that numpy takes back."""

import json

import numpy as np

from sqlbuffer import ReplayBuffer
from tests.support.sql import run

FIELDS = {
    "obs": ("float32", (4,)),
    "frame": ("uint8", (84, 84)),
    "tokens": ("int32", (-1,)),
    "wave": "complex64",
    "tag": "S3",
    "action": ("int64", (), 0),
    "level": {"dtype": "int8", "column": True},
    "solved": {"dtype": "bool", "column": True},
    "map": {"dtype": "U8", "column": True},
}
META = {"seed": "uint32", "goal": ("float64", (2,))}
QUERY = "SELECT {} FROM v_fields WHERE buffer = 'typed' AND level = '{}' ORDER BY position"


def test_the_view_has_each_field_as_it_was_declared(buffer_url):
    ReplayBuffer(buffer_url, name="plain").close()
    with ReplayBuffer(buffer_url, name="typed", fields=FIELDS, meta_fields=META) as buffer:
        for level, specs in {"step": buffer.fields, "episode": buffer.meta_fields}.items():
            found = run(buffer_url, QUERY.format("field, dtype, shape, comparable", level))
            assert [name for name, *_ in found] == list(specs)
            for name, dtype, shape, comparable in found:
                lengths = json.loads(shape) if isinstance(shape, str) else shape
                assert np.dtype(dtype) == specs[name].dtype
                assert tuple(lengths) == specs[name].shape
                assert bool(comparable) is specs[name].column
    assert {buffer for (buffer,) in run(buffer_url, "SELECT buffer FROM v_fields")} == {"typed"}


def test_the_view_names_dtypes_as_users_do(buffer_url):
    ReplayBuffer(buffer_url, name="typed", fields=FIELDS).close()
    found = [dtype for (dtype,) in run(buffer_url, QUERY.format("dtype", "step"))]
    assert found == [
        *("float32", "uint8", "int32", "complex64", "S3", "int64", "int8", "bool", "U8"),
    ]
