"""Reading very many rows."""

import subprocess
import sys

from tests.support.sql import fill

MEASURE = """
import resource, sys
from sqlbuffer import ReplayBuffer

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

buffer = ReplayBuffer(sys.argv[1])
rows = buffer.get_all()
for _ in range(5):
    next(rows)
before = peak_mb()
n = 5 + sum(1 for _ in rows)
print(n, peak_mb() - before)
"""


def test_reading_all_of_200_000_rows_takes_little_memory(buffer_url):
    fill(buffer_url, 200_000)
    command = [sys.executable, "-c", MEASURE, buffer_url]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    n_rows, grown_mb = answer.split()
    assert int(n_rows) == 200_000
    # 200 MB for a million rows. One page is 5,000 of them; a list of all would take 150 MB here.
    assert float(grown_mb) < 40
