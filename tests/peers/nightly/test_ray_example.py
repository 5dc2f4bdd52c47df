"""The example with actors of Ray."""

import os
import subprocess
import sys

from tests.support.markdown import ROOT
from tests.support.sql import run


def test_collectors_and_a_learner_are_actors(postgres_url: str) -> None:
    script = ROOT / "docs" / "examples" / "ray_cartpole.py"
    done = subprocess.run(
        [sys.executable, script, "--url", postgres_url, "--updates", "60"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "while it played; Ray restarts it" in done.stdout
    agents = run(postgres_url, "SELECT agent_id, count(*) FROM v_experiences GROUP BY 1 ORDER BY 1")
    assert [agent for agent, _ in agents] == [f"collector-{i}" for i in range(4)]
    for agent, steps in agents:
        assert f"{agent}: {steps} steps read by Ray Data" in done.stdout
    lengths = "SELECT count(*), count(DISTINCT (episode_id, step)) FROM v_experiences"
    ((n, n_distinct),) = run(postgres_url, lengths)
    assert n == n_distinct
