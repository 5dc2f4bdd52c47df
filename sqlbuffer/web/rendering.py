"""Templates to answers: everything that users stored is escaped."""

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from pprint import pformat
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from sqlbuffer.display import dumps
from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.storage.browsing.rollouts import Rollout
from sqlbuffer.web.curves import color_of
from sqlbuffer.web.site import site_of


def readable(value: Any) -> str:
    """Return any value as a text: JSON with indents, or Python's text of it.

    Example:
        >>> readable({"a": [1]})
        '{\\n  "a": [\\n    1\\n  ]\\n}'
    """
    if isinstance(value, str):
        return value
    try:
        return json.dumps(json.loads(dumps(value)), indent=2, ensure_ascii=False)
    except (ValueError, TypeError, RecursionError):
        return f"<{type(value).__name__}>"


def command_line(command: str, *words: Any, **options: Any) -> str:
    """Return a line for a shell: `sqlbuffer show URL TASK --buffer NAME`.

    Args:
        command: The command.
        *words: Its arguments.
        **options: Its options; None is left out, True is an option without a value.
    """
    parts = ["sqlbuffer", *command.split()]
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if value is True:
            parts.append(option)
        elif value is not None:
            # A value that begins with a dash is not a separate option.
            parts.append(f"{option}={value}")
    texts = [str(word) for word in words]
    if any(word.startswith("-") for word in texts):
        texts.insert(0, "--")
    return " ".join(map(_shell_word, [*parts, *texts]))


# In double quotes these mean something else to a shell.
_SPECIAL = re.compile(r'["$`\\!]')


def _shell_word(text: str) -> str:
    """Return a word for a shell, quoted as a person would: SQL in double quotes where possible."""
    if "'" not in text:
        return shlex.quote(text)
    if not _SPECIAL.search(text):
        return f'"{text}"'
    return "'" + text.replace("'", r"'\''") + "'"


def readable_literal(value: Any) -> str:
    """Return a value as Python, over several lines if it is long."""
    return pformat(value, width=80, sort_dicts=False)


