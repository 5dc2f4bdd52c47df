"""Draw the pictures of the tutorials, with the code of the tutorials: `make tutorial-pictures`."""

import os
import re
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.docs.pages import Reader
from tests.support.markdown import ROOT

# Each with the page that draws it and the file that the page saves.
PICTURES = {
    "tutorial-dqn.svg": ("docs/tutorials/dqn.md", "learning-curve.svg"),
    "tutorial-dataframes.svg": ("docs/tutorials/dataframes.md", "balance.svg"),
}
# Colors of text and lines, as the pages of the docs have them in light and dark.
_STYLE = """<style>
svg { color: #1f2328 }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }
</style>"""
_SVG = "{http://www.w3.org/2000/svg}"
# Text stays text, and the same figure makes the same file.
SETTINGS = {
    "savefig.transparent": True,
    "legend.framealpha": 0.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "sqlbuffer",
    "text.color": "#000000",
}


def with_both_schemes(svg: str) -> str:
    """Return a picture whose black is white where the reader's system is dark."""
    svg = re.sub(r"#000000|(?<=fill: )black", "currentColor", svg)
    # Text without a color of its own is black.
    svg = re.sub(r"(<text style=\")", r"\1fill: currentColor; ", svg)
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    return re.sub(r"(<svg [^>]*>)", lambda found: f"{found[1]}\n{_STYLE}", svg, count=1)


def curves(svg: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the (x, y) of the points and of the line in a picture, in the units of its axes."""
    figure = ElementTree.fromstring(svg)

    def places(part: str) -> list[tuple[float, float]]:
        uses = figure.iterfind(f".//*[@id='{part}']//{_SVG}use")
        return [(float(use.attrib["x"]), float(use.attrib["y"])) for use in uses]

    def scale(axis: str, tick: str, which: int) -> NDArray[np.float64]:
        texts = figure.iterfind(f".//*[@id='{axis}']/*/*/{_SVG}text")
        labels = [float(text.text or "") for text in texts]
        ticks = [places(f"{tick}_{n + 1}")[0][which] for n in range(len(labels))]
        return np.polyfit(ticks, labels, 1)

    x, y = scale("matplotlib.axis_1", "xtick", 0), scale("matplotlib.axis_2", "ytick", 1)
    line = figure.find(f".//*[@id='line2d_14']/{_SVG}path")
    assert line is not None
    found = np.array(places("line2d_13"))
    drawn = np.array(re.findall(r"[ML] ([\d.]+) ([\d.]+)", line.attrib["d"]), float)
    first, second = (
        np.column_stack([np.polyval(x, own[:, 0]), np.polyval(y, own[:, 1])])
        for own in (found, drawn)
    )
    return first, second


def draw(name: str) -> Path:
    """Run the page of a picture in an empty folder, and put the picture into the docs."""
    import matplotlib

    page, saved = PICTURES[name]
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(SETTINGS):
        os.chdir(folder)
        try:
            with pytest.MonkeyPatch.context() as monkeypatch:
                Reader(page, monkeypatch, {}).read()
            svg = Path(saved).read_text(encoding="utf-8")
        finally:
            os.chdir(here)
    target = ROOT / "docs" / "images" / name
    target.write_text(with_both_schemes(svg), encoding="utf-8")
    return target


if __name__ == "__main__":
    for each in sys.argv[1:] or PICTURES:
        print(draw(each))
