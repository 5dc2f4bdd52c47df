"""The page of an episode in a real browser: paging, curves, film strips, search, differences."""

import numpy as np
import pytest
from playwright.sync_api import expect

from sqlbuffer import ReplayBuffer
from tests.integrations.web.conftest import running_writer
from tests.support import sql

N_FRAMES = 230


@pytest.fixture
def episodes(filled):
    """Return a database with a film in addition, and the numbers of its episodes by their ids."""
    fields = {"frame": ("uint8", (16, 24, 3)), "x": ("float32", (2,))}
    frames = np.zeros((N_FRAMES, 16, 24, 3), np.uint8)
    frames[:, :, :, 0] = np.arange(N_FRAMES)[:, None, None]
    with ReplayBuffer(filled, "film", fields=fields, track_samples=True) as buffer:
        x = np.random.default_rng(1).normal(size=(N_FRAMES, 2)).astype(np.float32)
        columns = {"frame": frames, "x": x, "reward": np.ones(N_FRAMES)}
        buffer.store_episode(columns, task_id="t", episode_id="film")
        buffer.sample(20)
    with ReplayBuffer(filled, "talks") as buffer:
        seqs = [row.seq for row in buffer]
        buffer.annotate(seqs[:3], v_t=0.5, adv_t=-0.5, version=1)
        buffer.quarantine(seqs[:1], reason="odd")
    return filled, dict(sql.run(filled, "SELECT key, id FROM episodes"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_an_episode_can_be_used_by_all(episodes, visit, scheme):
    url, numbers = episodes
    browser, found = visit(url, color_scheme=scheme), {}
    film, talk = (f"/buffers/{name}/episodes/" for name in ("film", "talks"))
    for path in (
        f"{film}{numbers['film']}", f"{film}{numbers['film']}?view=curves",
        f"{film}{numbers['film']}?view=draws", f"{talk}{numbers['e0']}?q=add",
        f"/buffers/talks/difference?a={numbers['e0']}&b={numbers['e4']}",
    ):  # fmt: skip
        browser.open(path)
        found[path] = browser.violations()
    assert [violation for page in found.values() for violation in page] == []


def test_pages_and_views_change_without_a_reload(episodes, visit):
    url, numbers = episodes
    browser = visit(url)
    page = browser.open(f"/buffers/film/episodes/{numbers['film']}")
    page.evaluate("window.isSame = true")
    assert page.locator("tbody tr[data-row]").count() == 200
    page.get_by_text("Later →").first.click()
    expect(page.locator("tbody tr[data-row]")).to_have_count(30)
    assert "at=199." in page.url
    page.get_by_role("link", name="Curves").click()
    page.wait_for_selector(".plot canvas")
    assert page.locator(".plot canvas").count() == 2
    assert page.evaluate("window.isSame")
    page.go_back()
    expect(page.locator("tbody tr[data-row]")).to_have_count(30)


def test_the_rewards_of_the_page_are_those_of_the_database(episodes, visit):
    url, numbers = episodes
    browser = visit(url)
    with running_writer(url):
        page = browser.open(f"/buffers/talks/episodes/{numbers['e1']}")
        shown = page.eval_on_selector_all(".step header b", "all => all.map(b => b.innerText)")
    stored = "SELECT reward FROM v_experiences WHERE episode_id = 'e1' ORDER BY step"
    assert [float(text) for text in shown] == [reward for (reward,) in sql.run(url, stored)]
    assert page.locator(".call .result").count() == 2


def test_a_scrubber_shows_the_frame_of_a_step(episodes, visit):
    url, numbers = episodes
    page = visit(url).open(f"/buffers/film/episodes/{numbers['film']}?at=100")
    slider = page.locator("[data-scrubber]")
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.inner_text("[data-frame-name]") == "step 103"
    red = """async image => {
        await image.decode();
        const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
        context.drawImage(image, 0, 0);
        return [image.naturalWidth, image.naturalHeight, context.getImageData(0, 0, 1, 1).data[0]];
    }"""
    assert page.locator("[data-frame]").evaluate(red) == [24, 16, 103]


def test_keys_lead_through_steps_and_to_the_search(episodes, visit):
    url, numbers = episodes
    page = visit(url).open(f"/buffers/talks/episodes/{numbers['e0']}")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate("document.activeElement.innerText") == "step 1"
    page.keyboard.press("/")
    page.keyboard.type("I add 2")
    page.keyboard.press("Enter")
    page.wait_for_selector("mark")
    assert page.locator("mark").all_text_contents() == ["I add 2"]


def test_an_episode_can_be_read_without_scripts(episodes, visit):
    url, numbers = episodes
    browser = visit(url, java_script_enabled=False)
    page = browser.open(f"/buffers/film/episodes/{numbers['film']}")
    page.get_by_text("Last").first.click()
    page.wait_for_url("**last=1*")
    assert browser.cells("[aria-label=Steps] table")[-1][0] == str(N_FRAMES - 1)
    page.get_by_role("link", name="Curves").click()
    page.wait_for_url("**view=curves*")
    assert browser.cells()[0][:3] == ["reward", "1", "1"]


def test_a_conversation_of_two_megabytes_is_shown(filled, visit):
    with ReplayBuffer(filled, "long talk") as buffer:
        said = [f"turn {i} " + "word and word again " * 100 for i in range(1_000)]
        buffer.add(task_id="t", messages=said)
    browser = visit(filled)
    page = browser.open("/buffers/long%20talk/task?task=t")
    assert page.locator(".turn").count() == 200
    page.get_by_text("Later →").first.click()
    page.wait_for_selector("#m1-200")
    assert page.locator(".turn").count() == 200
