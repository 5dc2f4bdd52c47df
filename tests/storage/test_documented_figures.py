"""The figures and names in `docs/` are those of the storage."""

import re

from sqlbuffer.arguments import LEASE_S, MIRROR_BYTES
from sqlbuffer.config import DEFAULT_CONNECTION, MAX_PENDING
from sqlbuffer.interchange.parquet.files import ROWS_AT_ONCE
from sqlbuffer.storage import flow
from sqlbuffer.storage.database import engine, transactions, vacuum
from sqlbuffer.storage.flow import MOST_AHEAD
from sqlbuffer.storage.inspect.buffer_stats import MOST_ROWS
from sqlbuffer.storage.retention import expiry
from sqlbuffer.storage.schema.views import VIEWS
from sqlbuffer.storage.writing import write_queue
from tests.docs.pages import SERVER_URL, text_of


def test_pacing_gives_the_figures_that_the_code_has():
    text = " ".join(text_of("docs/how-to/pace-collectors.md").split())
    assert f"{DEFAULT_CONNECTION.wait_s:.0f} seconds unless it is given" in text
    assert f"When {MAX_PENDING:,} steps wait (`max_pending=`)" in text
    assert f"| `max_pending` | {MAX_PENDING:,} |" in text_of("docs/reference/settings.md")
    assert (flow.HEARTBEAT_S, flow.ALIVE_S, flow.PUBLISH_S) == (1.0, 5.0, 5.0)


def test_watching_says_how_many_rows_are_looked_at():
    assert f"up to {MOST_ROWS:,} rows" in text_of("docs/how-to/watch-a-run.md")


def test_the_page_about_episodes_names_every_status():
    view = VIEWS["v_episodes"].columns["status"][1]
    words = set(re.findall(r"\| `(\w+)` \|", text_of("docs/how-to/record-episodes.md")))
    assert words >= set(re.findall(r"`(open|complete|aborted|abandoned)`", view))


def test_the_pages_of_operators_give_the_limits_and_sizes_that_the_code_has():
    text = text_of("docs/how-to/share-a-database.md")
    assert f"at most {engine.POOL_SIZE}, and 5 more" in text
    text = text_of("docs/how-to/handle-lost-connections.md")
    assert f"`lock_timeout` | {transactions.LOCK_TIMEOUT_S} s |" in text
    assert f"`statement_timeout` | {transactions.STATEMENT_TIMEOUT_S // 60} minutes |" in text
    assert f"idle_in_transaction_session_timeout` | {transactions.IDLE_TIMEOUT_S} s |" in text
    assert f"`retry_s` seconds ({DEFAULT_CONNECTION.retry_s:.0f} unless" in text
    text = " ".join(text_of("docs/how-to/share-a-sqlite-file.md").split())
    assert f"no turn for {engine.BUSY_TIMEOUT_S:.0f} s" in text
    text = " ".join(text_of("docs/how-to/size-a-server.md").split())
    assert f"more dead rows than {vacuum.MIN_DEAD_ROWS:,} and than a fifth" in text
    assert vacuum.MAX_DEAD_PER_LIVE == 1 / 5
    pool = engine.engine_for(engine.resolve_url(SERVER_URL)).pool
    assert (pool.size(), pool._max_overflow) == (engine.POOL_SIZE, 5)


def test_the_columns_of_a_step_are_explained():
    text = text_of("docs/concepts/columns.md")
    names = set(VIEWS["v_experiences"].columns) - {"buffer", "special_numbers"}
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_the_how_to_pages_give_the_figures_that_the_code_has():
    def text(page):
        return " ".join(text_of(f"docs/{page}.md").split())

    episodes = text("how-to/record-episodes")
    flush, most = write_queue.FLUSH_BYTES >> 20, write_queue.MAX_BYTES >> 20
    assert (
        f"when {min(write_queue.FLUSH_ROWS, MAX_PENDING // 2):,} steps or {flush} MiB" in episodes
    )
    assert f"waits if {MAX_PENDING:,} steps or {most} MiB wait" in episodes
    assert f"({MIRROR_BYTES >> 30} GiB by default)" in text("how-to/draw-from-memory")
    assert f"up to {MOST_AHEAD} batches" in text("concepts/mirror")
    assert f"up to {ROWS_AT_ONCE:,} rows" in text("how-to/append-parquet-files")
    assert "five minutes by default" in text("how-to/lease-batches")
    assert LEASE_S == 5 * 60
    assert "for a tenth of a second" in text("how-to/limit-staleness")
    assert expiry.AT_ONCE_S == 1 / 10
