"""Page 6: one SQL statement that reads."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sqlbuffer.display import csv_field, dumps
from sqlbuffer.errors import SchemaMissingError, SQLBufferError, StorageError
from sqlbuffer.query.tree import nearest
from sqlbuffer.storage.browsing.buffers import buffer_names
from sqlbuffer.storage.schema.views import VIEWS, nearest_relation
from sqlbuffer.web.access import UNRUN, is_from_here
from sqlbuffer.web.rendering import command_line, encoded, page
from sqlbuffer.web.site import site_of

DEFAULT = "'default'"


@dataclass(frozen=True)
class SqlExample:
    """A question with its SQL.

    Attributes:
        question: In words.
        sql: The statement; it is about the buffer `default` where it names one.
    """

    question: str
    sql: str

    def about(self, buffer: str) -> str:
        """Return the statement for another buffer."""
        name = buffer.replace("'", "''")
        return self.sql.replace(DEFAULT, f"'{name}'")


EXAMPLES = (
    SqlExample(
        "How much does each buffer hold?",
        "SELECT buffer, rows, capacity, fill FROM v_buffers;",
    ),
    SqlExample(
        "How many bytes does each kind of data take?",
        "SELECT kind, entries, bytes, approximate FROM v_storage\n"
        "WHERE buffer = 'default' ORDER BY bytes DESC;",
    ),
    SqlExample(
        "Does a later model earn more, day by day?",
        "SELECT model_version, date(ended_at) AS day, count(*) AS episodes,\n"
        "    avg(episode_reward) AS mean_reward\n"
        "FROM v_episodes WHERE buffer = 'default' AND status = 'complete'\n"
        "GROUP BY model_version, date(ended_at) ORDER BY model_version, day;",
    ),
    SqlExample(
        "The ten longest episodes.",
        "SELECT episode_id, task_id, length, episode_reward FROM v_episodes\n"
        "WHERE buffer = 'default' AND length IS NOT NULL ORDER BY length DESC LIMIT 10;",
    ),
    SqlExample(
        "In which groups do the rollouts differ most?",
        "SELECT group_id, rollouts, return_mean, return_spread FROM v_groups\n"
        "WHERE buffer = 'default' AND return_spread IS NOT NULL\n"
        "ORDER BY return_spread DESC LIMIT 10;",
    ),
    SqlExample(
        "Groups without spread. A group with equal rewards teaches nothing.",
        "SELECT group_id, task_id, rollouts, return_mean FROM v_groups\n"
        "WHERE buffer = 'default' AND rollouts > 1 AND return_spread = 0 ORDER BY group_id;",
    ),
    SqlExample(
        "The ten tasks whose rewards vary most.",
        "SELECT task_id, count(*) AS episodes, avg(reward) AS mean,\n"
        "    avg((reward - mean) * (reward - mean)) AS variance\n"
        "FROM (\n"
        "    SELECT task_id, episode_reward AS reward,\n"
        "        avg(episode_reward) OVER (PARTITION BY task_id) AS mean\n"
        "    FROM v_episodes WHERE buffer = 'default' AND episode_reward IS NOT NULL\n"
        ") AS episodes GROUP BY task_id ORDER BY variance DESC LIMIT 10;",
    ),
    SqlExample(
        "How often was each step drawn? The ten that were drawn most.",
        "SELECT seq, count(*) AS draws FROM v_samples\n"
        "WHERE buffer = 'default' GROUP BY seq ORDER BY draws DESC, seq LIMIT 10;",
    ),
    SqlExample(
        "How stale was the data of each iteration?",
        "SELECT clock, count(*) AS batches, avg(mean_staleness) AS mean,\n"
        "    max(max_staleness) AS greatest\n"
        "FROM v_batches WHERE buffer = 'default' GROUP BY clock ORDER BY clock;",
    ),
    SqlExample(
        "The labels that a step has had.",
        "SELECT version, reward, labelled_at FROM v_labels\n"
        "WHERE buffer = 'default' AND seq = 1 ORDER BY version;",
    ),
    SqlExample(
        "One step by its number. A chunk has at most 256 steps.",
        "SELECT task_id, step, reward FROM v_experiences\n"
        "WHERE buffer = 'default' AND seq = 5 AND first_seq BETWEEN 5 - 255 AND 5;",
    ),
    SqlExample(
        "A value inside JSON; both databases know ->>.",
        "SELECT task_id, step, state ->> 'position' AS position FROM v_experiences\n"
        "WHERE buffer = 'default' AND seq BETWEEN 1 AND 10 AND first_seq BETWEEN 1 - 255 AND 10;",
    ),
    SqlExample(
        "How many steps did each agent take in each hour?",
        "SELECT agent_id, substr(CAST(executed_at AS text), 1, 13) AS hour, count(*) AS steps\n"
        "FROM v_experiences WHERE buffer = 'default'\n"
        "GROUP BY agent_id, substr(CAST(executed_at AS text), 1, 13) ORDER BY hour, agent_id;",
    ),
    SqlExample(
        "The mean reward of a step, by model version.",
        "SELECT model_version, count(*) AS steps, avg(reward) AS mean_reward FROM v_experiences\n"
        "WHERE buffer = 'default' GROUP BY model_version ORDER BY model_version;",
    ),
    SqlExample(
        "The ten tasks with the greatest sum of rewards, of the steps that are there.",
        "SELECT task_id, steps, total_reward FROM v_tasks\n"
        "WHERE buffer = 'default' AND total_reward IS NOT NULL\n"
        "ORDER BY total_reward DESC LIMIT 10;",
    ),
)


TIME_S = 5.0
MOST_ROWS, MOST_BYTES = 1_000, 4 * 2**20
CSV_TIME_S = 30.0
MOST_CSV_ROWS, MOST_CSV_BYTES = 100_000, 50 * 2**20
_LISTED = "the views that you can read are listed below"
_NO_COLUMN = re.compile(
    r'no such column: (?:\w+\.)?"?(\w+)|column "?(?:\w+\.)?(\w+)"? does not exist'
)
_NO_TABLE = re.compile(r'no such table: (?:\w+\.)?(\w+)|relation "(?:\w+\.)?(\w+)" does not exist')
_SYNTAX = re.compile(r'near "(.+?)": syntax error|syntax error at or near "(.+?)"')
_KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP", "ORDER", "BY", "HAVING", "LIMIT", "OFFSET", "JOIN", "LEFT",
    "ON", "AND", "OR", "AS", "IN", "LIKE", "BETWEEN", "DISTINCT", "DESC", "ASC", "WITH", "UNION",
    "CASE", "WHEN", "THEN", "ELSE", "END", "IS", "NOT", "NULL", "EXPLAIN", "VALUES",
)  # fmt: skip
# Longer ones make an address that servers refuse.
MOST_CHARACTERS = 10_000
# Of a text: in the table, and on a click.
_LINE_CHARACTERS, _CELL_CHARACTERS = 120, 2_000


def show(request: Request) -> Response:
    """Return the page, with the answer to the statement in the address."""
    statement = _statement_of(request)
    if not statement or is_foreign(request):
        return _shown(request, statement)
    try:
        answer = _run(request, statement, TIME_S, MOST_ROWS, MOST_BYTES)
    except SQLBufferError as error:
        return _shown(request, statement, trouble=_reason(request, error, statement))
    return _shown(request, statement, answer)


def _reason(request: Request, error: SQLBufferError, statement: str) -> str:
    """Return what is wrong with a statement, without the URL of the database, which is above it."""
    return explained(str(error).removeprefix(f"{site_of(request).shown_url}: "), statement)


def explained(message: str, statement: str) -> str:
    """Return the message of a database about a statement, with what to do.

    Example:
        >>> explained("no such table: v_episode", "SELECT * FROM v_episode").splitlines()[0]
        'no such table: v_episode; did you mean v_episodes?'
    """
    named = {word.lower() for word in re.findall(r"\w+", statement)}
    if match := _NO_COLUMN.search(message):
        name = match[1] or match[2]
        views = [view for view in VIEWS if view in named]
        columns = {view: list(VIEWS[view].columns) for view in views}
        every = dict.fromkeys(column for listed in columns.values() for column in listed)
        message += nearest(name, list(every))
        message += "".join(f"\n{view} has {', '.join(listed)}." for view, listed in columns.items())
    elif _NO_TABLE.search(message):
        near = nearest_relation(message)
        hint = f"; did you mean {near}?" if near else ""
        message = message.replace(f"; {_LISTED}", "") + hint + f"\n{_LISTED.capitalize()}."
    elif match := _SYNTAX.search(message):
        word = match[1] or match[2] or ""
        misspelled = [
            f"{near} is not a word of SQL{hint}"
            for near in dict.fromkeys((word, _word_before(statement, word)))
            if near.upper() not in _KEYWORDS and (hint := _nearest(near.upper(), _KEYWORDS))
        ]
        advice = misspelled[0] if misspelled else f"look at {word!r}, and just before it"
        message += f"\nThe statement cannot be read there: {advice}."
    elif re.search("one statement at a time|multiple commands", message):
        message += "\nRun the first statement alone, up to its semicolon."
    elif re.search("incomplete input|end of input|unrecognized token|unterminated", message):
        message += "\nA bracket or a quote is not closed, or the end of the statement is missing."
    return message.replace("?.", "?")


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return a hint at the one known name that is most like another one."""
    hint = nearest(name, known).partition(" or ")[0].rstrip("?")
    return hint and f"{hint}?"


