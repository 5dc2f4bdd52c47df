import re
from urllib.parse import quote

import pytest

from sqlbuffer import ReplayBuffer
from tests.web.conftest import HOSTILE, SCRIPT, row

PAGES = ["/", f"/buffer?buffer={quote(HOSTILE, safe='')}", "/sql"]


def test_buffers_are_listed_with_their_figures(schema_url, client_of):
    with ReplayBuffer(schema_url, name="train", max_capacity=200) as buffer:
        buffer.store_batch([row(step, agent=f"agent{step % 3}") for step in range(100)])
        buffer.sample(10)
        buffer.stats()  # which counts what was sampled
    ReplayBuffer(schema_url, name="empty").close()
    page = client_of(schema_url).get("/").text
    cells = [
        [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", line)]
        for line in re.findall(r"<tr data-row>.*?</tr>", page, re.DOTALL)
    ]
    empty, train = cells
    assert train[:4] == ["train", "100", "200", "50%"]
    assert train[7] == "3: agent0, agent1, agent2"
    assert train[8].startswith("1: ")
    assert empty[:4] == ["empty", "0", "unlimited", "\u2013"]


@pytest.mark.parametrize("path", PAGES)
def test_hostile_names_and_texts_are_only_shown(hostile_url, client_of, path):
    response = client_of(hostile_url).get(path)
    assert response.status_code == 200
    assert SCRIPT not in response.text
    assert "49" not in re.findall(r"\{\{.*?\}\}", response.text)
    # Nothing of a page is run or styled but its own files.
    assert re.findall(r"<script(?! src=| type=\"application/json\")", response.text) == []
    assert re.findall(r"<[^>]*\s(?:style|on\w+)=", response.text) == []


def test_an_empty_database_says_how_a_buffer_is_made(schema_url, client_of):
    assert "There are no buffers yet" in client_of(schema_url).get("/").text


@pytest.mark.parametrize("path", ["/buffer?buffer=none", "/buffer", "/buffer?buffer=%00"])
def test_a_buffer_that_is_not_there_is_told(schema_url, client_of, path):
    response = client_of(schema_url).get(path)
    assert response.status_code == 404
    assert "choose one from the list" in response.text


def test_an_address_of_no_page_is_told(schema_url, client_of):
    response = client_of(schema_url).get(f"/{quote(SCRIPT)}")
    assert response.status_code == 404
    assert "There is no such page" in response.text
    assert SCRIPT not in response.text
