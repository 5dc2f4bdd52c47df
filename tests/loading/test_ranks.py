"""Loaders that several ranks divide between them."""

import json
import multiprocessing
import os
import random
import time

import numpy as np
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer, mix
from sqlbuffer.errors import ArgumentError, InsufficientDataError
from tests.support.processes import run_at_once, running
from tests.support.sql import run, scalar


@pytest.fixture
def filled(buffer_url):
    with ReplayBuffer(buffer_url, fields={"x": "int64"}) as buffer:
        buffer.extend({"x": range(103)})
        yield buffer


def read(buffer, rank, world, **options):
    options = {"epochs": 1, "shard": (rank, world), **options}
    return [batch.x.tolist() for batch in buffer.loader("step", 8, **options)]


def flat(batches):
    return [x for batch in batches for x in batch]


@pytest.mark.each_value
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_divide_a_pass(filled, world, shuffle):
    parts = [flat(read(filled, rank, world, shuffle=shuffle)) for rank in range(world)]
    assert sorted(flat(parts)) == list(range(103))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if not shuffle:
        assert parts[0] == list(range(0, 103, world))


@pytest.mark.thorough
def test_each_pass_has_another_order_that_all_ranks_share(filled):
    parts = [read(filled, rank, 2, epochs=2) for rank in range(2)]
    both = [flat(parts[0]), flat(parts[1])]
    passes = [flat(parts[rank][:7]) for rank in range(2)]
    assert sorted(flat(passes)) == list(range(103))
    assert sorted(flat(both)) == sorted([*range(103)] * 2)
    assert set(passes[0]) != set(both[0][len(passes[0]) :])
    again = flat(read(filled, 0, 2))
    assert again != passes[0]


def test_rows_stored_between_the_starts_of_ranks_are_left_to_the_next_pass(filled):
    loaders = [filled.loader("step", 8, epochs=2, shard=(rank, 2)) for rank in range(2)]
    running = [iter(loader) for loader in loaders]
    first = [next(running[0])]
    filled.extend({"x": range(103, 150)})
    seen = [[*first], []]
    for rank in range(2):
        seen[rank] += list(running[rank])
    of_rank = [[batch.x.tolist() for batch in batches] for batches in seen]
    counts = np.bincount(flat(flat(of_rank)))
    assert counts.tolist() == [2] * 103 + [1] * 47


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("n", [97, 100, 103, 112])
@pytest.mark.parametrize("world", [2, 3, 5])
@pytest.mark.parametrize("drop_last", [False, True])
def test_even_ranks_have_the_same_number_of_batches(sqlite_url, n, world, drop_last):
    with ReplayBuffer(sqlite_url, fields={"x": "int64"}) as buffer:
        buffer.extend({"x": range(n)})
        loaders = [
            buffer.loader("step", 5, epochs=1, shard=(rank, world), even=True, drop_last=drop_last)
            for rank in range(world)
        ]
        parts = [[batch.x.tolist() for batch in loader] for loader in loaders]
        assert len({len(part) for part in parts}) == 1
        assert {len(part) for part in parts} == {len(loader) for loader in loaders}
        assert all(part and all(part) for part in parts)
        seen = flat(flat(parts))
        if drop_last:
            assert {len(batch) for part in parts for batch in part} == {5}
            assert len(seen) == len(set(seen))
        else:
            assert sorted(seen) == list(range(n))


def test_more_ranks_than_rows(filled):
    with ReplayBuffer(filled.url, "few", fields={"x": "int64"}) as buffer:
        buffer.extend({"x": [7, 8]})
        # An empty part would leave the other ranks waiting.
        even = [flat(read(buffer, rank, 5, even=True, shuffle=False)) for rank in range(5)]
        assert even == [[7], [8], [7], [8], [7]]
        parts = [flat(read(buffer, rank, 5, shuffle=False)) for rank in range(5)]
        assert parts == [[7], [8], [], [], []]
        buffer.clear()
        assert [read(buffer, rank, 2, even=True) for rank in range(2)] == [[], []]
        with pytest.raises(InsufficientDataError, match="for rank 1 of 2: buffer 'few' is empty"):
            next(iter(buffer.loader("step", 4, shuffle=False, shard=(1, 2))))


def state_after(loader, n):
    batches = iter(loader)
    seen = [next(batches).x.tolist() for _ in range(n)]
    return seen, json.loads(json.dumps(loader.state_dict()))