def _word_before(statement: str, word: str) -> str:
    """Return the word before another one in a statement; that one if it has none before it."""
    before = re.findall(r"\w+", statement.partition(word)[0])
    return before[-1] if word and before else word


def is_foreign(request: Request) -> bool:
    """Return True for a link of another site, which must not make this database work."""
    return UNRUN in request.query_params or not is_from_here(request)


def _statement_of(request: Request) -> str:
    # A form sends the ends of lines as CR LF.
    text: str = request.query_params.get("q", "")
    return text.replace("\r\n", "\n").strip()


def _shown(
    request: Request, statement: str, answer: Any = None, trouble: str | None = None
) -> Response:
    site = site_of(request)
    buffer = request.query_params.get("buffer")
    commands = [command_line("sql", site.shown_url, statement)] if statement else []
    numeric, cells = ([], []) if answer is None else cells_of(answer.rows, len(answer.columns))
    return page(
        request,
        "sql.html",
        status_code=200 if trouble is None else 400,
        place="sql",
        statement=statement,
        buffer=buffer,
        is_foreign=bool(statement) and is_foreign(request),
        answer=answer,
        trouble=trouble,
        numeric=numeric,
        cells=cells,
        examples=_examples(request, buffer),
        views=VIEWS,
        most_rows=MOST_ROWS,
        most_bytes=MOST_BYTES,
        time_s=TIME_S,
        most_csv_rows=MOST_CSV_ROWS,
        most_csv_bytes=MOST_CSV_BYTES,
        csv_time_s=CSV_TIME_S,
        most_characters=MOST_CHARACTERS,
        commands=commands,
    )


