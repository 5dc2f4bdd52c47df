from sqlbuffer import ReplayBuffer
from tests.support.array_rows import make_array_row


def test_info_shows_every_buffer(run, schema_url):
    for name, capacity in (("small", 10), ("unlimited", None)):
        with ReplayBuffer(schema_url, name=name, max_capacity=capacity) as buffer:
            buffer.store_batch([make_array_row(task=n // 8, step=n) for n in range(24)])
    ReplayBuffer(schema_url, name="[red]empty[/]", max_capacity=1).close()
    lines = run("info", schema_url).output.splitlines()
    assert lines[0].endswith("schema 0001")
    cells = {
        row[0]: row[1:6]
        for row in ([cell.strip() for cell in line.strip("│").split("│")] for line in lines)
        if len(row) > 1
    }
    assert cells["small"] == ["10", "10", "100%", "2", "row"]
    assert cells["unlimited"] == ["24", "-", "-", "3", "row"]
    assert cells["[red]empty[/]"] == ["0", "1", "0%", "0", "row"]


def test_info_of_a_database_without_buffers(run, schema_url):
    result = run("info", schema_url)
    assert result.exit_code == 0
    assert "no buffers yet" in result.output