@pytest.mark.parametrize("even", [True, False])
def test_ranks_continue_from_their_states_with_the_same_rows(filled, even):
    def loaders():
        options = {"epochs": 2, "even": even}
        return [filled.loader("step", 8, shard=(rank, 2), **options) for rank in range(2)]

    begun, states = zip(*[state_after(loader, 3) for loader in loaders()], strict=True)
    filled.extend({"x": range(103, 150)})
    rest = []
    for loader, state in zip(loaders(), states, strict=True):
        loader.load_state_dict(state)
        rest.append([batch.x.tolist() for batch in loader])
    assert len(rest[0]) == len(rest[1])
    seen = flat(flat(begun)) + flat(flat(rest))
    assert np.bincount(seen).tolist() == [2] * 103 + [1] * 47
    # The next iteration is another one, which both ranks share again.
    again = [flat(batch.x.tolist() for batch in loader) for loader in loaders()]
    assert sorted(flat(again)) == sorted([*range(150)] * 2)


def of_ranks(buffer, world, states=None, **options):
    """Return the loaders of all ranks, which go on from states."""
    loaders = [
        buffer.loader("step", 8, **{"epochs": 1, "shard": (rank, world), **options})
        for rank in range(world)
    ]
    for loader in loaders if states is not None else ():
        loader.load_state_dict(states)
    return loaders


def some_of(loaders, counts):
    """Return what ranks read until each has had a number of batches, and their states."""
    seen, states = zip(*map(state_after, loaders, counts), strict=True)
    return flat(flat(seen)), list(states)


def rest_of(loaders):
    return [flat(batch.x.tolist() for batch in loader) for loader in loaders]


CHANGES = [
    pytest.param((4, 2), {}, id="4-2"),
    pytest.param((4, 8), {"even": True}, id="4-8-even"),
    pytest.param((4, 3, 5), {"shuffle": False, "epochs": 1}, id="4-3-5-ascending"),
    pytest.param((2, 1, 7, 4), {"seed": 5}, id="2-1-7-4-seed"),
]


@pytest.mark.each_value
@pytest.mark.parametrize(("worlds", "options"), CHANGES)
def test_another_number_of_ranks_divides_the_rest_of_a_pass(filled, worlds, options):
    world, *others = worlds
    counts = [2] * world if options.get("even") else [1, 3, 0, 2][:world]
    seen, states = some_of(of_ranks(filled, world, **options), counts)
    filled.extend({"x": range(103, 150)})  # of no pass that has begun
    states.reverse()
    for world in others[:-1]:
        more, states = some_of(of_ranks(filled, world, states, **options), [1] * world)
        seen += more
    rest = rest_of(of_ranks(filled, others[-1], states, **options))
    assert max(map(len, rest)) - min(map(len, rest)) <= 1
    assert sorted(seen + flat(rest)) == list(range(103))


@pytest.mark.each_value
@pytest.mark.parametrize("n_batches", [(14, 20), (26, 14), (7, 8), (13, 14)])
def test_ranks_that_are_in_different_passes_are_divided_again(filled, n_batches):
    seen, states = some_of(of_ranks(filled, 2, epochs=4), n_batches)
    filled.extend({"x": range(103, 150)})
    more, states = some_of(of_ranks(filled, 5, states, epochs=4), [0, 1, 3, 2, 1])
    rest = rest_of(of_ranks(filled, 3, states, epochs=4))
    counts = np.bincount(seen + more + flat(rest))
    assert counts[:103].tolist() == [4] * 103
    # Rows that came later are in each pass that no rank had begun, if there is one.
    n_left = 3 - (max(n_batches) - 1) // 7
    assert counts[103:].tolist() == [n_left] * 47 * (n_left > 0)


def test_ranks_of_which_one_has_finished_are_divided_again(filled):
    loaders = of_ranks(filled, 2)
    (done,) = rest_of(loaders[:1])
    seen, state = state_after(loaders[1], 2)
    rest = rest_of(of_ranks(filled, 3, [loaders[0].state_dict(), state]))
    assert sorted(done + flat(seen) + flat(rest)) == list(range(103))
    loaders = of_ranks(filled, 2, epochs=3)
    (done,) = rest_of(loaders[:1])
    seen, state = state_after(loaders[1], 9)  # in the second pass
    rest = rest_of(of_ranks(filled, 3, [loaders[0].state_dict(), state], epochs=3))
    assert sorted(done + flat(seen) + flat(rest)) == sorted([*range(103)] * 3)
    next(iter(loaders[0]))
    with pytest.raises(ArgumentError, match="several iterations"):
        of_ranks(filled, 1, [loaders[0].state_dict(), state], epochs=3)


