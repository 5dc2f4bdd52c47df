"""Pictures of the command line are made of what it prints."""

import xml.etree.ElementTree as ElementTree

from tests.integrations.cli.pictures import FOLDER, PICTURES, answer_of, picture


def test_a_picture_has_the_command_and_its_answer_and_loads_nothing():
    answer = answer_of("sqlbuffer show --help", 80)
    svg = picture("sqlbuffer show --help", answer, 80, 3)
    text = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    assert "$ sqlbuffer show --help" in text
    assert "Usage: sqlbuffer show" in text
    assert "..." in text
    assert "url(http" not in svg
    assert "\x1b" not in svg


def test_each_picture_was_taken_of_the_command_that_it_is_of():
    for name, (line, _, _) in PICTURES.items():
        svg = (FOLDER / f"terminal-{name}.svg").read_text(encoding="utf-8")
        text = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
        assert line in text, f"{name}: run `make terminal-pictures`"
