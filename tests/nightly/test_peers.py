"""The comparison with other buffers runs end to end."""

import subprocess
import sys

from tests.benchmarks import peers as command
from tests.integrations.test_peers import NAMES, PRIORITIES, PRIORITIZED_NAMES, tables_of
from tests.support.markdown import ROOT


def test_the_command_measures_the_peers_that_are_installed():
    # Peers warn of what they please, so they are kept out of this process.
    run = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.peers", "--rows=1000", "--database=sqlite"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for header, names in ((command.HEADER, NAMES), (PRIORITIES, PRIORITIZED_NAMES)):
        lines = tables_of(run.stdout)[header]
        assert [line[0] for line in lines if not line[0].startswith("sqlbuffer")] == names
        for name, first, *others in lines:
            if first == "not installed":
                assert name in names
                assert not any(others)
            else:
                assert all(others), name
