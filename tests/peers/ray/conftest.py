from collections.abc import Iterator

import pytest
import ray

from tests.support.markdown import ROOT


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    """Start a cluster of two workers: it takes seconds."""
    environment = {"env_vars": {"PYTHONPATH": str(ROOT)}}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment, log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()
