"""Every page, on both databases, in a real browser next to a running writer."""

import json
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import make_url

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.web.application import PAGES
from tests.integrations.web.conftest import running_writer, talk
from tests.support import sql
from tests.support.processes import wait_until
from tests.support.web_pages import NO_PAGES, kind_of

MOST_OF_A_KIND = 3


def number(text):
    return float(text.replace(",", "").rstrip("%"))


def kinds_of(paths):
    """Return one address of each kind of page."""
    return list({kind_of(path): path for path in reversed(paths)}.values())


def walk(visit):
    """Open the pages that the pages link to, a few of each kind; return their addresses."""
    seen, waiting, counts = [], ["/"], Counter()
    while waiting:
        path = waiting.pop(0)
        kind = kind_of(path)
        if path in seen or counts[kind] == MOST_OF_A_KIND or kind.endswith(NO_PAGES):
            continue
        response = visit.page.goto(f"{visit.address}{path}", wait_until="domcontentloaded")
        assert response.status == 200, path
        assert "unsafe-inline" not in response.headers["content-security-policy"]
        seen.append(path)
        counts[kind] += 1
        waiting += visit.links()
    return seen


def routes():
    """Return the paths of the pages that are not parts or downloads."""
    return {route.path for module in PAGES for route in module.ROUTES}


def test_every_page_opens_next_to_a_running_writer(filled, visit):
    browser = visit(filled)
    with running_writer(filled):
        seen = walk(browser)
    kinds = {path.partition("?")[0] for path in seen}
    parts = {"/live", "/episodes/live", "/figures"} | {
        path for path in routes() if path.endswith(".csv") or "{" in path
    }
    assert routes() - parts <= kinds


def test_every_kind_of_page_can_be_used_by_all(filled, visit):
    browser = visit(filled)
    found = {}
    for path in kinds_of(walk(browser)):
        browser.open(path)
        if violations := browser.violations_in_both_schemes():
            found[path] = violations
    assert found == {}


def test_pages_can_be_read_without_scripts(filled, visit):
    browser = visit(filled, java_script_enabled=False)
    browser.open("/buffer?buffer=talks")
    assert browser.page.inner_text("h1") == "talks"
    browser.open("/sql?q=SELECT%207%20AS%20seven")
    assert browser.cells("[aria-label=Answer] table") == [["7"]]


def test_the_buffers_are_those_of_the_database(filled, visit):
    # With scripts, figures of up to two seconds ago may take their place.
    browser = visit(filled, java_script_enabled=False)
    question = "SELECT buffer, rows, capacity FROM v_buffers ORDER BY buffer"
    with running_writer(filled):
        before = {name: rows for name, rows, _ in sql.run(filled, question)}
        browser.open("/")
        shown = {cells[0]: number(cells[1]) for cells in browser.cells()}
        after = {name: rows for name, rows, _ in sql.run(filled, question)}
    assert shown.keys() == before.keys() == {"arrays", "empty", "running", "talks"}
    wrong = {
        n: (before[n], shown[n], after[n]) for n in shown if not before[n] <= shown[n] <= after[n]
    }
    assert wrong == {}
    assert before["running"] < after["running"]


def test_figures_follow_the_writer_without_a_reload(filled, visit):
    browser = visit(filled)
    browser.open("/")
    with running_writer(filled):
        browser.page.wait_for_selector("tr:has-text('running')")
        cell = browser.page.locator("tr:has-text('running') td").first
        first = number(cell.inner_text())
        wait_until(lambda: number(cell.inner_text()) > first, "more steps")


def test_a_list_of_episodes_counts_newer_ones_and_shows_them(filled, visit):
    page = visit(filled).open("/episodes?buffer=talks")
    n = page.locator("tbody tr").count()
    wait_until(lambda: page.inner_text("[data-live-note]") == "live", "a live list")
    with ReplayBuffer(filled, "talks") as buffer:
        buffer.store_batch([*talk("newer", 2, episode="newer")])
    page.get_by_text("1 newer, show").click()
    page.wait_for_selector("tr:has-text('newer')")
    assert page.locator("tbody tr").count() == n + 1


def test_brackets_go_to_the_next_and_the_previous_episode(filled, visit):
    page = visit(filled).open("/episodes?buffer=talks&sort=oldest")
    page.locator("tbody a").first.click()
    page.wait_for_selector("h1:has-text('e0')")
    page.keyboard.press("]")
    page.wait_for_selector("h1:has-text('e1')")
    page.keyboard.press("[")
    page.wait_for_selector("h1:has-text('e0')")


