"""The pages make a site without a warning."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from tests.docs.pages import pages
from tests.support.markdown import ROOT


def test_the_pages_make_a_site(tmp_path):
    if not all(map(find_spec, ("sphinx", "myst_parser", "furo"))):
        pytest.skip("allowed: the extra `docs` is not installed")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-d", tmp_path / "cache"]
    done = subprocess.run([*command, ROOT / "docs", site], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    index = (site / "index.html").read_text(encoding="utf-8")
    assert index.count('class="toctree-l1"') == len(pages()) - 2  # the README, and itself
