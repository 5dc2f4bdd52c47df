"""The interface inside the actors of a Ray cluster, as upstream's workers and trainers have it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.support.markdown import ROOT

QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}


@pytest.fixture
def seen(both_urls):
    """Return what actors saw on each database, one cluster for both: it takes seconds to start."""
    if find_spec("ray") is None:
        pytest.skip("allowed: no ray for this Python")
    module = "tests.compat.minestudio.ray_cluster"
    done = subprocess.run(
        [sys.executable, "-m", module, *both_urls.values()],
        cwd=ROOT,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(both_urls, json.loads(done.stdout), strict=True))


@pytest.mark.slow
def test_actors_of_a_ray_cluster_share_a_buffer(seen):
    for found in seen.values():
        assert found["processes"] == 3  # of the worker, the trainer and the driver
        first, other = found["prepared"]
        assert found["fetched"] == len(first) == 8
        assert other == first
        chunks = [(first[i][0], first[i + 1][0]) for i in range(0, 8, 2)]
        assert sorted(chunks) == [(0, 1), (2, 3), (4, 5), (6, 7)]
        for rank, read in enumerate(found["read"]):
            assert read == [[fid, fid] for fid, _ in first[rank::2]]
        assert found["fetched_later"] == len(found["later"]) == 4
        # Of version 1 the ninth is left alone, too old to be joined by the first of version 2.
        assert sorted(fid for fid, _ in found["later"]) == [9, 10, 11, 12]