def test_ranks_that_have_not_begun_or_have_all_finished_begin_anew(filled):
    loaders = of_ranks(filled, 4)
    for _ in range(2):
        states = [loader.state_dict() for loader in loaders]
        assert sorted(flat(rest_of(of_ranks(filled, 2, states)))) == list(range(103))
        rest_of(loaders)


def test_states_that_do_not_belong_together_are_refused(filled):
    _, states = some_of(of_ranks(filled, 4), [1, 2, 3, 4])
    _, others = some_of(of_ranks(filled, 4), [1, 1, 1, 1])
    loaders = of_ranks(filled, 2)
    rest_of(loaders[:1])
    (one,) = of_ranks(filled, 1)
    for wrong, message in (
        (states[:3], "world=4, and here it is 3"),
        ([*states[:3], states[0]], r"ranks \[0, 1, 2, 0\]; give one of each rank from 0 to 3"),
        ([], "a list of the states of all ranks"),
        ([*states[:3], None], "state"),
        ([*states[:3], {**states[3], "ranks": 5}], "damaged"),
        ([*states[:3], {**states[3], "later": {"1": "?"}}], "damaged"),
        ([*states[:3], others[3]], "did not read the same pass"),
        (states[0], "the states of all 4"),
        ([loader.state_dict() for loader in loaders], "a rank had not begun"),
    ):
        with pytest.raises(ArgumentError, match=message):
            one.load_state_dict(wrong)
    with pytest.raises(ArgumentError, match=r"shard=\(0, 1\)"):
        filled.loader("step", 8, epochs=1).load_state_dict(states)


def read_and_save(url, rank, world, folder, states):
    """Read as a trainer does: save what was read, and the state, after each batch."""
    saved = folder / f"{world}-{rank}.json"
    with ReplayBuffer(url) as buffer:
        loader = buffer.loader("step", 2, epochs=1, shard=(rank, world), seed=3)
        if states is not None:
            loader.load_state_dict(states)
        seen = []
        for batch in loader:
            seen += batch.x.tolist()
            written = saved.with_suffix(".new")
            written.write_text(json.dumps([seen, loader.state_dict()]))
            written.replace(saved)
            time.sleep(0.01)


@pytest.mark.thorough
@pytest.mark.parametrize("worlds", [(4, 2), (2, 8)])
def test_each_row_is_read_once_where_all_ranks_are_killed(filled, tmp_path, worlds):
    rng, seen, states = random.Random(repr(worlds)), [], None
    context = multiprocessing.get_context("spawn")
    for n, world in enumerate(worlds):
        is_last = n == len(worlds) - 1
        files = [tmp_path / f"{world}-{rank}.json" for rank in range(world)]
        ranks = [
            context.Process(target=read_and_save, args=(filled.url, rank, world, tmp_path, states))
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        if not is_last:
            while not all(file.exists() for file in files):
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.05))
            for rank in ranks:
                rank.kill()
        for rank in ranks:
            rank.join()
            assert rank.exitcode == 0 or not is_last
        saved = [json.loads(file.read_text()) for file in files if file.exists()]
        seen += flat(own for own, _ in saved)
        states = [state for _, state in saved]
    assert sorted(seen) == list(range(103))


def test_a_state_of_another_number_of_ranks_is_refused(filled):
    _, state = state_after(filled.loader("step", 8, epochs=1, shard=(0, 2)), 1)
    for other in ({"shard": (0, 3)}, {}, {"shard": (0, 2), "even": True}):
        with pytest.raises(ValueError, match=r"(world|even)="):
            filled.loader("step", 8, epochs=1, **other).load_state_dict(state)
    filled.loader("step", 8, epochs=1, shard=(1, 2)).load_state_dict(state)
    for change in ({"rows": "?"}, {"token": 3}, {"seed": "x"}, {"turn": None}):
        broken = {**state, "ranks": {**state["ranks"], **change}}
        with pytest.raises(ValueError, match="damaged"):
            filled.loader("step", 8, epochs=1, shard=(0, 2)).load_state_dict(broken)


def test_holes_and_conditions_are_divided_evenly(buffer_url):
    every_second = QueryBuilder().in_("x", list(range(0, 103, 2))).build()
    with ReplayBuffer(buffer_url, fields={"x": {"dtype": "int64", "column": True}}) as buffer:
        buffer.extend({"x": range(103)})
        buffer.delete(QueryBuilder().lt("x", 20).build())
        parts = [flat(read(buffer, rank, 3, condition=every_second)) for rank in range(3)]
        assert sorted(flat(parts)) == list(range(20, 103, 2))
        assert [len(part) for part in parts] == [14, 14, 14]


