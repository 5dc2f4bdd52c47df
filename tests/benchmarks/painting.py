"""How long a real browser takes to paint pages of `sqlbuffer ui`."""

from collections.abc import Sequence

# The frame after everything was loaded and the scripts have drawn; since the navigation began.
_PAINTED_S = """() => new Promise(done => requestAnimationFrame(
    () => requestAnimationFrame(() => done(performance.now() / 1000))))"""


def base_of(address: str) -> str:
    """Return the part of an address to which paths are added."""
    return address.partition("/?")[0]


def paint_times(address: str, paths: Sequence[str], repeats: int) -> dict[str, list[float]]:
    """Return the seconds until each page was painted, each time; nothing without a browser.

    Args:
        address: What `sqlbuffer ui` printed.
        paths: Their paths.
        repeats: How often to open each; once more is not counted.
    """
    try:
        from tests.support.chromium import launched_chromium
    except ImportError:
        return {}
    found: dict[str, list[float]] = {}
    with launched_chromium() as browser:
        if browser is None:
            return {}
        page = browser.new_page()
        page.goto(address)
        for path in paths:
            times = []
            for _ in range(repeats + 1):
                if page.goto(f"{base_of(address)}{path}", wait_until="load").status != 200:
                    raise RuntimeError(f"{path}: no page")
                times.append(float(page.evaluate(_PAINTED_S)))
            found[path] = times[1:]
    return found