def test_ages_go_on(filled, visit):
    page = visit(filled).open("/episodes?buffer=talks")
    age = page.locator("td[data-col=began] time").first
    first = age.inner_text()
    wait_until(lambda: age.inner_text() != first, "an older age")


def test_the_facts_of_a_buffer_are_those_of_the_database(filled, visit):
    browser = visit(filled)
    page = browser.open("/buffer?buffer=arrays")
    facts = dict(line.split("\n")[:2] for line in page.locator(".facts li").all_inner_texts())
    ((rows,),) = sql.run(filled, "SELECT count(*) FROM v_experiences WHERE buffer = 'arrays'")
    ((episodes,),) = sql.run(filled, "SELECT count(*) FROM v_episodes WHERE buffer = 'arrays'")
    assert (number(facts["rows"]), number(facts["episodes"])) == (rows, episodes) == (100, 20)


ORDERS = {
    "newest": "first_seq DESC",
    "worst": "episode_return",
    "model descending": "model_version DESC",
}


@pytest.mark.parametrize("sort", ORDERS)
def test_the_episodes_next_to_a_writer_are_those_of_sql(filled, visit, sort):
    browser = visit(filled)
    question = (
        "SELECT episode_id, task_id, agent_id, status, episode_return, length, model_version "
        f"FROM v_episodes WHERE buffer = 'arrays' ORDER BY {ORDERS[sort]}"
    )
    steps = "SELECT count(*) FROM v_experiences WHERE buffer = 'running'"
    with running_writer(filled):
        browser.open(f"/episodes?buffer=arrays&sort={quote(sort)}")
        shown = browser.cells()
        before = sql.scalar(filled, steps)
        browser.open("/episodes?buffer=running")
        ((name, task, _, _, _, length, *_),) = browser.cells()
        after = sql.scalar(filled, steps)
    found = [
        [
            *cells[:4],
            pytest.approx(number(cells[4]), abs=1e-3, rel=1e-3),
            number(cells[5]),
            number(cells[7]),
        ]
        for cells in shown
    ]
    assert found == [list(row) for row in sql.run(filled, question)]
    assert (name, task) == ("without an episode", "task")
    assert before <= number(length) <= after


def test_the_groups_next_to_a_writer_are_those_of_sql(filled, visit):
    browser = visit(filled)
    question = (
        "SELECT task_id, count(*), avg(episode_return), min(episode_return), max(episode_return) "
        "FROM v_episodes WHERE buffer = 'arrays' GROUP BY task_id "
        "ORDER BY max(episode_return) - min(episode_return) DESC"
    )
    with running_writer(filled):
        browser.open("/groups?buffer=arrays")
        shown = browser.cells()
        browser.page.click("main table tbody a")
        browser.page.wait_for_url("**/group?**")
        best = [number(cells[1]) for cells in browser.cells()]
    wanted = sql.run(filled, question)
    assert [cells[0] for cells in shown] == [task for task, *_ in wanted]
    for cells, (_, n, *figures) in zip(shown, wanted, strict=True):
        assert number(cells[1]) == n
        assert [number(cells[i]) for i in (2, 4, 5)] == pytest.approx(figures, rel=2e-3)
    returns = sql.run(
        filled, "SELECT episode_return FROM v_episodes WHERE task_id = :task", task=wanted[0][0]
    )
    assert best == pytest.approx(sorted((value for (value,) in returns), reverse=True), rel=1e-3)


def test_the_curves_next_to_a_writer_are_those_of_sql(filled, visit):
    browser = visit(filled)
    with running_writer(filled):
        page = browser.open("/buffer?buffer=arrays")
        page.wait_for_selector("[data-curve] canvas")
        titles = page.locator("[data-curve] h2").all_inner_texts()
        texts = page.locator("[data-curve] script").all_text_contents()
    curves = {title: json.loads(text) for title, text in zip(titles, texts, strict=True)}
    for title, column in (("Returns", "episode_return"), ("Lengths of episodes", "length")):
        question = f"SELECT {column} FROM v_episodes WHERE buffer = 'arrays' ORDER BY first_seq"
        (line,) = curves[title]["lines"]
        wanted = [value for (value,) in sql.run(filled, question)]
        assert sorted(line["values"]) == pytest.approx(sorted(wanted), rel=1e-4)
        assert (line["name"], len(wanted)) == ("arrays", 20)
    assert [line["name"] for line in curves["Steps per second"]["lines"]] == ["in", "≈ out"]


