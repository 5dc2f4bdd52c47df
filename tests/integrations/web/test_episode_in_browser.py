"""The page of an episode in a real browser: paging, curves, film strips, search, differences."""

import numpy as np
import pytest
from playwright.sync_api import expect

from sqlbuffer import ReplayBuffer
from sqlbuffer.llm import LLM_FIELDS
from tests.integrations.web.conftest import running_writer
from tests.support import sql

N_FRAMES = 230
N_TOKENS = 30_000
FAILURE = {"role": "tool", "tool_call_id": "c", "content": "Error: division by zero"}
CALL = {
    "role": "assistant",
    "content": "I divide.",
    "tool_calls": [{"id": "c", "function": {"name": "divide", "arguments": "{}"}}],
}


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


@pytest.fixture
def tokens(filled):
    """Return a database with a group of rollouts with tokens in addition, and their numbers."""
    system = {"role": "system", "content": "Be careful. " * 200}
    with ReplayBuffer(filled, "tokens", fields=LLM_FIELDS) as buffer:
        for name, n in (("short", 3), ("long", N_TOKENS)):
            with buffer.episode("divide", episode_id=name, model_version=7) as episode:
                asked = [system, {"role": "user", "content": "6 / 0?"}]
                first = {"prompt_ids": [1, 2], "completion_ids": [3, 4], "logprobs": [-0.5, -4.0]}
                texts = {"completion_tokens": ["I", " divide."]}
                episode.append(messages=asked, actions=[CALL], extra=texts, **first)
                asked = [*asked, CALL, FAILURE]
                ids = [*range(n)]
                episode.append(
                    messages=asked, actions=[f"It has no value. {name}"], reward=1.0,
                    prompt_ids=[1, 2, 3, 4, 5], completion_ids=ids, logprobs=[-1.0] * n,
                    loss_mask=[i % 2 == 0 for i in ids],
                )  # fmt: skip
    return filled, dict(sql.run(filled, "SELECT key, id FROM episodes"))


def test_pages_of_tokens_groups_and_searches_can_be_used_by_all(tokens, visit):
    url, numbers = tokens
    browser, found = visit(url), {}
    short, long = (f"/buffers/tokens/episodes/{numbers[key]}" for key in ("short", "long"))
    for path in (
        short, f"{short}?view=tokens", f"{short}?view=tokens&color=mask",
        f"{short}?view=tokens&color=version&table=1", f"{long}?view=tokens",
        "/group?buffer=tokens&group=divide", "/search?buffer=tokens&q=division",
        f"/buffers/tokens/difference?a={numbers['short']}&b={numbers['long']}&view=sides",
    ):  # fmt: skip
        browser.page.set_viewport_size({"width": 400, "height": 800})
        browser.open(path)
        found[path] = browser.violations_in_both_schemes()
        wide = browser.page.evaluate("document.documentElement.scrollWidth > innerWidth")
        assert not wide, path
    assert [violation for page in found.values() for violation in page] == []


def test_numbers_of_a_token_are_told_when_it_is_pointed_at_or_reached(tokens, visit):
    url, numbers = tokens
    page = visit(url).open(f"/buffers/tokens/episodes/{numbers['short']}?view=tokens")
    told = page.locator("[data-token-numbers]")
    page.get_by_text("divide.", exact=True).hover()
    expect(told).to_have_text("divide.: place 3, id 4, log-probability -4, in the loss, version 7")
    page.locator("[data-tokens]").nth(3).focus()
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft"):
        page.keyboard.press(key)
    expect(told).to_have_text("1: place 6, id 1, log-probability -1, masked")
    assert page.locator(".token.now").count() == 1


def test_a_sequence_of_30_000_tokens_is_shown_a_page_at_a_time(tokens, visit):
    url, numbers = tokens
    page = visit(url).open(f"/buffers/tokens/episodes/{numbers['long']}?view=tokens")
    assert page.locator(".token[title]").count() == 2_000
    page.get_by_text("Later →").first.click()
    expect(page.locator(".token[title]").first).to_have_text("1995")
    # The next page came without a reload, and its tokens tell their numbers too.
    page.locator(".token[title]").nth(4).hover()
    expect(page.locator("[data-token-numbers]")).to_contain_text("id 1999")


def test_links_jump_to_rewards_and_failures_and_a_system_prompt_opens(tokens, visit):
    url, numbers = tokens
    page = visit(url).open(f"/buffers/tokens/episodes/{numbers['short']}")
    page.get_by_title("tool failure in step 0").click()
    assert page.locator(":target").inner_text().startswith("result failed\nError: division")
    page.get_by_title("reward in step 1").click()
    assert "step 1" in page.locator(":target header").inner_text()
    prompt = page.locator(".instructions .said").first
    assert not prompt.is_visible()
    page.locator(".instructions summary").first.click()
    assert prompt.is_visible()


def test_a_group_leads_to_two_rollouts_side_by_side(tokens, visit):
    url, _ = tokens
    page = visit(url).open("/group?buffer=tokens&group=divide")
    page.get_by_label("left").select_option(label="short, reward 1")
    page.get_by_label("right").select_option(label="long, reward 1")
    page.get_by_role("button", name="Side by side").click()
    page.wait_for_url("**/difference?**")
    left, right = (page.locator(f".line.{side}").bounding_box() for side in ("left", "right"))
    assert left["x"] + left["width"] <= right["x"]
    assert left["y"] == right["y"]


def test_a_search_leads_to_the_step(tokens, visit):
    url, _ = tokens
    page = visit(url).open("/search?buffer=tokens")
    page.keyboard.press("/")
    page.keyboard.type("division zero")
    page.keyboard.press("Enter")
    page.locator(".hit a").first.click()
    page.wait_for_url("**/episodes/**")
    assert "Error: division by zero" in page.locator(":target").inner_text()


def test_the_pages_of_an_episode_can_be_used_by_all(episodes, visit):
    url, numbers = episodes
    browser, found = visit(url), {}
    film, talk = (f"/buffers/{name}/episodes/" for name in ("film", "talks"))
    for path in (
        f"{film}{numbers['film']}", f"{film}{numbers['film']}?view=curves",
        f"{film}{numbers['film']}?view=draws", f"{talk}{numbers['e0']}?q=add",
        f"/buffers/talks/difference?a={numbers['e0']}&b={numbers['e4']}",
    ):  # fmt: skip
        browser.open(path)
        found[path] = browser.violations_in_both_schemes()
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
