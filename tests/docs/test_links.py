"""Links of the pages lead somewhere."""

import re

import pytest

from tests.docs.pages import pages, text_of
from tests.support.markdown import ROOT

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(document):
    return _LINK.findall(_CODE.sub("", text_of(document)))


def anchors(text):
    """Return the names that headings get on the web: small letters, digits, hyphens for spaces."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(document, text, targets):
    """Return the targets that are neither a file nor a heading of one."""
    return [target for target in targets if not _leads_somewhere(document, text, target)]


def _leads_somewhere(document, text, target):
    if re.match(r"https?:|mailto:", target):
        return True
    path, _, anchor = target.partition("#")
    place = ROOT / document if not path else (ROOT / document).parent / path
    if not place.is_file():
        return False
    return not anchor or anchor in anchors(text if not path else place.read_text(encoding="utf-8"))


@pytest.mark.thorough
@pytest.mark.parametrize("document", pages())
def test_links_lead_to_files_and_headings(document):
    assert broken(document, text_of(document), links(document)) == []


def test_the_index_leads_to_every_page():
    names = {page.removeprefix("docs/") for page in pages()} - {"README.md", "index.md"}
    assert set(links("docs/index.md")) == names


def test_a_link_to_nowhere_is_found():
    text = "# A heading, `code`\n"
    targets = [
        "#a-heading-code",
        "#none",
        "none.md",
        "docs/reference/views.md",
        "docs/reference/views.md#none",
    ]
    assert broken("README.md", text, targets) == [
        "#none",
        "none.md",
        "docs/reference/views.md#none",
    ]
