"""Take the pictures of the pages for the docs: `make screenshots`."""

import math
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.llm import LLM_FIELDS
from tests.support.browsing import Visit, running_chromium
from tests.support.markdown import ROOT
from tests.support.web_pages import NO_PAGES, kind_of
from tests.support.web_server import served

FOLDER = ROOT / "docs" / "images"
SIZE = {"width": 1100, "height": 640}
# The name of the picture of each kind of page, and how its address begins.
PICTURES = {
    "figures": r"/buffer\?buffer=walker",
    "episodes": r"/episodes\?buffer=agent",
    "arrays": r"/buffers/walker/episodes/\d+",
    "dark": r"/buffers/agent/episodes/\d+",
    "tokens": r"/buffers/grpo/episodes/\d+\?view=tokens",
    "group": r"/group\?buffer=grpo",
}


def fill(url: str) -> None:
    """Store walks of a robot, and conversations of an agent with tools."""
    rng = np.random.default_rng(7)
    fields = {"obs": ("float32", (4,)), "frame": ("uint8", (24, 24))}
    with ReplayBuffer(url, "walker", create=True, fields=fields, max_capacity=20_000) as buffer:
        for number in range(120):
            n = 30 + number // 2
            way = np.cumsum(rng.normal(size=(n, 4)), axis=0).astype(np.float32)
            frames = np.zeros((n, 24, 24), np.uint8)
            for t in range(n):
                frames[t, 10:14, (t % 20) : (t % 20) + 4] = 255
            columns = {"obs": way, "frame": frames, "reward": rng.normal(number / 60, 1, n)}
            keys = {"agent_id": f"robot-{number % 3}", "task_id": f"hill {number % 5}"}
            buffer.store_episode(columns, model_version=number // 20, **keys)
        for _ in range(20):
            buffer.sample_arrays(256)
    with ReplayBuffer(url, "agent") as buffer:
        for number in range(48):
            buffer.store_batch([*conversation(number, rng)])
    with ReplayBuffer(url, "grpo", fields=LLM_FIELDS) as buffer:
        for number in range(8):
            store_rollout(buffer, number, rng)


def store_rollout(buffer: ReplayBuffer, number: int, rng: np.random.Generator) -> None:
    """Store an answer with its tokens: here each word is one."""
    is_right = number % 3 != 1
    said = (
        "<think> 17 times 24 : 17 times 20 is 340 , and 17 times 4 is 68 . "
        f"340 plus 68 is {408 if is_right else 398} . </think> The product is "
        f"{408 if is_right else 398} ."
    )
    words = [f" {word}" for word in said.split()]
    asked = [
        {"role": "system", "content": "Think first. Then give the product in one sentence."},
        {"role": "user", "content": "What is 17 times 24?"},
    ]
    with buffer.episode("17 x 24", episode_id=f"17 x 24/{number}", model_version=12) as episode:
        episode.append(
            messages=asked,
            actions=["".join(words).strip()],
            extra={"completion_tokens": words},
            prompt_ids=rng.integers(0, 50_000, 24),
            completion_ids=rng.integers(0, 50_000, len(words)),
            logprobs=-rng.exponential(0.8, len(words)).astype(np.float32),
        )
        episode.end(reward=float(is_right) - 0.1 * (number % 2))


def conversation(number: int, rng: np.random.Generator) -> Iterator[DataRow]:
    """Yield the turns of an agent that looks for the square root of a number."""
    task, wanted = f"root of {2 + number // 4}", 2 + number // 4
    said = [
        {"role": "system", "content": "You may call the tool `multiply`. Be brief."},
        {"role": "user", "content": f"What is the square root of {wanted}, to two digits?"},
    ]
    guess = 1 + wanted / 4
    for step in range(3):
        text = f"I try {guess:.3f}."
        arguments = f'{{"a": {guess:.3f}, "b": {guess:.3f}}}'
        call = {"id": f"call-{step}", "type": "function"}
        call["function"] = {"name": "multiply", "arguments": arguments}
        last = step == 2
        answer = {"role": "assistant", "content": f"It is {guess:.2f}." if last else text}
        if not last:
            answer["tool_calls"] = [call]
        said = [*said, answer]
        right = abs(guess - math.sqrt(wanted)) < 0.01 and rng.random() < 0.8
        meta = ExpMeta(
            task, "roots", "solver", step, 1_700_000_000.0 + step, episode_id=f"{number}"
        )
        values = {"messages": said, "terminated": last}
        yield DataRow(meta, Experience({}, [arguments], float(last and right), **values))
        said = [*said, {"role": "tool", "tool_call_id": call["id"], "content": f"{guess**2:.3f}"}]
        guess = (guess + wanted / guess) / 2


def addresses(visit: Visit) -> dict[str, str]:
    """Return the first address of each picture that the pages lead to."""
    found, seen, waiting = {}, set(), ["/"]
    while waiting:
        path = waiting.pop(0)
        for name, pattern in PICTURES.items():
            if re.match(pattern, path):
                found.setdefault(name, path)
        kind = (kind_of(path), *(name in path for name in ("walker", "agent", "grpo")))
        if kind in seen or kind_of(path).endswith(NO_PAGES):
            continue
        seen.add(kind)
        visit.open(path)
        waiting += visit.links()
    return found


def take(visit: Visit, name: str, path: str) -> None:
    """Take the picture of a page."""
    page = visit.open(path)
    page.evaluate("document.querySelector('.database').textContent = 'replay.db'")
    page.evaluate("document.querySelectorAll('#same').forEach(each => each.remove())")
    page.wait_for_timeout(500)  # the curves are drawn, and the figures are live
    page.screenshot(path=FOLDER / f"web-{name}.png")


def main() -> None:
    """Take them."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder).resolve()}/replay.db"
        fill(url)
        with running_chromium() as browser, served(url) as address:
            context = browser.new_context(viewport=SIZE, color_scheme="light")
            visit = Visit(context, address)
            for name, path in addresses(visit).items():
                visit.page.emulate_media(color_scheme="dark" if name == "dark" else "light")
                take(visit, name, path)
            assert visit.trouble == [], visit.trouble
            context.close()
    for path in sorted(FOLDER.glob("web-*.png")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
