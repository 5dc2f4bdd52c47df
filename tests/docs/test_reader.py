"""Whoever breaks an example of a page breaks a test."""

import pytest

from sqlbuffer import ReplayBuffer
from tests.docs.pages import SQLITE_URL

GOOD = """
```python
from sqlbuffer import ReplayBuffer

with ReplayBuffer("sqlite:///replay.db") as buffer:
    buffer.add(task_id="t", step=1)
    print(len(buffer), buffer)  # -> 1 ReplayBuffer(...)
```

```sql
SELECT task_id FROM v_tasks;
```

```console
$ sqlbuffer sql replay.db "SELECT 1 AS one" --csv   # a comment
one
1
$ export SQLBUFFER_URL=sqlite:///replay.db
$ sqlbuffer ls | grep default
```
"""


@pytest.fixture
def page(tmp_path):
    def write(text):
        path = tmp_path / "page.md"
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.thorough
@pytest.mark.slow
def test_a_page_is_done_as_it_is_written(page, read):
    done = read(page(GOOD))
    assert done.printed["sqlbuffer ls | grep default"].count("default") == 1
    with ReplayBuffer(SQLITE_URL) as buffer:
        assert len(buffer) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("good", "broken", "message"),
    [
        ('task_id="t"', 'task="t"', "unknown field 'task'"),
        ("# -> 1 Rep", "# -> 2 Rep", "page.md, line 2 shows"),
        ("print(len(buffer), buffer)  # ->", "# ->", "page.md, line 2 shows"),
        ("FROM v_tasks", "FROM v_task", "v_task"),
        ("FROM v_tasks", "FROM v_tasks WHERE steps > 1", "steps > 1"),
        ("$ sqlbuffer sql", "$ sqlbuffer ask", "No such command"),
        ("--csv", "--cvs", "No such option"),
        ("\n1\n", "\n2\n", "page.md: sqlbuffer sql"),
        ("\n1\n", "\n1\n2\n", "page.md: sqlbuffer sql"),
        ("grep default", "grep other", "grep other"),
        ("$ export SQLBUFFER_URL=sqlite:///replay.db\n", "", "no database is named"),
        ("$ export", "$ make nothing\n$ export", "no target nothing"),
        ("$ export", "$ pip install .[nothing]\n$ export", "no extra nothing"),
        ("$ export", "$ sqlbuffer demo --players 3\n$ export", "No such option"),
    ],
)
def test_a_broken_example_fails(page, read, good, broken, message):
    assert GOOD.count(good) == 1
    with pytest.raises(Exception, match=message):
        read(page(GOOD.replace(good, broken)))
