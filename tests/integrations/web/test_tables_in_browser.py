"""Tables in a real browser: density, columns, copies, sorting, small screens, images that play."""

from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import expect

from sqlbuffer import ReplayBuffer
from sqlbuffer.llm import LLM_FIELDS
from tests.integrations.web.conftest import talk
from tests.support import sql

LONG = "數據é<b>" * 40  # 440 bytes; keys have 500 at most
FIELDS = {"joints": ("float32", (17,)), "camera": ("uint8", (12, 12, 3)), "grip": "int64"}


@pytest.fixture
def runs(schema_url):
    """Return a database with 120 episodes of arrays, one with long names, and conversations."""
    with ReplayBuffer(
        schema_url, "arrays", fields=FIELDS, observation_fields=["joints", "camera"]
    ) as buffer:
        rng = np.random.default_rng(5)
        for number in range(120):
            camera = np.zeros((9, 12, 12, 3), np.uint8)
            camera[:, :, :, 0] = np.arange(9)[:, None, None] * 20
            joints = rng.normal(size=(9, 17)).astype(np.float32)
            buffer.store_episode(
                {"joints": joints[:8], "camera": camera[:8], "grip": np.arange(8),
                 "reward": rng.normal(size=8)},
                final={"joints": joints[8], "camera": camera[8]},
                task_id=f"task-{number % 9}", agent_id="arm", model_version=number // 10,
                episode_id=LONG if number == 119 else f"{number:03}-{rng.bytes(12).hex()}",
            )  # fmt: skip
    with ReplayBuffer(schema_url, "odd") as buffer:
        state = {LONG: LONG, "v": [float("nan"), float("inf"), None, 1], "n": None}
        for step in range(3):
            buffer.add(task_id=LONG, agent_id=LONG, step=step, state=state, actions=[None])
    with ReplayBuffer(schema_url, "talks") as buffer:
        for number in range(3):
            text = "A question that is long enough for several lines of a telephone. " * 9
            buffer.store_batch([*talk("talk", 3, text=text, episode=f"{number}{LONG}")])
    with ReplayBuffer(schema_url, "tokens", fields=LLM_FIELDS) as buffer:
        for number in range(3):
            with buffer.episode(LONG, episode_id=f"t{number}", model_version=3) as episode:
                episode.append(
                    messages=[{"role": "user", "content": "Well? " * 200}], reward=number,
                    actions=["A long answer. " * 200], prompt_ids=[*range(300)],
                    completion_ids=[*range(300)], logprobs=[-0.5] * 300,
                )  # fmt: skip
    ReplayBuffer(schema_url, "empty").close()
    return schema_url


def pages_of(url):
    """Return an address of each kind of page."""
    numbers = dict(sql.run(url, "SELECT key, id FROM episodes"))
    arrays = f"/buffers/arrays/episodes/{numbers[LONG]}"
    talks = [numbers[f"{number}{LONG}"] for number in range(2)]
    long = quote(LONG, safe="")
    statement = quote(
        "SELECT episode_id, episode_return, started_at, meta, task_id FROM v_episodes"
    )
    return [
        "/", "/buffer?buffer=arrays", "/episodes?buffer=arrays", "/episodes?buffer=empty",
        "/episodes?buffer=odd", f"/episodes?buffer=talks&q={long}", "/groups?buffer=talks",
        f"/group?buffer=tokens&group={long}", "/search?buffer=talks&q=question",
        arrays, f"{arrays}?values=numbers", f"{arrays}?view=curves", f"{arrays}?view=draws",
        f"/buffers/odd/task?task={long}", f"/buffers/talks/episodes/{talks[0]}",
        f"/buffers/tokens/episodes/{numbers['t1']}?view=tokens",
        f"/buffers/talks/difference?a={talks[0]}&b={talks[1]}&view=sides",
        f"/sql?q={statement}", "/sql?q=SELECT%20nothing",
    ]  # fmt: skip


# Cells of tables, names and facts: at most three lines. Texts that people wrote may have more.
TALL = """() => [...document.querySelectorAll("main td, main th, h1, .facts li, .bar a, summary")]
    .filter((part) => part.offsetParent && !part.querySelector("details[open], .said, img, pre"))
    .filter((part) => {
        const range = document.createRange();
        range.selectNodeContents(part);
        return new Set([...range.getClientRects()].map((box) => Math.round(box.top / 8))).size > 3;
    }).map((part) => part.outerHTML.slice(0, 200))"""


@pytest.mark.parametrize("width", [390, 800, 1400])
def test_no_page_is_wider_than_the_screen_and_no_cell_has_four_lines(runs, visit, width):
    browser = visit(runs, viewport={"width": width, "height": 900})
    wide, tall = [], {}
    for path in pages_of(runs):
        page = browser.open(path)
        page.wait_for_load_state("load")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(path)
        if found := page.evaluate(TALL):
            tall[path] = found
    assert (wide, tall) == ([], {})


