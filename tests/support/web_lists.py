"""What a page lists, and the lines that it shows for a shell."""

import html
import re
import shlex
from urllib.parse import urlencode

from typer.testing import CliRunner

from sqlbuffer.cli import app as command_line


def address(path, **query):
    return f"{path}?{urlencode(query)}"


def rows_of(text):
    """Return the cells of a page's table, with whole ids."""
    text = re.sub(r'title="([^"]*)" data-whole>[^<]*<', r">\1<", text)
    found = re.findall(r"<tr data-row>.*?</tr>", text, re.DOTALL)
    return [
        [html.unescape(re.sub(r"<[^>]+>", "", cell)).strip() for cell in cells]
        for cells in (re.findall(r"<t[hd].*?</t[hd]>", line, re.DOTALL) for line in found)
    ]


def next_of(text):
    found = re.search(r'<a href="([^"]+)" rel="next"', text)
    return html.unescape(found[1]) if found else None


def all_rows(client, path):
    rows, n_pages = [], 0
    while path:
        text = client.get(path).text
        rows += rows_of(text)
        path, n_pages = next_of(text), n_pages + 1
        assert n_pages < 20
    return rows


def lines_of(text):
    """Return the lines of a page that find the same elsewhere."""
    section = text.partition("The same in a shell or in Python</p>")[2].partition("</details>")[0]
    return [
        html.unescape(line) for line in re.findall(r"<pre[^>]*><code>(.*?)</code>", section, re.S)
    ]


def found_by(line, *options):
    """Return what a line for a shell prints."""
    result = CliRunner().invoke(command_line, [*shlex.split(line)[1:], *options])
    assert result.exit_code == 0, result.output
    return result.stdout