def test_a_statement_shows_what_it_finds(filled, visit):
    browser = visit(filled)
    page = browser.open("/sql")
    statement = "SELECT task_id, steps, total_reward FROM v_tasks WHERE buffer = 'talks' ORDER BY 1"
    page.keyboard.press("/")
    page.keyboard.type(statement)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("[aria-label=Answer]")
    shown = [[a, float(b), float(c)] for a, b, c in browser.cells("[aria-label=Answer] table")]
    assert shown == [list(row) for row in sql.run(filled, statement)]
    # The address is the state: another tab shows the same.
    assert page.input_value("textarea") == statement
    other = browser.context.new_page()
    other.goto(page.url)
    assert other.inner_text("[aria-label=Answer]") == page.inner_text("[aria-label=Answer]")


def test_an_answer_is_downloaded_as_csv(filled, visit):
    browser = visit(filled)
    page = browser.open(f"/sql?q={quote('SELECT 7 AS seven')}")
    with page.expect_download() as download:
        page.click("text=Download CSV")
    assert download.value.suggested_filename == "answer.csv"
    with open(download.value.path()) as file:
        assert file.read() == "seven\n7\n"


@pytest.mark.parametrize("statement", ["DELETE FROM experiences", "SELEKT 1"])
def test_a_statement_that_is_refused_is_explained(filled, visit, statement):
    browser = visit(filled)
    page = browser.open(f"/sql?q={quote(statement)}")
    assert page.inner_text("[role=alert]")
    assert browser.violations() == []
    assert sql.scalar(filled, "SELECT count(*) FROM v_experiences") == 124


def test_the_keyboard_leads_through_the_rows(filled, visit):
    browser = visit(filled)
    page = browser.open("/")

    def focused():
        return page.evaluate("document.activeElement.innerText")

    page.keyboard.press("j")
    assert focused() == "arrays"
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert focused() == "talks"
    page.keyboard.press("j")  # the last one stays
    page.keyboard.press("k")
    assert focused() == "empty"
    page.keyboard.press("Enter")
    page.wait_for_url("**/buffer?buffer=empty")


def test_a_question_mark_shows_the_keys(filled, visit):
    browser = visit(filled)
    page = browser.open("/")
    assert not page.is_visible("dialog#keys")
    page.keyboard.press("?")
    assert page.is_visible("dialog#keys")
    page.keyboard.press("Escape")
    assert not page.is_visible("dialog#keys")


def test_a_slash_goes_to_the_search_and_is_typed_there(filled, visit):
    browser = visit(filled)
    page = browser.open("/sql")
    page.keyboard.press("/")
    page.keyboard.type("/j?")
    assert page.input_value("textarea") == "/j?"
    assert not page.is_visible("dialog#keys")