def test_tables_with_odd_values_and_open_menus_can_be_used_by_all(runs, visit):
    browser = visit(runs, viewport={"width": 390, "height": 800})
    found = []
    for path in pages_of(runs):
        page = browser.open(path)
        found += [(path, violation) for violation in browser.violations_in_both_schemes()]
        # A menu has the colours of the page around it.
        for menu in page.locator("main .menu:visible > summary").all():
            menu.click()
            found += [(path, violation) for violation in browser.violations()]
            page.keyboard.press("Escape")
    assert found == []


def test_thirty_episodes_fit_on_a_screen_one_line_each(runs, visit):
    browser = visit(runs, viewport={"width": 1400, "height": 1000})
    page = browser.open("/episodes?buffer=arrays")
    heights = page.eval_on_selector_all(
        "tbody tr", "rows => rows.map((row) => row.getBoundingClientRect())"
    )
    assert sum(row["bottom"] <= 1000 for row in heights) >= 30
    assert max(row["height"] for row in heights) < 30


def test_hidden_columns_stay_hidden(runs, visit):
    browser = visit(runs)
    page = browser.open("/episodes?buffer=arrays")
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("agent").uncheck()
    page.get_by_label("took").uncheck()
    heads = page.locator("thead th:visible")
    expect(heads).to_have_count(8)
    page.get_by_role("link", name="Next 50").click()
    page.wait_for_url("**after=**")
    assert "agent" not in page.locator("thead").inner_text()
    page = browser.open("/episodes?buffer=talks")
    assert page.locator("thead th:visible").count() == 8
    page.get_by_text("Columns", exact=True).click()
    assert not page.get_by_label("agent").is_checked()
    page.get_by_label("agent").check()
    expect(heads).to_have_count(9)


def test_a_copy_has_whole_ids(runs, visit):
    browser = visit(runs)
    browser.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = browser.open("/episodes?buffer=arrays")
    clipboard = "navigator.clipboard.readText()"
    assert len(page.locator("tbody th .id").first.inner_text()) < 21
    page.keyboard.press("j")
    page.keyboard.press("c")
    expect(page.locator("#copied")).to_contain_text("Copied")
    assert page.evaluate(clipboard) == LONG
    page.evaluate(
        "getSelection().selectAllChildren(document.querySelector('tbody tr:nth-child(2)'))"
    )
    page.keyboard.press("Control+c")
    wanted = sql.scalar(runs, "SELECT key FROM episodes WHERE key LIKE '118-%'")
    first, task, *_ = page.evaluate(clipboard).split("\t")
    assert (first, task) == (wanted, "task-1")
    page.get_by_text("Reproduce", exact=True).click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert "WHERE e.buffer = 'arrays'" in page.evaluate(clipboard)


def test_heads_sort_and_the_filter_stays(runs, visit):
    browser = visit(runs)
    page = browser.open("/episodes?buffer=arrays")
    page.keyboard.press("/")
    page.keyboard.type("task-3 reward>=0")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=task-3**")
    page.get_by_role("link", name="reward", exact=True).click()
    page.wait_for_url("**sort=best**")
    shown = [(row[1], float(row[4])) for row in browser.cells()]
    question = (
        "SELECT task_id, episode_return FROM v_episodes WHERE buffer = 'arrays' AND "
        "task_id = 'task-3' AND episode_return >= 0 ORDER BY episode_return DESC"
    )
    wanted = sql.run(runs, question)
    assert [task for task, _ in shown] == [task for task, _ in wanted]
    assert [value for _, value in shown] == pytest.approx([v for _, v in wanted], abs=1e-3)
    assert page.input_value("[data-search]") == "task-3 reward>=0"


def test_images_play_to_the_final_one_and_can_be_paused(runs, visit):
    number = sql.scalar(runs, "SELECT id FROM episodes WHERE key LIKE '001-%'")
    page = visit(runs).open(f"/buffers/arrays/episodes/{number}")
    name = page.locator("[data-frame-name]")
    expect(name).to_have_text("step 0")
    page.get_by_label("Images per second").select_option("30")
    page.evaluate("""() => {
        window.seen = [];
        const name = document.querySelector("[data-frame-name]");
        new MutationObserver(() => seen.push(name.textContent)).observe(name, {childList: true});
    }""")
    play = page.locator("[data-play]")
    play.click()
    expect(name).to_have_text("final")
    expect(play).to_have_text("Play")
    assert page.evaluate("seen") == [*(f"step {step}" for step in range(1, 8)), "final"]
    page.get_by_label("Images per second").select_option("2")
    play.click()
    expect(play).to_have_text("Pause")
    play.click()
    expect(play).to_have_text("Play")
    assert page.locator("#final svg.vector").count() == 1


def test_lines_of_a_view_change_with_it(runs, visit):
    number = sql.scalar(runs, "SELECT id FROM episodes WHERE key LIKE '001-%'")
    page = visit(runs).open(f"/buffers/arrays/episodes/{number}")
    assert not page.locator("#same pre").first.is_visible()
    page.get_by_role("link", name="Draws").click()
    page.wait_for_url("**view=draws")
    page.get_by_text("Reproduce", exact=True).click()
    expect(page.locator("#same pre")).to_contain_text("FROM v_samples")
    page.keyboard.press("Escape")
    expect(page.locator("#same pre")).to_be_hidden()