def quoted(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("'", "''") + "'"


def python_call(url: str, buffer: str, call: str) -> str:
    """Return lines of Python that open a buffer for reading and call it.

    Args:
        url: The database.
        buffer: The buffer.
        call: Call after `buffer.`.
    """
    return f"{_opened(url, buffer)}\nbuffer.{call}"


def python_rows(url: str, buffer: str, call: str, shown: str = "row") -> str:
    """Return lines of Python that open a buffer for reading and print each row of a call.

    Args:
        url: The database.
        buffer: The buffer.
        call: Call after `buffer.` that returns rows.
        shown: An expression of `row`.
    """
    return f"{_opened(url, buffer)}\nfor row in buffer.{call}:\n    print({shown})"


def _opened(url: str, buffer: str) -> str:
    return (
        "from sqlbuffer import ReplayBuffer\n"
        f"buffer = ReplayBuffer({url!r}, {buffer!r}, create=False)"
    )


FOLDER = Path(__file__).parent
_NOTHING = "\u2013"
_MOST_NAMES = 20
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_SHORT_AGES = ((31_557_600.0, "y"), (86_400.0, "d"), (3_600.0, "h"), (60.0, "m"), (1.0, "s"))
_AGES = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"))
# In a file of JSON inside HTML these could end the element.
_JSON_ESCAPES = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


def page(request: Request, template: str, *, status_code: int = 200, **context: Any) -> Response:
    """Return a page, or a part of one.

    Args:
        request: Request to answer.
        template: Name of a file in `templates`.
        status_code: Status of the answer.
        **context: Values for the template. Every template also gets `link(path, **query)`, `site`
            and `here`.
    """
    text = fragment(request, template, **context)
    return Response(encoded(text), status_code, media_type="text/html; charset=utf-8")


def fragment(request: Request, template: str, **context: Any) -> str:
    """Return the text of a page or of a part; the arguments are those of `page`."""
    loaded = environment().get_template(template)
    return str(
        loaded.render(
            link=lambda path, **query: link(request, path, **query),
            site=site_of(request),
            here=here_of(request),
            **context,
        )
    )


def encoded(text: str) -> bytes:
    """Return UTF-8; a lone surrogate, which has none, is written as its escape."""
    return text.encode("utf-8", "backslashreplace")


def link(request: Request, path: str, **query: Any) -> str:
    """Return the address of a page below the place that the application is mounted at.

    Args:
        request: The request that is answered.
        path: From "/" on.
        **query: State of the page; values that are None are left out.
    """
    root = request.scope.get("root_path", "")
    parameters = {name: value for name, value in query.items() if value is not None}
    text = urlencode(parameters, doseq=True, quote_via=quote, errors="backslashreplace")
    return f"{quote(root)}{path}{f'?{text}' if text else ''}"


def here_of(request: Request, **changed: Any) -> str:
    """Return the address of a request without its token, for a link to the same page."""
    asked = request.query_params
    query = {name: asked.getlist(name) for name in asked if name != "token"} | changed
    path, root = request.scope["path"], request.scope.get("root_path", "")
    below = path.removeprefix(root) if root else path
    return link(request, quote("/" + below.lstrip("/")), **query)


@cache
def environment() -> Environment:
    """Return what renders the templates."""
    jinja = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {
        "about": about,
        "age": age,
        "ago": ago,
        "aligned": aligned,
        "as_json": as_json,
        "color": color_of,
        "count": count,
        "figure": figure,
        "moment": moment,
        "names": names,
        "percent": percent,
        "rate": rate,
        "readable": readable,
        "short_id": short_id,
        "short_name": short_name,
        "size": size,
        "took": took,
        "version": version,
        "versions": versions,
        "when": when,
    }
    return jinja


def _shown(value: Any) -> Any:
    """Return the text of a value in a page."""
    if value is None:
        return _NOTHING
    if isinstance(value, str) and "\0" in value:
        # A browser would drop it.
        return Markup(str(escape(value)).replace("\0", "\u2400"))
    return value


def count(value: int | None) -> str:
    """Return a number of things: 1,234."""
    return _NOTHING if value is None else f"{value:,}"


def about(text: str, is_exact: bool) -> str:
    """Return the text of a number, marked if it is an estimate."""
    return text if is_exact or text == _NOTHING else f"≈ {text}"


def figure(value: Any) -> str:
    """Return a measured number with four digits; whole numbers in full."""
    if value is None:
        return _NOTHING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    number = float(value)
    if not math.isfinite(number):
        return str(number)
    if number.is_integer() and abs(number) < 1e15:
        return f"{int(number):,}"
    # With four digits 9,999.9 would be 1e+04.
    return f"{number:,.4g}" if abs(number) < 999.95 else f"{number:,.0f}"


def aligned(values: Sequence[float | None]) -> list[str]:
    """Return the numbers of a column with as many decimals as the largest one has of four digits.

    Numbers that would lose more than that, and whole numbers, are those of `figure`.

    Example:
        >>> aligned([12.5, 0.25, None]), aligned([3.0, 20.0])
        (['12.50', '0.25', '\u2013'], ['3', '20'])
    """
    finite = [
        abs(value) for value in values if value is not None and math.isfinite(value) and value
    ]
    if not finite or all(value.is_integer() for value in map(float, finite)):
        return [figure(value) for value in values]
    most = max(finite)
    decimals = max(3 - math.floor(math.log10(most)), 0)
    if most >= 1e6 or min(finite) < 10**-decimals:
        return [figure(value) for value in values]
    texts = [f"{value:.{decimals}f}".rstrip("0") for value in finite]
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [
        f"{value:,.{decimals}f}" if value is not None and math.isfinite(value) else figure(value)
        for value in values
    ]


def rate(value: float | None) -> str:
    """Return a number per second."""
    if value is None:
        return _NOTHING
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"


def percent(value: float | None) -> str:
    """Return a share of 1."""
    return _NOTHING if value is None else f"{value:.1%}" if 0 < value < 0.1 else f"{value:.0%}"


def size(n_bytes: float | None) -> str:
    """Return a number of bytes."""
    if n_bytes is None:
        return _NOTHING
    amount = float(n_bytes)
    for unit in _UNITS[:-1]:
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} {_UNITS[-1]}"


def age(seconds: float | None) -> str:
    """Return how long ago something was."""
    if seconds is None:
        return _NOTHING
    for length, unit in _AGES:
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{seconds:.0f} s"


def names(texts: Sequence[str]) -> Markup | str:
    """Return the one name there is, or how many there are, with the first names on hover."""
    if len(texts) <= 1:
        return short_id(texts[0]) if texts else _NOTHING
    listed = ", ".join(texts[:_MOST_NAMES]) + (", ..." if len(texts) > _MOST_NAMES else "")
    return Markup('<span title="{}">{}</span>').format(listed, f"{len(texts):,}")


