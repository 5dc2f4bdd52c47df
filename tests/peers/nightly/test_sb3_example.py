"""The example with four collectors runs, and does what it says."""

import re

import pytest

from tests.integrations.docs.test_examples import command, started
from tests.support.sql import run, scalar


@pytest.mark.slow
def test_four_collectors_and_a_learner_share_one_url(postgres_url, tmp_path):
    words = command("sb3_collectors.py", "--url", postgres_url, "--quick")
    with started(tmp_path, *words) as (process, read):
        process.wait(120)
        printed = read()
    assert process.returncode == 0, printed
    assert "0 steps are stored" in printed
    updates, steps = re.findall(r"(\d+) updates on (\d+) steps", printed)[0]
    assert int(updates) == 100
    assert int(steps) >= 800
    agents = "SELECT DISTINCT agent_id FROM v_experiences WHERE buffer = 'pendulum' ORDER BY 1"
    assert run(postgres_url, agents) == [(f"collector-{number}",) for number in range(4)]
    assert scalar(postgres_url, "SELECT sampled FROM v_flow") >= 100 * 32