def _run(request: Request, statement: str, time_s: float, rows: int, n_bytes: int) -> Any:
    if len(statement) > MOST_CHARACTERS:
        raise SQLBufferError(
            f"the statement has {len(statement):,} characters, and this page takes "
            f"{MOST_CHARACTERS:,}; `sqlbuffer sql URL -` reads longer ones from a file"
        )
    pool = site_of(request).pool
    try:
        return pool.query(statement, time_s=time_s, max_rows=rows, max_bytes=n_bytes)
    except SchemaMissingError as error:
        # The schema is there, or the site would not have begun. The statement misspells a name.
        what = str(error).rpartition("; run")[0]
        raise StorageError(f"{what}; {_LISTED}") from None


def _examples(request: Request, buffer: str | None) -> list[tuple[str, str]]:
    """Return questions with their SQL, about a buffer that exists."""
    if buffer is None:
        with site_of(request).pool.connection() as connection:
            buffer = next(iter(buffer_names(connection, most=1)), "default")
    return [(sql_example.question, sql_example.about(buffer)) for sql_example in EXAMPLES]


@dataclass(frozen=True)
class Cell:
    """A value as the page shows it.

    Attributes:
        kind: Class of its element.
        text: The value in short.
        whole: The whole value, if the text is shorter; a very long one without its end.
        is_cut: There is more of the value than the page has.
        is_number: It is a number.
    """

    kind: str
    text: str
    whole: str | None = None
    is_cut: bool = False
    is_number: bool = False


def cells_of(rows: Sequence[Sequence[Any]], n_columns: int) -> tuple[list[bool], list[list[Cell]]]:
    """Return which columns have numbers alone, and the cells.

    Numbers are aligned right where a column has nothing else, and texts left.
    """
    numeric = []
    for i in range(n_columns):
        values = [row[i] for row in rows if row[i] is not None]
        numeric.append(bool(values) and all(map(_is_number, values)))
    cells = [[_cell(value, numeric[i]) for i, value in enumerate(row)] for row in rows]
    return numeric, cells


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)


def _cell(value: Any, is_aligned: bool) -> Cell:
    if value is None:
        return Cell("n quiet" if is_aligned else "quiet", "NULL")
    if _is_number(value):
        text, whole = _number(value), str(value)
        kind = "n" if is_aligned else "text"
        return Cell(kind, text, whole if text != whole else None, is_number=True)
    if isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        return Cell("mono", f"{len(raw):,} bytes: {raw[:16].hex(' ')}", None, len(raw) > 16)
    text = value if isinstance(value, str) else str(csv_field(value))
    if isinstance(value, (dict, list)):
        text = dumps(value)
    if len(text) <= _LINE_CHARACTERS and "\n" not in text:
        return Cell("text", text)
    line = " ".join(text[:_LINE_CHARACTERS].split())
    return Cell("text", line, text[:_CELL_CHARACTERS], len(text) > _CELL_CHARACTERS)


def _number(value: float | Decimal) -> str:
    """Return a number with six digits; whole numbers in full."""
    if isinstance(value, int):
        return str(value)
    number = float(value)
    if number.is_integer() and abs(number) < 1e15:
        return str(value) if isinstance(value, float) else f"{number:.0f}"
    return f"{number:.6g}"


def download(request: Request) -> Response:
    """Return the answer as CSV; the name of the file says so where it is cut."""
    statement = _statement_of(request)
    if not statement or is_foreign(request):
        return _shown(request, statement)
    try:
        answer = _run(request, statement, CSV_TIME_S, MOST_CSV_ROWS, MOST_CSV_BYTES)
    except SQLBufferError as error:
        return _shown(request, statement, trouble=_reason(request, error, statement))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(answer.columns)
    writer.writerows([csv_field(value) for value in row] for row in answer.rows)
    name = "answer-cut.csv" if answer.is_cut else "answer.csv"
    return Response(
        encoded(out.getvalue()),
        media_type="text/csv; charset=utf-8",
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


ROUTES = [Route("/sql", show), Route("/sql.csv", download)]