def versions(bounds: tuple[int | None, int | None]) -> str:
    """Return the versions from the oldest to the newest step."""
    first, last = bounds
    if first is None or last is None or first == last:
        return version(last if first is None else first)
    return f"{first} to {last}"


def version(number: int | None) -> str:
    """Return a model version: a name, without commas."""
    return _NOTHING if number is None else str(number)


def when(value: Any) -> str:
    """Return a moment to the second, in UTC. SQLite has text, and so have dates without a year that
    Python knows.
    """
    if value is None:
        return _NOTHING
    if isinstance(value, datetime):
        value = value.astimezone(UTC).isoformat()
    text = str(value)
    return f"{text[:10]} {text[11:19]}" if text[10:11] == "T" else text


def ago(value: Any) -> Markup | str:
    """Return how long ago a moment was, with the moment itself on hover.

    The clock is that of this machine, so a moment may be a little ahead.
    """
    moment_ = _moment_of(value)
    if moment_ is None:
        return when(value)
    seconds = max((datetime.now(UTC) - moment_).total_seconds(), 0.0)
    text = short_age(seconds)
    shown = f"{moment_:%Y-%m-%d %H:%M:%S} UTC"
    return Markup('<time datetime="{}" title="{}" data-seconds="{}">{}</time>').format(
        moment_.isoformat(), shown, int(seconds), text
    )


def took(began: Any, ended: Any) -> str:
    """Return the time from a moment to another."""
    first, last = _moment_of(began), _moment_of(ended)
    if first is None or last is None:
        return _NOTHING
    return short_age(max((last - first).total_seconds(), 0.0))


def short_age(seconds: float) -> str:
    """Return a length of time in its largest unit, or in two: of a few, less would be the same.

    Example:
        >>> short_age(0.25), short_age(75), short_age(8_000), short_age(1e8)
        ('0.2s', '1m 15s', '2h 13m', '3y 61d')
    """
    for place, (length, unit) in enumerate(_SHORT_AGES):
        if seconds >= length:
            n, rest = divmod(seconds, length)
            finer, name = _SHORT_AGES[min(place + 1, len(_SHORT_AGES) - 1)]
            more = f" {int(rest // finer)}{name}" if n < 10 and rest >= finer else ""
            return f"{int(n)}{unit}{more}"
    return f"{seconds:.1f}s" if seconds >= 0.05 else "0s"


