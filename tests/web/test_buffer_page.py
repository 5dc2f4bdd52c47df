import csv
import html
import io
import json
import math
import re
import shlex
import time
from collections import defaultdict
from datetime import UTC, datetime
from urllib.parse import quote

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import PrioritizedSampler, ReplayBuffer
from sqlbuffer.cli import app as command
from tests.support import web_lists
from tests.support.sql import run as run_sql
from tests.web.conftest import HOSTILE

FIELDS = {"obs": ("float32", (2,))}
N_EPISODES, N_STEPS = 12, 5


def fill(url, name, *, typed):
    """Store 12 episodes of 5 steps whose returns are 0, 5, 10 and so on, and draw some batches."""
    settings = {"priorities": True, "track_samples": True, "max_use": 50, "max_capacity": 1_000}
    fields = {"fields": FIELDS} if typed else {}
    with ReplayBuffer(url, name=name, **settings, **fields) as buffer:
        for number in range(N_EPISODES):
            with buffer.episode(f"t{number % 3}", model_version=number // 4) as episode:
                for _ in range(N_STEPS):
                    values = {"obs": np.zeros(2)} if typed else {"state": {"x": 1}}
                    episode.append(reward=float(number), **values)
        buffer.set_clock(5)
        for _ in range(3):
            draw = buffer.sample_arrays if typed else buffer.sample
            draw(8, sampler=PrioritizedSampler(seed=1))
        buffer.stats()


def curves_of(page):
    """Return the curves of a page by title: their axes and lines."""
    return {
        title: json.loads(data)
        for title, data in re.findall(
            r'<h2 id="title-\w+">(.*?)</h2>.*?<script type="application/json">(.*?)</script>',
            page,
            re.DOTALL,
        )
    }


def lines_of(curve):
    return {line["name"]: line["values"] for line in curve["lines"]}


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_curves_and_distributions_are_those_of_the_buffer(schema_url, client_of, typed):
    fill(schema_url, "train", typed=typed)
    response = client_of(schema_url).get("/buffer?buffer=train")
    assert response.status_code == 200
    page, curves = response.text, curves_of(response.text)
    returns = lines_of(curves["Returns"])
    assert returns["train"] == [N_STEPS * n for n in range(N_EPISODES)]
    assert lines_of(curves["Lengths of episodes"])["train"] == [N_STEPS] * N_EPISODES
    (line,) = curves["Returns"]["lines"]
    assert line["x"] == sorted(line["x"])
    assert set(lines_of(curves["Steps per second"])) == {"in", "≈ out"}
    stale = lines_of(curves["Staleness of sampled steps"])["train"]
    assert all(3 <= value <= 5 for value in stale)
    assert stale
    assert f"All {N_EPISODES} episodes that have ended." in page
    assert all(f"<h2>{title}" in page for title in ("Priorities", "Reuse", "Age in seconds"))
    assert page.count('<svg class="bars') == 5
    assert "Uses are counted in buffers with max_use" not in page


def date(url, name, typed, writes, draws, reported_s):
    """Store steps, and date their writes and draws: seconds after the begin of a minute -> number.

    Draws are kept in intervals of ten seconds.
    """
    begin = (time.time() // 60 - 10) * 60

    def moment(seconds):
        return f"{datetime.fromtimestamp(begin + seconds, UTC):%Y-%m-%dT%H:%M:%S}.000Z"

    table, number = ("chunks", "first_seq") if typed else ("experiences", "seq")
    with ReplayBuffer(url, name=name, **({"fields": FIELDS} if typed else {})) as buffer:
        for seconds, n in writes.items():
            last = buffer.stats().inserted
            buffer.extend({"obs": np.zeros((n, 2))} if typed else {"state": [{}] * n})
            dated = f"UPDATE {table} SET inserted_at = '{moment(seconds)}' WHERE {number} > {last}"
            run_sql(url, dated)
        buffer.sample(1)
    run_sql(url, f"UPDATE flow SET heartbeat_at = '{moment(reported_s)}'")
    run_sql(url, "DELETE FROM flow_history")
    for seconds, n in draws.items():
        run_sql(
            url,
            "INSERT INTO flow_history (buffer_id, bucket, holder, n_sampled, n_batches) "
            f"SELECT id, {int(begin + seconds) // 10}, 'a', {n}, 1 FROM buffers",
        )


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_rates_and_ratios_are_of_all_that_was_written_and_drawn(schema_url, client_of, typed):
    date(schema_url, "train", typed, {3: 50, 8: 30, 17: 20}, {0: 340, 10: 340}, 19)
    page = client_of(schema_url).get("/buffer?buffer=train").text
    curves = curves_of(page)
    speed = lines_of(curves["Steps per second"])
    assert speed["in"] == pytest.approx([80 / 7, 20 / 9], rel=1e-3)
    assert speed["≈ out"] == pytest.approx([340 / 7, 340 / 9], rel=1e-3)
    assert lines_of(curves["Samples per insert"]) == {"≈ sampled / written": [6.8]}
    numbers = re.findall(r"<tr><th scope=.row.><span[^>]*>(.*?)</span></th>(.*?)</tr>", page)
    means = {label: cells.split("</td>")[1].split(">")[1] for label, cells in numbers}
    assert (means["in"], means["≈ out"]) == ("6.25", "42.5")
    assert means["≈ sampled / written"] == "6.8"


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_the_newest_interval_of_a_live_run_is_shown_when_it_is_over(schema_url, client_of, typed):
    # The run writes 5 steps and samples 20 rows a second, also while the page is read.
    last = int(time.time() - (time.time() // 60 - 10) * 60) + 127
    writes = dict.fromkeys([0, *range(15, last, 10)], 50)
    draws = dict.fromkeys(range(0, last - 9, 10), 200)
    date(schema_url, "train", typed, writes, draws, last)
    curves = curves_of(client_of(schema_url).get("/buffer?buffer=train").text)
    speed = lines_of(curves["Steps per second"])
    assert speed["in"] == pytest.approx([5.0] * len(speed["in"]), rel=1e-3)
    assert speed["≈ out"] == pytest.approx([20.0] * len(speed["in"]), rel=1e-3)
    (ratios,) = lines_of(curves["Samples per insert"]).values()
    assert len(ratios) >= 9
    assert ratios == pytest.approx([4.0] * len(ratios), rel=1e-3)


def test_a_short_interval_at_the_end_of_a_run_is_no_peak(schema_url, client_of):
    date(schema_url, "train", False, {0: 50, 15: 50, 25: 50, 31: 50}, {0: 100, 10: 100}, 31)
    speed = lines_of(
        curves_of(client_of(schema_url).get("/buffer?buffer=train").text)["Steps per second"]
    )
    assert speed["in"] == pytest.approx([5.0, 5.0, 100 / 11], rel=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_draws_before_the_oldest_step_left_have_no_ratio(schema_url, client_of, typed):
    date(schema_url, "train", typed, {3: 50, 8: 30, 63: 20}, {0: 340, 50: 340, 60: 60}, 69)
    table, number = ("chunks", "first_seq") if typed else ("experiences", "seq")
    run_sql(schema_url, f"DELETE FROM {table} WHERE {number} <= 50")
    page = client_of(schema_url).get("/buffer?buffer=train").text
    # The first interval begins after the oldest step; the second is short, and joins it.
    ratio = lines_of(curves_of(page)["Samples per insert"])["≈ sampled / written"]
    assert ratio == [20.0]
    assert '<td class="n">20</td>' in page  # the mean: 400 / 20


def test_an_empty_buffer_says_of_each_figure_what_is_missing(schema_url, client_of):
    ReplayBuffer(schema_url, name="empty").close()
    page = client_of(schema_url).get("/buffer?buffer=empty").text
    assert curves_of(page) == {}
    assert "<svg" not in page
    (line,) = re.findall(r"<summary>No data for (.*?)</summary>", page)
    titles = line.split(", ")
    assert titles[:2] == ["Returns", "Lengths of episodes"]
    reasons = re.findall(
        r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.split("No data for")[1].split("</dl>")[0]
    )
    assert [title for title, _ in reasons] == titles
    assert len(titles) == 10
    assert all(reason for _, reason in reasons)


def test_odd_returns_are_drawn_as_far_as_they_are_numbers(schema_url, client_of):
    with ReplayBuffer(schema_url, name="odd") as buffer:
        for number, reward in enumerate([math.nan, math.inf, -math.inf, 1e200, -1e200, None, 2.0]):
            with buffer.episode(f"t{number}") as episode:
                episode.append(state=1, reward=reward)
    response = client_of(schema_url).get("/buffer?buffer=odd")
    assert response.status_code == 200
    assert lines_of(curves_of(response.text)["Returns"])["odd"] == [1e200, -1e200, 2.0]
    assert "NaN" not in response.text


HISTORIES = (
    "last=15m", "last=all", "last=none", "since=1", "since=x&until=y", "since=1e300", "until=nan",
    "since=99999999999", "since=5&until=1", "since=-1", "since=&until=",
)  # fmt: skip


@pytest.mark.thorough
def test_any_part_of_the_history_can_be_in_the_address(schema_url, client_of):
    fill(schema_url, "train", typed=False)
    client = client_of(schema_url)
    for query in HISTORIES:
        response = client.get(f"/buffer?buffer=train&{query}")
        assert response.status_code == 200, query
        assert "rows <b>60</b>" in response.text


def test_a_part_of_the_history_has_its_episodes_alone(schema_url, client_of):
    fill(schema_url, "train", typed=False)
    for number in range(5):
        run_sql(
            schema_url,
            f"UPDATE episodes SET started_at = '2020-01-0{number + 1}T00:00:00.000Z', "
            f"ended_at = '2020-01-0{number + 1}T00:00:01.000Z' WHERE id = (SELECT id "
            f"FROM episodes ORDER BY id LIMIT 1 OFFSET {number})",
        )
    client = client_of(schema_url)

    def returns(query):
        curve = curves_of(client.get(f"/buffer?buffer=train&{query}").text).get("Returns")
        return [] if curve is None else lines_of(curve)["train"]

    assert returns("last=1h") == [N_STEPS * n for n in range(5, N_EPISODES)]
    assert returns("until=1600000000") == [N_STEPS * n for n in range(5)]
    assert returns("since=1500000000&until=1550000000") == []


@pytest.mark.each_value
@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_the_lines_of_each_page_run_and_find_the_same(hostile_url, client_of, typed):
    fill(hostile_url, f"train {HOSTILE}", typed=typed)
    client, name = client_of(hostile_url), quote(f"train {HOSTILE}", safe="")
    paths = ["/", f"/buffer?buffer={name}&last=1h", f"/sql?q={quote('SELECT 42 AS answer')}"]
    printed = defaultdict(list)
    for path in paths:
        page = client.get(path).text
        lines = web_lists.lines_of(page)
        assert lines
        for line in lines:
            if not line.startswith("sqlbuffer "):
                names = {}
                exec(line, names)
                names["buffer"].close()
                continue
            words = shlex.split(line)[1:]
            options = ["--once"] if words[0] == "watch" else ["--csv"] if words[0] == "sql" else []
            result = CliRunner().invoke(command, [words[0], *options, *words[1:]])
            assert result.exit_code == 0, (line, result.output)
            printed[path, words[0]].append(result.stdout)
    assert printed[paths[2], "sql"] == ["answer\n42\n"]
    (watched,) = printed[paths[1], "watch"]
    assert watched.count("\n") == 1
    tables = [[*csv.DictReader(io.StringIO(text))] for text in printed[paths[1], "sql"]]
    episodes, written, sampled, staleness, priorities = tables
    curves = curves_of(client.get(paths[1]).text)
    returns = sorted(float(each["episode_return"]) for each in episodes)
    assert returns == sorted(*lines_of(curves["Returns"]).values())
    assert sum(int(each["written"]) for each in written) == N_EPISODES * N_STEPS
    assert sum(int(each["sampled"]) for each in sampled) == 3 * 8
    found = {f"{float(each['staleness']):.6g}" for each in staleness}
    assert len(staleness) == 3
    # Of batches at about the same time, the curve has one.
    (shown,) = lines_of(curves["Staleness of sampled steps"]).values()
    assert {f"{value:.6g}" for value in shown} <= found
    assert len(priorities) == N_EPISODES * N_STEPS


@pytest.mark.parametrize("typed", [False, True])
def test_tasks_without_episodes_and_open_episodes_have_curves(schema_url, client_of, typed):
    settings = {"fields": FIELDS} if typed else {}
    with ReplayBuffer(schema_url, name="open", **settings) as buffer:
        for number in range(6):
            keys = {"task_id": f"t{number}", "episode_id": "e" if number % 2 else None}
            values = {"obs": np.zeros((3, 2))} if typed else {"state": [{}] * 3}
            buffer.extend({**values, "reward": np.full(3, float(number))}, **keys)
    page = client_of(schema_url).get("/buffer?buffer=open").text
    assert "The newest 6 rollouts that are stored" in page
    assert sorted(lines_of(curves_of(page)["Returns"])["open"]) == [0.0, 3.0, 6.0, 9.0, 12.0, 15.0]
    assert set(lines_of(curves_of(page)["Lengths of episodes"])["open"]) == {3.0}
    ReplayBuffer(schema_url, name="empty").close()
    page = client_of(schema_url).get("/buffer?buffer=empty").text
    assert "No rollout has ended" in page


def test_an_axis_of_versions_without_versions_is_explained(schema_url, client_of):
    with ReplayBuffer(schema_url, name="train") as buffer:
        buffer.store_episode({"state": [{}, {}], "reward": np.ones(2)}, task_id="t")
    page = client_of(schema_url).get("/figures?buffer=train&x=version").text
    assert curves_of(page) == {}
    reasons = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page.split("No data for")[1]))
    for title in ("Returns", "Lengths of episodes", "Steps per second"):
        assert reasons[title] == "No episode here has a model version."


AGENTS = ("actor-1", "actor-2", None)


def fill_runs(url, name, *, typed, offset=0.0):
    """Store 9 episodes of 2 steps by three agents, in two sessions and three versions."""
    fields = {"fields": FIELDS} if typed else {}
    with ReplayBuffer(url, name=name, create=True, **fields) as buffer:
        for session in ("session 0", "session 5"):
            buffer.start_session(session)
        for number in range(9):
            values = {"obs": np.zeros((2, 2))} if typed else {"state": [{}, {}]}
            agent = AGENTS[number % 3]
            buffer.store_episode(
                {**values, "reward": np.array([0.0, number + offset])},
                task_id=f"t{number}", model_version=number // 3,
                session_id=f"session {5 * (number // 5)}",
                **({"agent_id": agent} if agent else {}),
            )  # fmt: skip


def stored_episodes(url, name):
    """Return what SQL says of the episodes of a buffer, in order."""
    return run_sql(
        url,
        "SELECT e.episode_return, e.last_seq, e.model_version, e.agent_id, s.session_id "
        "FROM v_episodes e JOIN v_experiences s ON s.buffer = e.buffer AND s.seq = e.last_seq "
        f"WHERE e.buffer = '{name}' ORDER BY e.last_seq",
    )


def test_agents_keep_their_colors_next_to_another_buffer(schema_url, client_of):
    for name in ("a", "b"):
        with ReplayBuffer(schema_url, name=name) as buffer:
            for number in range(6):
                keys = {"task_id": f"t{number}", "agent_id": f"actor-{number}"}
                buffer.store_episode({"state": [{}], "reward": np.ones(1)}, **keys)
    client = client_of(schema_url)

    def looks(query):
        curve = curves_of(client.get(f"/figures?buffer=a&by=agent&{query}").text)["Returns"]
        return {line["name"]: (line["color"], line["dash"]) for line in curve["lines"]}

    alone, both = looks("x=step"), looks("with=b")
    assert len({color for color, _ in alone.values()}) == 6
    for name, (color, _) in alone.items():
        assert both[f"a: {name}"] == (color, 0)
        assert both[f"b: {name}"] == (color, 1)


@pytest.mark.parametrize("n_versions", [14, 100])
def test_lines_for_each_version_are_shades_and_say_which_are_left_out(
    schema_url, client_of, n_versions
):
    with ReplayBuffer(schema_url, name="a") as buffer:
        for version in range(n_versions):
            values = {"state": [{}], "reward": np.ones(1)}
            buffer.store_episode(values, task_id="t", model_version=version)
    client = client_of(schema_url)
    page = client.get("/buffer?buffer=a&by=version&x=step").text
    colors = [line["color"] for line in curves_of(page)["Returns"]["lines"]]
    assert colors == [*range(13, 25)]
    assert f"12 of {n_versions} lines: at even distances." in page
    assert page.count("by=version") > page.count("x=version&amp;by=version")
    assert "x=version&amp;by=version" not in page
    assert "by=version&amp;x=version" not in page
    page = client.get("/buffer?buffer=a&by=version&x=version").text
    assert "Lines for each version need an axis of times, steps or episodes." in page
    (line,) = curves_of(page)["Returns"]["lines"]
    assert line["x"] == [*range(n_versions)]


def test_an_address_with_mistakes_says_what_is_wrong(schema_url, client_of):
    fill_runs(schema_url, "train", typed=False)
    client = client_of(schema_url)
    page = html.unescape(client.get("/buffer?buffer=train&with=nope").text)
    assert "There is no buffer 'nope' to compare with." in page
    assert "Remove nope" not in page
    page = html.unescape(client.get("/buffer?buffer=train&since=99999999999&until=5").text)
    assert "since (5138-11-16 09:46:39 UTC) is after until (1970-01-01 00:00:05 UTC)" in page
    assert len(lines_of(curves_of(page)["Returns"])["train"]) == 9
    page = html.unescape(client.get("/buffer?buffer=train&since=yesterday").text)
    assert "since=yesterday is not a Unix time in seconds: it is ignored." in page
    assert 'class="notice"' not in client.get("/buffer?buffer=train&since=5").text


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_episodes_without_a_finite_reward_are_counted_on_the_card(schema_url, client_of, typed):
    with ReplayBuffer(schema_url, name="a", **({"fields": FIELDS} if typed else {})) as buffer:
        for number in range(9):
            values = {"obs": np.zeros((2, 2))} if typed else {"state": [{}] * 2}
            reward = np.full(2, {7: math.nan, 8: math.nan, 3: math.inf}.get(number, 1.0))
            buffer.store_episode({**values, "reward": reward}, task_id="t")
    page = client_of(schema_url).get("/buffer?buffer=a").text
    assert "3 episodes without a finite reward, the newest 2 among them: not drawn." in page
    assert "Left out: 3 without a finite value." in page


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_a_sum_with_a_reward_that_is_not_a_number_is_not_one(schema_url, client_of, typed):
    sums = {
        "part": [math.nan, 1.0, math.nan], "all": [math.nan] * 3, "zeros": [math.nan, 0.0, 0.0],
        "known": [0.0, 0.0, 0.0],
    }  # fmt: skip
    with ReplayBuffer(schema_url, name="a", **({"fields": FIELDS} if typed else {})) as buffer:
        for name, rewards in sums.items():
            values = {"obs": np.zeros((3, 2))} if typed else {"state": [{}] * 3}
            buffer.store_episode({**values, "reward": np.array(rewards)}, episode_id=name)
    client = client_of(schema_url)
    numbers = dict(run_sql(schema_url, "SELECT key, id FROM episodes"))
    for name, n, others in (("part", 2, "1"), ("all", 3, None), ("zeros", 1, "0")):
        for view in ("", "?view=curves"):
            page = client.get(f"/buffers/a/episodes/{numbers[name]}{view}").text
            assert "<b>nan</b>" in page.split('class="facts"')[1].split("</ul>")[0]
            assert f"{n} reward{'s' * (n > 1)} not a number" in page
            assert ("sum of the others" in page) == (others is not None)
            if others is not None:
                assert f"sum of the others {others}</span>" in page
    assert "not a number" not in client.get(f"/buffers/a/episodes/{numbers['known']}").text
    page = client.get("/episodes?buffer=a").text
    cells = re.findall(r'data-col="reward"[^>]*>(.*?)</td>', page)
    # Of a list, the first and the last reward of each are read.
    assert cells == ["0", "nan", "nan", "nan"]


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_a_curve_is_drawn_by_step_episode_or_version(schema_url, client_of, typed):
    fill_runs(schema_url, "train", typed=typed)
    client, stored = client_of(schema_url), stored_episodes(schema_url, "train")
    curves = {
        axis: curves_of(client.get(f"/figures?buffer=train&x={axis}").text)
        for axis in ("time", "step", "episode", "version", "none")
    }
    lines = {axis: found["Returns"]["lines"][0] for axis, found in curves.items()}
    assert {curve["axis"] for found in curves.values() for curve in found.values()} == {
        "time", "step", "episode", "version",
    }  # fmt: skip
    assert lines["step"]["x"] == [seq for _, seq, *_ in stored]
    assert lines["episode"]["x"] == [*range(1, 10)]
    assert lines["version"]["x"] == [0, 1, 2]
    assert lines["version"]["values"] == [1, 4, 7]
    assert lines["time"] == lines["none"]
    for axis in ("time", "step", "episode"):
        assert lines[axis]["values"] == [value for value, *_ in stored]
    (speed,) = {tuple(c["Steps per second"]["lines"][0]["x"]) for c in [curves["step"]]}
    assert speed[-1] == 18


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_episodes_have_a_line_for_each_agent_session_or_version(schema_url, client_of, typed):
    fill_runs(schema_url, "train", typed=typed)
    client, stored = client_of(schema_url), stored_episodes(schema_url, "train")
    for by, place in (("agent", 3), ("session", 4), ("version", 2)):
        wanted = defaultdict(list)
        for row in stored:
            wanted[str(row[place])].append(row[0])
        curve = curves_of(client.get(f"/figures?buffer=train&by={by}&x=step").text)["Returns"]
        found = lines_of(curve)
        if by == "agent":  # the episodes without one
            wanted[next(iter(found.keys() - wanted.keys()), "None")] = wanted.pop("None", [])
            wanted = {name: values for name, values in wanted.items() if values}
        assert found == wanted
        assert len({line["color"] for line in curve["lines"]}) > 1


def test_other_buffers_have_lines_whose_color_follows_their_name(schema_url, client_of):
    for name, offset in (("a", 0.0), ("b", 100.0), (HOSTILE, 200.0)):
        fill_runs(schema_url, name, typed=False, offset=offset)
    client = client_of(schema_url)
    others = f"with=b&with={quote(HOSTILE, safe='')}&with=none&with=%00&with=b&with=a"
    curves = curves_of(client.get(f"/figures?buffer=a&{others}").text)
    lines = lines_of(curves["Returns"])
    assert list(lines) == ["a", "b", HOSTILE]
    assert lines["b"] == [value + 100 for value in lines["a"]]
    # Runs of different days have their steps in common.
    assert curves["Returns"]["axis"] == "step"
    colors = {line["name"]: line["color"] for line in curves["Returns"]["lines"]}
    for name, color in colors.items():
        page = client.get(f"/buffer?buffer={quote(name, safe='')}").text
        assert curves_of(page)["Returns"]["lines"][0]["color"] == color
        assert f'swatch c-{color}"></span>' in page
    assert set(lines_of(curves["Steps per second"])) >= {"a in", "b in"}


def test_the_facts_of_a_run_are_in_its_head(schema_url, client_of):
    fill_runs(schema_url, "train", typed=True)
    with ReplayBuffer(schema_url, "train") as buffer:
        buffer.set_model_version(2)
    page = html.unescape(client_of(schema_url).get("/figures?buffer=train").text)
    facts = re.sub(r"<[^>]+>", " ", page.split('class="about"')[1].split("</details>")[0])
    facts = " ".join(facts.split())
    assert "Fields 1" in facts
    assert "obs float32 2" in facts
    assert "model versions 0 to 2" in facts
    assert "sessions 2" in facts
    assert "session 5 version 2 current" in facts
    assert "session 0" in facts
    assert "stopped without ending" not in page


@pytest.mark.parametrize("typed", [False, True], ids=["rows", "chunks"])
def test_collectors_that_stopped_without_ending_are_listed(schema_url, client_of, typed):
    table = "chunks" if typed else "experiences"
    values = {"obs": np.zeros((1, 2))} if typed else {"state": [{}]}
    fields = {"fields": FIELDS} if typed else {}
    with ReplayBuffer(schema_url, "train", **fields) as buffer:
        for name in ("dead", "busy", "abandoned"):
            keys = {"task_id": "t", "episode_id": f"of {name}", "agent_id": HOSTILE + name}
            buffer.extend({**values, "reward": [1.0]}, **keys)
        buffer.store_episode({**values, "reward": [1.0]}, task_id="t", episode_id="ended")
    client = client_of(schema_url)
    assert "without ending" not in client.get("/figures?buffer=train").text
    for name, age_s in (("dead", 1_200), ("abandoned", 7_200)):
        moment = f"{datetime.fromtimestamp(time.time() - age_s, UTC):%Y-%m-%dT%H:%M:%S}.000Z"
        of = f"(SELECT id FROM episodes WHERE key = 'of {name}')"
        run_sql(schema_url, f"UPDATE episodes SET started_at = '{moment}' WHERE id = {of}")
        run_sql(schema_url, f"UPDATE {table} SET inserted_at = '{moment}' WHERE episode_id = {of}")
    page = client.get("/figures?buffer=train").text
    assert "2 collectors have stopped without ending" in page
    body = page.split('class="stopped"')[1].split("</details>")[0]
    rows = [
        [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]
        for cells in (re.findall(r"<t[hd].*?</t[hd]>", row) for row in body.split("<tr>")[2:])
    ]
    assert rows == [
        [f"{HOSTILE}abandoned", "of abandoned", "t", "abandoned", "2 h"],
        [f"{HOSTILE}dead", "of dead", "t", "open", "20 min"],
    ]
    link = html.unescape(re.search(r'href="([^"]+)"', body)[1])
    assert "of abandoned" in client.get(link).text
