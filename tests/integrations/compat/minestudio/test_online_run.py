"""Rollout workers and a trainer that is killed, again and again: the parts of the example."""

import copy
import os
import signal
from collections import Counter
from itertools import count

import numpy as np
import pytest

from tests.compat.minestudio.fragments import chunks_of
from tests.support.markdown import ROOT
from tests.support.processes import wait_until

SIGKILL = {-signal.SIGKILL}


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "examples")
    import online_rollouts

    return online_rollouts


def n_noted(folder, event):
    """Return how much the ledgers of all processes say of an event, whole lines only."""
    begin = f'{{"event": "{event}"'.encode()
    return sum(file.read_bytes().count(begin) for file in folder.glob("*.jsonl"))


def lost(example, ledgers, held):
    """Return the fragments that should be held and are not, and chunks whose uses were miscounted.

    Chunks leave first in, first out: of the fragments that may still be fetched a worker's newest
    are held.
    """
    fetches = [entry for entry in example.all_fetches(ledgers) if entry["fetch"] != "overflow"]
    used = Counter(tuple(one[:2]) for fetch in fetches for one in fetch["chosen"])
    found = [
        f"{worker} {fid} has {n} uses, not {used[worker, fid]}"
        for worker, fid, n in held
        if n != used[worker, fid]
    ]
    newest = max(entry["version"] for entry in ledgers["fetched"] if entry["session"] == "run-2")
    for worker in ("fast", "steady"):
        fit = [
            entry["fid"]
            for entry in ledgers["added"]
            if entry["worker"] == worker
            and entry["session"] == "run-2"
            and entry["version"] > newest - example.STALENESS
            and used[worker, entry["fid"]] < example.REUSE
        ]
        first = [fid for name, fid, _ in held if name == worker]
        here = {fid + i for fid in first for i in range(example.CHUNK)}
        oldest = min(here & {*fit}, default=None)
        # The last of them may wait for its neighbours.
        fit = fit[: 1 - example.CHUNK]
        found += [
            f"{worker} {fid} is missing"
            for fid in fit
            if oldest is not None and fid > oldest and fid not in here
        ]
    return found


@pytest.mark.slow
def test_every_rule_holds_though_trainers_are_killed_at_any_moment(example, schema_url, tmp_path):
    buffer = example.ReplayBufferInterface(example.config(schema_url))
    lives, rng = count(), np.random.default_rng(9)
    with example.rollouts(schema_url, tmp_path):
        for session in ("run-1", "run-2"):
            for _ in range(2):
                enough = n_noted(tmp_path, "read") + int(rng.integers(5, 40))
                trainer = example.trainer(schema_url, tmp_path, next(lives), session, 10_000)
                with trainer as ranks:
                    wait_until(lambda n=enough: n_noted(tmp_path, "read") >= n, "both ranks read")
                    for process in ranks:
                        os.kill(process.pid, signal.SIGKILL)
                    assert example.ended(ranks) == SIGKILL
        with example.trainer(schema_url, tmp_path, next(lives), "run-2", 3) as ranks:
            assert example.ended(ranks) == {0}
    held = [
        (chunk["worker"], chunk["first_fid"], chunk["uses"])
        for chunk in chunks_of(schema_url).values()
        if chunk["left"] is None
    ]
    assert 0 < len(held) <= example.CHUNKS
    example.overflow(buffer, tmp_path)
    ledgers = example.ledgers(tmp_path)
    assert lost(example, ledgers, held) == []
    assert {rule: found for rule, found in example.broken_rules(ledgers).items() if found} == {}
    assert {entry["worker"] for entry in ledgers["added"]} == {*example.PAUSES, "last"}
    assert {entry["worker"] for entry in ledgers["added"] if entry["late"]} == {"late"}
    assert len(ledgers["resumed"]) == 3
    assert any(entry["chosen"] for entry in ledgers["resumed"])
    assert {entry["session"] for entry in ledgers["fetched"]} == {"run-1", "run-2"}
    buffer.close()


@pytest.fixture
def ledgers(example):
    """Return what was noted of two fetches in which every rule held."""

    def chosen(*numbers):
        return [["a", fid, f"id-{fid}"] for number in numbers for fid in (number, number + 1)]

    def entry(name, *numbers, **values):
        return {"fetch": name, "session": "s", "version": 3, "chosen": chosen(*numbers), **values}

    return {
        "added": [{"worker": "a", "fid": fid, "session": "s", "version": 1} for fid in range(10)],
        "fetched": [entry("0", 4, 0), entry("1", 0, 2)],
        "resumed": [entry("2", 0, 2)],
        "prepared": [entry("0", 4, 0, rank=rank) for rank in range(2)],
        "read": [{"fetch": "0", "id": "id-4", "as_stored": True}],
        "failed": [],
        "held": [{"expected": [["last", 1]], "found": [["last", 1]]}],
    }


def test_ledgers_of_a_good_run_break_no_rule(example, ledgers):
    assert not any(example.broken_rules(ledgers).values())


BREACHES = {
    "a trainer that failed": (
        "every trainer",
        lambda all_: all_["failed"].append({"trainer": 0, "codes": ["1"]}),
    ),
    "fragments of a chunk that do not follow": (
        "whole chunks",
        lambda all_: all_["fetched"][0].update(
            chosen=[["a", 4, "id-4"], ["a", 6, "id-6"], ["a", 0, "id-0"], ["a", 1, "id-1"]]
        ),
    ),
    "of two workers": (
        "whole chunks",
        lambda all_: all_["fetched"][0]["chosen"][1].__setitem__(0, "b"),
    ),
    "half a chunk": ("whole chunks", lambda all_: all_["fetched"][1]["chosen"].pop()),
    "a third use": (
        "no chunk in more",
        lambda all_: all_["fetched"].append(copy.deepcopy(all_["fetched"][1])),
    ),
    "a use that only the heir of the trainer has found": (
        "no chunk in more",
        lambda all_: all_["resumed"][0].update(chosen=all_["fetched"][0]["chosen"][2:]),
    ),
    "a chunk twice in a fetch": (
        "no chunk in more",
        lambda all_: all_["fetched"][1].update(chosen=all_["fetched"][1]["chosen"][2:] * 2),
    ),
    "a fragment too old": (
        "nothing stale",
        lambda all_: all_["added"][5].update(version=0),
    ),
    "another session": (
        "nothing stale",
        lambda all_: all_["added"][0].update(session="earlier"),
    ),
    "a fragment that nobody added": ("nothing stale", lambda all_: all_["added"].pop(3)),
    "two ids of a fragment": (
        "one id",
        lambda all_: all_["fetched"][1]["chosen"][0].__setitem__(2, "other"),
    ),
    "two fragments of an id": (
        "one id",
        lambda all_: all_["fetched"][1]["chosen"][2].__setitem__(2, "id-4"),
    ),
    "ranks that disagree": (
        "every rank",
        lambda all_: all_["prepared"][1]["chosen"].reverse(),
    ),
    "other bytes": ("every prepared", lambda all_: all_["read"][0].update(as_stored=False)),
    "an old one in place of a new one": (
        "the buffer keeps the newest",
        lambda all_: all_["held"][0].update(found=[["last", 0]]),
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_the_ledgers_tell_of(example, ledgers, breach):
    rule, commit = BREACHES[breach]
    commit(ledgers)
    broken = [name for name, found in example.broken_rules(ledgers).items() if found]
    assert any(name.startswith(rule) for name in broken), broken