def _moment_of(value: Any) -> datetime | None:
    """Return a time of the database, which is text on SQLite; None: Python does not know it."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


_SHORT_CHARS = 20


def short_id(text: str | None, most: int = _SHORT_CHARS) -> Markup:
    """Return an id on one line: the middle of a long one is left out, the whole one is on hover.

    A copy of the text has all of it; see `tables.js`.
    """
    if text is None:
        return Markup(_NOTHING)
    line = " ".join(text.split()) or text
    if len(line) <= most and line == text:
        return Markup('<span class="id">{}</span>').format(text)
    short = line if len(line) <= most else f"{line[: most - 9]}\u2026{line[-6:]}"
    return Markup('<span class="id" title="{}" data-whole>{}</span>').format(text, short)


def short_name(text: str, most: int = 28) -> Markup:
    """Return the name of a line or of a buffer on one line, as `short_id` does an id."""
    line = " ".join(text.split()) or text
    if len(line) <= most and line == text:
        return Markup('<span class="name">{}</span>').format(text)
    half = most // 2
    short = line if len(line) <= most else f"{line[: half - 1]}\u2026{line[-half:]}"
    return Markup('<span class="name" title="{}" data-whole>{}</span>').format(text, short)


def moment(seconds: float | None) -> str:
    """Return a Unix time to the second, in UTC; None is now."""
    if seconds is None:
        return "now"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def as_json(value: Any) -> Markup:
    """Return JSON for a data block of a page; NaN and infinities are null."""
    text = json.dumps(_finite(value), separators=(",", ":"))
    return Markup(text.translate(_JSON_ESCAPES))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


# A browser takes these for folders.
_FOLDERS = (".", "..")
_IN_QUERY = "-"


def buffer_link(request: Request, buffer: str, path: str, **query: Any) -> str:
    """Return the address of a page of a buffer.

    Args:
        request: The request that is answered.
        buffer: The buffer.
        path: Path after the buffer's name, such as `/episodes/7`.
        **query: The state of the page.
    """
    if buffer in _FOLDERS:
        query, buffer = {**query, "buffer": buffer}, _IN_QUERY
    return link(request, f"/buffers/{quote(buffer, safe='')}{path}", **query)


def episode_link(request: Request, buffer: str, number: int, **query: Any) -> str:
    """Return the address of the page of an episode, by its number in `episodes`."""
    return buffer_link(request, buffer, f"/episodes/{number}", **query)


def rollout_link(request: Request, buffer: str, rollout: Rollout, **query: Any) -> str:
    """Return the address of the page of a rollout."""
    if rollout.number is not None:
        return episode_link(request, buffer, rollout.number, **query)
    keys = {"task": rollout.task_id, "agent": rollout.agent_id}
    return buffer_link(request, buffer, "/task", **keys, **query)


def difference_link(request: Request, buffer: str, a: int, b: int, **query: Any) -> str:
    """Return the address of the difference between two conversations."""
    return buffer_link(request, buffer, "/difference", a=a, b=b, **query)


def buffer_of(request: Request) -> str:
    """Return the name of the buffer in an address."""
    name = str(request.path_params["name"])
    return request.query_params.get("buffer", name) if name == _IN_QUERY else name


def rollout_commands(url: str, buffer: str, rollout: Rollout) -> list[str]:
    """Return lines for a shell and for Python that show the steps of a rollout."""
    show = command_line("show", url, rollout.task_id, buffer=buffer, episode=rollout.episode_id)
    return [show, python_rows(url, buffer, _steps_of(rollout))]


def curve_commands(url: str, buffer: str, rollout: Rollout) -> list[str]:
    """Return lines for Python that show the numbers of the steps of a rollout."""
    data = ("reward_t", "v_t", "adv_t", "state", "actions", "extra")
    shown = ", ".join(
        ["row.exp_meta.step", "row.fields", *(f"row.exp_data.{name}" for name in data)]
    )
    return [python_rows(url, buffer, _steps_of(rollout), shown)]


def token_commands(url: str, buffer: str, rollout: Rollout) -> list[str]:
    """Return lines for Python that put the tokens of a rollout together."""
    rows = f"rows = list(buffer.{_steps_of(rollout)})"
    loop = "for rollout in rollouts([rows]):\n    print(rollout.sequences)"
    imported = "from sqlbuffer.llm import rollouts"
    return [f"{_opened(url, buffer)}\n{imported}\n{rows}\n{loop}"]


def word_commands(url: str, buffer: str, words: Sequence[str]) -> list[str]:
    """Return lines for Python that find the steps with some words."""
    texts = [word.lower() for word in words]
    shown = "row.exp_meta.task_id, row.exp_meta.episode_id, row.seq"
    return [
        f"{_opened(url, buffer)}\n"
        f"for row in buffer:\n"
        f"    text = str(row.exp_data).lower()\n"
        f"    if all(word in text for word in {texts!r}):\n"
        f"        print({shown})"
    ]


def draw_commands(url: str, buffer: str, rollout: Rollout, seqs: Sequence[int]) -> list[str]:
    """Return a line for a shell that shows the batches that held some steps of a rollout."""
    first, last = min(seqs, default=0), max(seqs, default=0)
    episode = "IS NULL" if rollout.episode_id is None else f"= {quoted(rollout.episode_id)}"
    statement = (
        "SELECT seq, batch_id, sampled_at, clock, sampler, position FROM v_samples\n"
        f"WHERE buffer = {quoted(buffer)} AND task_id = {quoted(rollout.task_id)}\n"
        f"  AND episode_id {episode} AND seq BETWEEN {first} AND {last}\n"
        "ORDER BY sampled_at DESC, batch_id DESC, position"
    )
    return [command_line("sql", url, statement)]


def _steps_of(rollout: Rollout) -> str:
    """Return the call that reads the steps of a rollout."""
    if rollout.episode_id is None:
        return f"get_by_task_id({rollout.task_id!r})"
    condition = QueryBuilder().eq("task_id", rollout.task_id).and_()
    tree = condition.eq("episode_id", rollout.episode_id).build()
    return f"get_all({readable_literal(tree)})"