def test_the_theme_is_that_of_the_system_until_it_is_switched(filled, visit):
    browser = visit(filled, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    page = browser.open("/")
    dark = page.evaluate(ground)
    page.emulate_media(color_scheme="light")
    wait_until(lambda: page.evaluate(ground) != dark, "the light theme")
    page.click("[data-theme-switch]")
    assert page.evaluate(ground) == dark
    browser.open("/sql")
    assert page.evaluate(ground) == dark  # it is kept


def test_an_empty_buffer_has_its_pages(filled, visit):
    browser = visit(filled)
    page = browser.open("/buffer?buffer=empty")
    assert page.inner_text("h1") == "empty"
    for path in [link for link in browser.links() if "buffer=empty" in link]:
        assert page.goto(f"{browser.address}{path}").status == 200
        assert browser.violations() == []


def test_a_buffer_that_was_dropped_is_told(filled, visit):
    browser = visit(filled)
    page = browser.open("/buffer?buffer=talks")
    paths = [link for link in browser.links() if "buffer=talks" in link]
    ReplayBuffer.drop(filled, "talks")
    # The page of SQL is about the database. Its examples keep the name.
    statuses = {}
    for path in paths:
        statuses[path.partition("?")[0]] = page.goto(f"{browser.address}{path}").status
        assert "talks" in page.content()
    assert statuses.pop("/sql") == 200
    assert statuses
    assert set(statuses.values()) == {404}
    browser.open("/buffer?buffer=talks")
    page.click("main a")
    page.wait_for_url("**/")
    assert [cells[0] for cells in browser.cells()] == ["arrays", "empty"]


def test_a_conversation_of_a_running_writer_is_whole(filled, visit):
    """What is stored while a page is open is there after a reload."""
    browser = visit(filled)
    browser.open("/buffer?buffer=talks")
    with ReplayBuffer(filled, "talks") as buffer:
        buffer.store_batch([*talk("later", 2, episode="later")])
    page = browser.open("/buffer?buffer=talks")
    assert "26" in page.inner_text(".facts")


# Conversations in a real browser: what is shown is what is stored.


def address_of(url, buffer, place=0):
    """Return the address of an episode of a buffer."""
    question = (
        "SELECT e.id FROM episodes e JOIN buffers b ON b.id = e.buffer_id "
        "WHERE b.name = :buffer ORDER BY e.id"
    )
    numbers = [number for (number,) in sql.run(url, question, buffer=buffer)]
    return f"/buffers/{buffer}/episodes/{numbers[place]}"


def test_a_conversation_has_each_turn_once_with_its_reward(filled, visit):
    browser = visit(filled)
    page = browser.open(address_of(filled, "talks"))
    question = (
        "SELECT step, reward FROM v_experiences WHERE buffer = 'talks' AND episode_id = 'e0' "
        "ORDER BY step"
    )
    stored = sql.run(filled, question)
    steps = page.locator("section.step")
    shown = [
        (
            int(step.locator(".number").inner_text().split()[1]),
            float(step.locator("b").inner_text()),
        )
        for step in steps.all()
    ]
    assert shown == stored == [(0, 0.0), (1, 1.0), (2, 2.0)]
    said = page.locator(".turn.user .said").all_text_contents()
    assert said[-1] == "Add 2. 2"
    calls = page.locator(".call:has(.tool-name)")
    assert json.loads(calls.first.locator(".said").first.text_content()) == {"a": 0}
    assert page.locator(".turn.system").count() == 1  # the others are folded
    assert browser.violations() == []


def test_two_conversations_are_compared(filled, visit):
    browser = visit(filled)
    with ReplayBuffer(filled, "talks") as buffer:
        for name, answer in (("left", "I say yes."), ("right", "I say no.")):
            said = [{"role": "user", "content": "Well?"}, {"role": "assistant", "content": answer}]
            values = Experience({}, ["say"], 1.0, messages=said, terminated=True)
            buffer.store(DataRow(ExpMeta(name, "c", "a", 0, 1.7e9, episode_id=name), values))
    left, right = (address_of(filled, "talks", place).rsplit("/", 1)[1] for place in (-2, -1))
    page = browser.open(f"/buffers/talks/difference?a={left}&b={right}")
    text = page.inner_text("main")
    assert "I say yes." in text
    assert "I say no." in text
    assert browser.violations() == []


def test_a_conversation_of_two_megabytes_is_folded_and_whole_on_demand(schema_url, visit):
    words = "All work and no play. " * 90_000
    with ReplayBuffer(schema_url, "talks") as buffer:
        said = [{"role": "user", "content": words}, {"role": "assistant", "content": "The end."}]
        values = Experience({}, ["say"], 1.0, messages=said, terminated=True)
        buffer.store(DataRow(ExpMeta("t", "c", "a", 0, 1.7e9, episode_id="large"), values))
    browser = visit(schema_url)
    page = browser.open(address_of(schema_url, "talks"))
    assert "The end." in page.inner_text("main")
    assert len(page.content()) < 500_000
    whole = page.locator("a[href*='/text']").first.get_attribute("href")
    page.goto(f"{browser.address}{whole}")
    assert page.inner_text("body").count("All work and no play.") > 1_000


# A database that goes away while a page is open, and comes back.


def test_a_file_that_goes_away_is_told_and_found_again(make_database_url, visit):
    url = make_database_url("sqlite", schema=True)
    browser = visit(url)
    path = Path(make_url(url).database)
    away = path.with_name("away.db")
    path.rename(away)
    page = browser.page
    assert page.goto(f"{browser.address}/").status == 503
    assert str(path) in page.inner_text("main")
    assert not path.exists()
    away.rename(path)
    page.click("text=Try again")
    assert "There are no buffers yet" in page.inner_text("main")


def test_a_server_that_goes_away_is_told_and_found_again(make_database_url, visit):
    url = make_database_url("postgresql", schema=True)
    browser = visit(url)
    name = make_url(url).database
    end = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    admin = make_url(url).set(database="postgres").render_as_string(hide_password=False)
    sql.run(admin, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    sql.run(admin, end.replace("current_database()", f"'{name}'"))
    page = browser.page
    assert page.goto(f"{browser.address}/").status == 503
    assert "Try again" in page.inner_text("main")
    sql.run(admin, f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')
    page.click("text=Try again")
    assert "There are no buffers yet" in page.inner_text("main")


def test_live_figures_go_on_after_a_loss(make_database_url, visit):
    url = make_database_url("postgresql", schema=True)
    browser = visit(url)
    page = browser.open("/")
    wait_until(lambda: page.inner_text("[data-live-note]") == "live", "live figures")
    sql.run(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    sql.run(url, "INSERT INTO buffers (name) VALUES ('later')")
    page.wait_for_selector("tr:has-text('later')")
