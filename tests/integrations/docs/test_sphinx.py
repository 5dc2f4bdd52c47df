"""The pages make a site without a warning, and without a library of another extra."""

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.docs.pages import pages
from tests.support.markdown import ROOT

# Libraries of other extras, which may be installed here. Sphinx itself needs Jinja2.
MISSING = """
import sys

NAMES = {"datasets", "easydict", "gymnasium", "httpx", "hypothesis", "minari", "omegaconf"}
NAMES |= {"pandas", "prometheus_client", "pyarrow", "ray", "scipy", "stable_baselines3"}
NAMES |= {"starlette", "tensorboardX", "torch", "uvicorn", "zstandard"}


class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Missing())
"""


def test_the_pages_make_a_site_with_the_extra_docs_alone(tmp_path):
    if not all(map(find_spec, ("sphinx", "myst_parser", "furo"))):
        pytest.skip("allowed: the extra `docs` is not installed")
    site = tmp_path / "site"
    (tmp_path / "sitecustomize.py").write_text(MISSING)
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-d", tmp_path / "cache"]
    done = subprocess.run(
        [*command, ROOT / "docs", site],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
    )
    assert done.returncode == 0, done.stderr
    index = (site / "index.html").read_text(encoding="utf-8")
    assert index.count('class="toctree-l1"') == len(pages()) - 2  # the README, and itself
    buffer = (site / "reference/api/buffer.html").read_text(encoding="utf-8")
    assert 'id="sqlbuffer.ReplayBuffer.sample_transitions"' in buffer
    assert 'href="../errors.html#fielderror"' in buffer
