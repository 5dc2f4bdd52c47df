"""The site that `make docs` has built, without a warning or a library of another extra."""

import pytest

from tests.docs.pages import pages
from tests.support.markdown import ROOT

SITE = ROOT / "docs" / "_build"


@pytest.mark.skipif(not SITE.is_dir(), reason="allowed: `make docs` has not been run")
def test_the_site_has_all_pages_and_links_to_them():
    index = (SITE / "index.html").read_text(encoding="utf-8")
    assert index.count('class="toctree-l1"') == len(pages()) - 2  # the README, and itself
    buffer = (SITE / "reference/api/buffer.html").read_text(encoding="utf-8")
    assert 'id="sqlbuffer.ReplayBuffer.sample_transitions"' in buffer
    assert 'href="../errors.html#fielderror"' in buffer