@pytest.mark.parametrize("mirror", [False, True])
def test_steps_that_no_transition_starts_at_make_no_rank_smaller(buffer_url, mirror):
    with ReplayBuffer(buffer_url, fields={"obs": "float32"}) as buffer:
        for n in (3, 7, 5, 11):
            buffer.store_episode({"obs": np.arange(n), "reward": np.ones(n)}, truncated=True)
        loaders = [
            buffer.loader(
                "transition", 4, epochs=1, shard=(rank, 2), even=True, drop_last=True, mirror=mirror
            )
            for rank in range(2)
        ]
        found = []
        for loader in loaders:
            with loader:
                found.append([batch.info["seq"].tolist() for batch in loader])
        assert [[len(batch) for batch in batches] for batches in found] == [[4, 4], [4, 4]]
        assert len(set(flat(flat(found)))) == 16


def test_ranks_with_mirrors_read_what_the_first_one_saw(filled):
    with (
        filled.mirror(refresh_s=600) as early,
        ReplayBuffer(filled.url) as other,
    ):
        other.extend({"x": range(103, 110)})
        with other.mirror() as late:
            loaders = [
                mirror.loader("step", 8, epochs=1, shard=(rank, 2))
                for rank, mirror in enumerate([late, early])
            ]
            parts = [flat(batch.x.tolist() for batch in loader) for loader in loaders]
    assert sorted(flat(parts)) == list(range(110))


def test_rows_that_leave_are_made_up_for_where_ranks_are_even(buffer_url):
    with ReplayBuffer(buffer_url, fields={"x": "int64"}, max_capacity=100) as buffer:
        buffer.extend({"x": range(100)})
        even = [
            buffer.loader("step", 10, epochs=1, shard=(rank, 2), even=True, drop_last=True)
            for rank in range(2)
        ]
        running = [iter(loader) for loader in even]
        seen = [[next(batches).x.tolist()] for batches in running]
        buffer.extend({"x": range(100, 130)})
        for rank, batches in enumerate(running):
            seen[rank] += [batch.x.tolist() for batch in batches]
        assert [[len(batch) for batch in batches] for batches in seen] == [[10] * 5] * 2
        assert max(flat(flat(seen))) < 100
        assert set(range(30, 100)) <= set(flat(flat(seen)))
        running = [iter(loader) for loader in even]
        next(running[0])
        buffer.extend({"x": range(200, 300)})
        with pytest.raises(InsufficientDataError, match="rank 0 of 2 needs 10 of its 50 rows"):
            next(running[0])


def test_draws_without_end_differ_between_ranks_and_repeat_with_the_seed(filled):
    def drawn(rank, **options):
        batches = iter(filled.loader("step", 8, shard=(rank, 2), seed=3, **options))
        return [next(batches).x.tolist() for _ in range(2)]

    assert drawn(0) != drawn(1)
    assert drawn(0) == drawn(0) == drawn(0, even=True)
    mixed = [next(iter(mix({filled: 1.0}).loader("step", 8, shard=(r, 2), seed=3))) for r in (0, 1)]
    assert mixed[0].x.tolist() != mixed[1].x.tolist()
    with filled.mirror() as mirror:
        drawn = [next(iter(mirror.loader("step", 8, shard=(r, 2), seed=3))) for r in (0, 1)]
    assert drawn[0].x.tolist() != drawn[1].x.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": (2, 2)}, "0 <= rank < world <= .*, got \\(2, 2\\)"),
        ({"shard": (-1, 2)}, "0 <= rank < world"),
        ({"shard": (0, 0)}, "0 <= rank < world"),
        ({"shard": (0,)}, "\\(rank, world\\) or 'torch'"),
        ({"shard": "jax"}, "\\(rank, world\\) or 'torch', .* got 'jax'"),
        ({"shard": 1}, "\\(rank, world\\) or 'torch'"),
        ({"shard": (0.0, 2)}, "two integers"),
        ({"shard": (True, 2)}, "two integers"),
        ({"even": True}, "even=True goes with shard"),
        ({"shard": "torch"}, "RANK and WORLD_SIZE, which torchrun sets; they are '' and ''"),
    ],
)
def test_wrong_shards_are_refused(filled, monkeypatch, options, message):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=message):
        filled.loader("step", 4, epochs=1, **options)


