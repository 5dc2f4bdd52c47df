"""Batches and lists of rows print in short, as text and in notebooks."""

import numpy as np

from sqlbuffer.steps import Batch, RowList


def test_a_long_list_of_rows_prints_its_first_ones():
    assert repr(RowList([1, 2])) == "RowList([1, 2])"
    assert repr(RowList(range(100))) == "RowList([0, 1, 2, 3, 4, ... 95 more])"


def test_notebooks_show_tables_without_the_markup_of_values():
    html = RowList(["<b>bold</b>"] * 7)._repr_html_()
    assert html.startswith("<p>7 rows</p><table>")
    assert html.count("<tr>") == 6
    assert "<b>" not in html
    html = Batch({"obs": np.zeros((2, 3), np.float32), "p": None}, {})._repr_html_()
    assert "<td>obs</td><td>float32</td><td>(2, 3)</td>" in html
    assert "<td>p</td><td>unknown</td>" in html
