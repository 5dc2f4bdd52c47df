"""The figures of a buffer in a real browser: axes, lines, smoothing, live cards."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from sqlbuffer import ReplayBuffer
from sqlbuffer.web.report import report
from tests.integrations.web.conftest import running_writer
from tests.support import sql

# Notes each text that is drawn, with its ends and the width of the canvas.
NOTE_TEXTS = """
window.drawn = [];
const fillText = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    const width = this.measureText(text).width;
    const left = { right: x - width, end: x - width, center: x - width / 2 }[this.textAlign] ?? x;
    const title = this.canvas.closest("[data-curve]")?.dataset.curve;
    window.drawn.push({ title, text, left, right: left + width, y,
        isBelow: this.textBaseline === "top", width: this.canvas.width });
    return fillText.apply(this, arguments);
};
"""
BUFFERS = ("one", "ten", "large", "wins")


@pytest.fixture(scope="module")
def filled_url(tmp_path_factory):
    """Return a database with runs of one, of ten and of many episodes, over two days."""
    url = f"sqlite:///{tmp_path_factory.mktemp('figures')}/replay.db"
    rng = np.random.default_rng(5)
    returns = {
        "one": [1.5],
        "ten": rng.normal(size=10),
        "large": 123_456 + rng.normal(0, 3, 200),
        "wins": rng.random(400) < np.linspace(0.1, 0.9, 400),
    }
    for name in BUFFERS:
        with ReplayBuffer(url, name, create=True, fields={"obs": ("float32", (2,))}) as buffer:
            for number, value in enumerate(returns[name]):
                buffer.store_episode(
                    {"obs": np.zeros((2, 2)), "reward": np.array([0.0, float(value)])},
                    task_id="t", agent_id=f"actor-{number % 3}", model_version=number // 10,
                )  # fmt: skip
    of_two_days = "strftime('%Y-%m-%dT%H:%M:%fZ', '2026-03-01T17:00:00Z', '+' || id || ' minutes')"
    for table, column in (("episodes", "started_at"), ("episodes", "ended_at")):
        sql.run(url, f"UPDATE {table} SET {column} = {of_two_days}")
    return url


@pytest.fixture
def opened(filled_url, visit):
    """Return what opens a page, and notes the texts that it draws."""

    def open_page(path, **options):
        browser = visit(filled_url, **options)
        browser.context.add_init_script(NOTE_TEXTS)
        page = browser.open(path)
        page.wait_for_selector("[data-curve] canvas")
        return browser, page

    return open_page


def texts_of(page, title="returns"):
    """Return the texts below and beside the curve of a title."""
    drawn = [one for one in page.evaluate("window.drawn") if one["title"] == title]
    lowest = max(one["y"] for one in drawn)
    below = [one for one in drawn if one["y"] > lowest - 30]
    return below, [one for one in drawn if one not in below]


@pytest.mark.parametrize("width", [1400, 800, 390])
@pytest.mark.parametrize("name", BUFFERS)
def test_axes_show_each_text_whole(opened, name, width):
    _, page = opened(f"/buffer?buffer={name}", viewport={"width": width, "height": 900})
    for one in page.evaluate("window.drawn"):
        assert one["left"] >= 0, one
        assert one["right"] <= one["width"], one
    below, beside = texts_of(page)
    for texts in (below, beside):
        assert len({one["text"] for one in texts if one["text"]}) >= 2
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")


def test_a_single_point_is_within_a_minute_and_numbers_keep_their_digits(opened):
    _, page = opened("/buffer?buffer=one")
    below, beside = texts_of(page)
    clocks = [one["text"] for one in below if ":" in one["text"]]
    assert all(re.fullmatch(r"17:0[01]:\d\d", text) for text in clocks)
    assert {"1.4", "1.5", "1.6"} <= {one["text"] for one in beside}
    _, page = opened("/buffer?buffer=large")
    _, beside = texts_of(page)
    assert all(re.fullmatch(r"123\.4\d+K", one["text"]) for one in beside)


def test_a_new_day_is_named_where_it_begins(opened):
    _, page = opened("/buffer?buffer=wins&x=time")
    below, _ = texts_of(page)
    middles = {one["text"]: (one["left"] + one["right"]) / 2 for one in below}
    assert [text for text in middles if text.startswith("Mar")] == ["Mar 1", "Mar 2"]
    assert middles["Mar 2"] == pytest.approx(middles["00:00"], abs=1)
    first = min((left, text) for text, left in middles.items() if ":" in text)
    assert middles["Mar 1"] == pytest.approx(first[0], abs=1)


def test_values_are_read_where_the_pointer_is_and_are_the_last_ones_else(opened):
    _, page = opened("/buffer?buffer=ten&x=step&smooth=0")
    card = page.locator("[data-curve=returns]")
    last = card.locator("[data-value]").inner_text()
    assert "--" not in page.inner_text("main")
    assert card.locator("[data-readout]").inner_text() == "by step"
    card.locator("[data-plot] .u-over").hover(position={"x": 2, "y": 20})
    expect(card.locator("[data-readout]")).to_have_text("step 2")
    assert card.locator("[data-value]").inner_text() != last
    page.mouse.move(2, 2)
    expect(card.locator("[data-readout]")).to_have_text("by step")
    assert card.locator("[data-value]").inner_text() == last


def test_points_are_read_with_the_arrow_keys(opened):
    _, page = opened("/buffer?buffer=ten&x=episode")
    card = page.locator("[data-curve=returns]")
    card.locator("[data-plot]").focus()
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("End", 10), ("ArrowLeft", 9)):
        page.keyboard.press(key)
        expect(card.locator("[data-readout]")).to_have_text(f"episode {place}")
    page.keyboard.press("Escape")
    expect(card.locator("[data-readout]")).to_have_text("by episode")


def test_the_slider_smooths_and_is_kept(opened):
    browser, page = opened("/buffer?buffer=ten&x=step")
    value = page.locator("[data-curve=returns] [data-value]")
    slider = page.get_by_role("slider", name="smoothing")
    returns = "SELECT episode_return FROM v_episodes WHERE buffer = 'ten' ORDER BY last_seq"
    stored = [float(one) for (one,) in sql.run(page_url(browser), returns)]
    for smoothing in (0.0, 0.9):
        slider.fill(str(smoothing))
        weights = smoothing ** np.arange(10)[::-1]
        wanted = float(np.dot(weights, stored) / weights.sum())
        assert float(value.inner_text()) == pytest.approx(wanted, rel=2e-3)
    assert "smooth=0.9" in page.url
    browser.open("/buffer?buffer=wins")
    expect(slider).to_have_value("0.9")


def page_url(browser):
    """Return the URL of the database that a page shows."""
    return browser.page.inner_text(".database")


def test_a_line_is_hidden_in_all_figures_and_shown_again(opened):
    _, page = opened("/buffer?buffer=wins&by=agent&x=step")
    buttons = page.locator("[data-line=actor-1]")
    assert buttons.count() == 2
    buttons.first.focus()
    page.keyboard.press("Enter")
    for number in range(2):
        expect(buttons.nth(number)).to_have_attribute("aria-pressed", "false")
    buttons.last.click()
    expect(buttons.first).to_have_attribute("aria-pressed", "true")


def test_a_color_follows_a_name_between_pages_and_reloads(opened):
    browser, page = opened("/buffer?buffer=wins")

    def color(name):
        key = page.locator(f"[data-curve=returns] li:has([data-line={name}]) .key")
        return key.evaluate("each => getComputedStyle(each).borderTopColor")

    of_wins = color("wins")
    browser.open("/buffer?buffer=ten&with=wins&with=large")
    colors = [color(name) for name in ("ten", "wins", "large")]
    assert colors[1] == of_wins
    assert len(set(colors)) == 3
    browser.open("/buffer?buffer=large&with=ten&with=wins")
    assert [color(name) for name in ("ten", "wins", "large")] == colors


def test_a_buffer_is_compared_with_others_by_a_form(opened):
    _, page = opened("/buffer?buffer=wins&smooth=0.3")
    page.get_by_label("compare with").select_option("ten")
    page.wait_for_url("**with=ten**")
    assert "smooth=0.3" in page.url
    page.get_by_label("compare with").select_option("large")
    page.wait_for_url("**with=ten&**with=large**")
    assert page.locator("[data-curve=returns] [data-line]").all_inner_texts() == [
        "wins", "ten", "large",
    ]  # fmt: skip
    page.get_by_role("link", name="Remove ten").click()
    page.wait_for_url(lambda url: "with=ten" not in url and "with=large" in url)


def test_figures_without_data_are_one_line(opened):
    _, page = opened("/buffer?buffer=one")
    assert page.locator("[data-curve]").count() == 3
    missing = page.locator(".missing")
    assert "Staleness of sampled steps" in missing.locator("summary").inner_text()
    assert not missing.locator("dl").is_visible()
    missing.locator("summary").click()
    assert "The buffer has no priorities." in missing.inner_text()


def test_a_selected_part_of_steps_is_that_part_of_the_history(opened):
    _, page = opened("/buffer?buffer=wins&x=step")
    over = page.locator("[data-curve=returns] .u-over")
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 60, steps=4)
    page.mouse.up()
    page.wait_for_url("**since=**")
    assert "x=step" in page.url
    (line,) = page.eval_on_selector(
        "[data-curve=returns] script", "each => JSON.parse(each.textContent).lines"
    )
    assert 350 < line["x"][0] < 500
    assert line["x"][-1] >= 790


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figures_can_be_used_by_all(opened, scheme):
    for path in (
        "/buffer?buffer=wins&with=ten&with=large&by=agent", "/buffer?buffer=one&x=version",
    ):  # fmt: skip
        browser, page = opened(path, color_scheme=scheme)
        page.eval_on_selector_all("details", "all => all.forEach(each => { each.open = true; })")
        assert browser.violations() == []


def test_cards_follow_a_writer_and_say_how_old_they_are(schema_url, visit):
    with running_writer(schema_url):
        page = visit(schema_url).open("/buffer?buffer=running&x=step")
        page.wait_for_selector("[data-curve] canvas")
        page.evaluate("window.isSame = true")
        badge = page.locator("[data-age]")
        expect(badge).to_have_text(re.compile(r"updated \d+ s ago"))
        inserted = page.locator(".tiles li", has_text="inserted").locator("b")
        first = inserted.inner_text()
        page.locator("[data-curve=speed] summary").click()
        expect(inserted).not_to_have_text(first, timeout=60_000)
        assert page.evaluate("window.isSame")
        assert page.locator("[data-curve=speed] details").get_attribute("open") is not None
        page.route("**/figures?**", lambda route: route.abort())
        expect(badge).to_have_text(re.compile("not updated for .*: no answer"), timeout=60_000)
        page.unroute("**/figures?**")
        expect(badge).to_have_text(re.compile(r"updated \d+ s ago"), timeout=60_000)


def test_the_figures_of_a_report_are_drawn_without_a_server(filled_url, chromium, tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(report(filled_url))
    context = chromium.new_context()
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector("[data-curve] canvas")
    assert page.locator("[data-curve] canvas").count() == page.locator("[data-curve]").count() >= 12
    assert errors == []
    context.close()


def test_the_curves_of_an_episode_have_whole_texts_and_tell_the_last_values(opened, filled_url):
    of_large = "SELECT id FROM buffers WHERE name = 'large'"
    number = sql.scalar(filled_url, f"SELECT max(id) FROM episodes WHERE buffer_id = ({of_large})")
    browser, page = opened("/buffer?buffer=large")
    page = browser.open(f"/buffers/large/episodes/{number}?view=curves")
    page.wait_for_selector("[data-field-curve] canvas")
    drawn = page.evaluate("window.drawn")
    assert any("K" in one["text"] for one in drawn)
    assert all(one["left"] >= 0 and one["right"] <= one["width"] for one in drawn)
    legends = page.locator(".u-legend").all_inner_texts()
    assert legends
    assert not any("--" in text for text in legends)


@pytest.mark.parametrize("width", [1400, 390])
def test_smoothing_and_comparing_are_there_on_a_narrow_screen_too(opened, width):
    _, page = opened("/buffer?buffer=ten&x=step", viewport={"width": width, "height": 900})
    expect(page.locator("[data-smoothing]")).to_be_visible()
    expect(page.locator(".compare label")).to_be_visible()
    page.locator("[name=with]").select_option("wins")
    expect(page.locator(".chip")).to_contain_text("wins")
    expect(page.locator("[data-smoothing]")).to_be_visible()