def test_torchrun_sets_the_rank(filled, monkeypatch):
    parts = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "run")
        loader = filled.loader("step", 8, epochs=1, shard="torch")
        parts.append(flat(batch.x.tolist() for batch in loader))
    assert sorted(flat(parts)) == list(range(103))
    # Another launch has nothing to do with the one before.
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert len(
        flat(batch.x.tolist() for batch in filled.loader("step", 8, epochs=1, shard="torch"))
    )


def read_part(url, rank, world, epochs):
    with ReplayBuffer(url) as buffer:
        options = {"epochs": epochs, "shard": (rank, world), "even": True}
        return [batch.info["seq"].tolist() for batch in buffer.loader("step", 16, **options)]


def write(url, n):
    with ReplayBuffer(url) as buffer:
        for _ in range(n):
            buffer.extend({"x": range(10)})


@pytest.mark.thorough
def test_processes_that_start_together_divide_what_is_there_while_others_write(filled):
    url, epochs = filled.url, 4
    calls = [(read_part, url, rank, 3, epochs) for rank in range(3)]
    parts = [found for found in run_at_once([*calls, (write, url, 40)]) if found is not None]
    assert len({len(part) for part in parts}) == 1
    counts = np.bincount(flat(flat(parts)))[1:]
    assert set(counts[:103].tolist()) == {epochs}
    # A row is in all passes after it was stored, once in each.
    assert (np.diff(counts) <= 0).all()
    assert counts.max() == epochs
    assert run(url, "SELECT count(*) FROM rank_agreements")[0][0] < 16


def begin_and_wait(url, rank):
    with ReplayBuffer(url) as buffer:
        batches = iter(buffer.loader("step", 8, epochs=1, shard=(rank, 2)))
        next(batches)
        time.sleep(60)


@pytest.mark.thorough
def test_a_rank_that_was_killed_begins_again_with_the_rows_of_the_others(filled):
    url = filled.url
    with running([(begin_and_wait, url, 0)]):
        while not scalar(url, "SELECT count(*) FROM rank_agreements WHERE name LIKE 'part%'"):
            time.sleep(0.01)
    filled.extend({"x": range(103, 120)})
    parts = [flat(read(filled, rank, 2)) for rank in (0, 1)]
    assert sorted(flat(parts)) == list(range(103))
    assert sorted(flat(flat(read(filled, rank, 2)) for rank in (0, 1))) == list(range(120))


def test_an_old_iteration_of_others_is_not_joined(filled):
    read(filled, 0, 2)
    old = {
        "sqlite": "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-11 minutes')",
        "postgresql": "now() - interval '11 minutes'",
    }[filled.url.partition(":")[0].partition("+")[0]]
    run(filled.url, f"UPDATE rank_agreements SET agreed_at = {old}")
    filled.extend({"x": range(103, 120)})
    parts = [flat(read(filled, rank, 2)) for rank in (1, 0)]
    assert sorted(flat(parts)) == list(range(120))


def test_a_look_at_the_first_batch_by_one_rank_does_not_count(filled):
    next(iter(filled.loader("step", 8, epochs=1, shard=(0, 2)))).x.tolist()
    filled.extend({"x": range(103, 120)})
    parts = [flat(read(filled, rank, 2)) for rank in (0, 1)]
    assert sorted(flat(parts)) == list(range(120))


def test_loops_that_are_left_early_begin_new_iterations_together(filled):
    loaders = [filled.loader("step", 8, epochs=1, shard=(rank, 2)) for rank in range(2)]
    firsts = []
    for _ in range(3):
        running = [iter(loader) for loader in loaders]
        firsts.append([next(batches).x.tolist() for batches in running])
        for batches in running:
            batches.close()
    assert not any(set(mine) & set(theirs) for mine, theirs in firsts)
    assert len({tuple(mine) for mine, _ in firsts}) == 3


def test_a_dropped_buffer_leaves_no_agreement(filled):
    read(filled, 0, 2)
    assert scalar(filled.url, "SELECT count(*) FROM rank_agreements")
    ReplayBuffer.drop(filled.url, filled.name)
    assert not scalar(filled.url, "SELECT count(*) FROM rank_agreements")


def test_a_loop_that_outlives_its_buffer_makes_no_file(tmp_path):
    path = tmp_path / "replay.db"
    with ReplayBuffer(f"sqlite:///{path}", fields={"x": "int64"}) as buffer:
        buffer.extend({"x": range(10)})
        batches = iter(buffer.loader("step", 2, epochs=1, shard=(0, 2)))
        next(batches)
    os.unlink(path)
    batches.close()
    assert not path.exists()
