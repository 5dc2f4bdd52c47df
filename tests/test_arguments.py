"""Every public call refuses odd arguments by name, and writes nothing then."""

import logging
import random
import re
import warnings
from contextlib import closing
from decimal import Decimal

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import ArgumentError, BufferConfigError, ConditionError, FieldError
from tests.support.odd_values import ODD, admits
from tests.support.public_calls import (
    HangError,
    World,
    is_raised_by_library,
    limits,
    public_calls,
    use,
)

OF_ARGUMENTS = (ArgumentError, BufferConfigError, ConditionError, FieldError)
MOST_CHARACTERS = 1_500  # some messages list the fields that there are
# What messages call some arguments.
ALSO_NAMED = {
    "arrays": "field|arrays",
    "block": "block|arrays",
    "place": "place|arrays",
    "condition": "condition",
    "declaration": "field",
    "every": "condition",
    "condition_or_seqs": "seqs|condition",
    "fields": "field",
    "given": "field",
    "json_data": "BufferConfig|Connection",
    "meta_fields": "field",
    "obj": "BufferConfig|Connection",
    "query_condition": "condition",
    "reward_t": "reward",
    "settings": "setting",
    "stored": "stored|field",
    "url": "database|URL",
    "value": "field|value",
    "values": "field|values",
}
# Numbers become text where they are given as one of these keys.
KEYS = {
    "id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "session_id", "task_ids",
}  # fmt: skip
# Their values have more types than the annotations say; tests/steps and tests/fields test them.
OF_VALUES = (".add", ".append", ".extend", ".cast", ".cast_rows")
ROWS = ("DataRow", "ExpMeta", "Experience")
# Draws with replacement return as many steps as a batch is given, whatever the buffer holds.
LARGE = ("33 bits", "63 bits", "64 bits", "400 digits", "5000 digits")
SIZES = ("batch_size", "n_step", "length", "burn_in", "stride")
# Python's words, which do not say what to give.
PYTHONS = re.compile(
    r"not supported between|object is not |object has no attribute|not iterable|NoneType|"
    r"positional argument|unexpected keyword|recursion|truth value|__\w+__|validation error"
)


def fault(call, world, wrong, label):
    """Return what is wrong with how a call takes an odd value; None: nothing."""
    error = error_of(call, world, wrong, label)
    if isinstance(error, HangError):
        return "does not end"
    if error is not None:
        return fault_of(error, call, wrong)
    world.repair(call)
    parameter = next(each for each in call.parameters if each.name == wrong)
    value = ODD[label]()
    return None if value is parameter.default or is_right(call, parameter, value) else "accepted"


def error_of(call, world, wrong, label):
    """Return the error of a call with an odd value; None: there is none.

    Where something was committed while the call was refused, it is called once more: threads of the
    library write as well.
    """
    for compared in (world.commits, world.contents):
        prepared, before = call.prepared(world, wrong, ODD[label]()), compared()
        try:
            with limits():
                use(prepared())
            return None
        except (Exception, HangError) as error:
            if compared() == before:
                return error
    raise AssertionError(f"{call.name}({wrong}={label}) was refused, and has written something")


def fault_of(error, call, wrong):
    """Return what is wrong with an error; None: nothing."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    message = str(error)
    if not is_raised_by_library(error):
        return f"Python's {type(error).__name__}: {message[:150]}"
    if not kinds & call.errors:
        return f"undocumented {type(error).__name__}: {message[:150]}"
    if len(message) > MOST_CHARACTERS:
        return f"a message of {len(message):,} characters: {message[:100]}"
    if PYTHONS.search(message):
        return f"a message in Python's words: {message[:150]}"
    named = ALSO_NAMED.get(wrong, re.escape(wrong))
    if isinstance(error, OF_ARGUMENTS) and not re.search(named, message):
        return f"a message without the name: {message[:150]}"
    return None


def is_right(call, parameter, value):
    """Return True if a call may take the value."""
    if call.name.endswith(OF_VALUES) or call.owner in ROWS:
        return True
    if (parameter.name.endswith("fields") and value == []) or call.name == "BufferConfig":
        return True  # as in JSON
    if parameter.name in KEYS:
        items = value if isinstance(value, (list, tuple, set)) else [value]
        numbers = (int, float, np.number, np.ndarray)
        if all(isinstance(item, numbers) for item in items):
            return True
    return admits(parameter.annotation, value)


def odd_calls(n, seed):
    """Yield public calls with n odd values for each of their parameters, the same for a seed."""
    for call in public_calls():
        for parameter in call.parameters:
            chosen = random.Random(f"{seed} {call.name} {call.layout} {parameter.name}")
            for label in chosen.sample(sorted(ODD), n):
                if not (parameter.name in SIZES and label in LARGE):
                    yield call, parameter.name, label


def faults(world, calls):
    """Return what is wrong with how calls take odd values."""
    found = {
        f"{call.name}({wrong}={label}) on {call.layout or 'no'}": fault(call, world, wrong, label)
        for call, wrong, label in calls
    }
    return {where: what for where, what in found.items() if what is not None}


@pytest.fixture
def world(schema_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where a text is taken for the path of a file
    logging.disable(logging.ERROR)
    with warnings.catch_warnings(), closing(World(schema_url, tmp_path)) as made:
        warnings.simplefilter("ignore")
        yield made
    logging.disable(logging.NOTSET)


# Contents are compared after each refused call on PostgreSQL, which takes more time.
@pytest.mark.slow
def test_odd_arguments_are_refused_by_name_and_nothing_is_written(world):
    calls = list(odd_calls(2, "a"))
    if not world.url.startswith("sqlite"):
        calls = [each for each in calls if each[0].owner in ("ReplayBuffer", "Candidates")][::18]
    assert faults(world, calls) == {}


def test_every_class_and_function_of_the_api_pages_is_called():
    owners = {call.owner for call in public_calls()}
    assert {"ReplayBuffer", "Mirror", "QueryBuilder", "RandomSampler", "export_parquet"} <= owners
    assert len(public_calls()) > 120


CASES = {
    "other": lambda buffer: buffer.copy_to(None),
    "sampler": lambda buffer: buffer.peek(sampler=1),
    "page": lambda buffer: buffer.get_paginated(Decimal("NaN"), 3),
    "page_size": lambda buffer: buffer.get_paginated(1, 2.5),
    "block": lambda buffer: buffer.decode(2**63),
    "batch_size": lambda buffer: buffer.loader("step", batch_size=10**400),
    "task_ids": lambda buffer: buffer.get_batch_by_task_ids("t1"),
    "shared": lambda buffer: buffer.mirror(shared="no"),
    "create": lambda buffer: ReplayBuffer(buffer.url, "new", create="x"),
    "state_type": lambda buffer: ReplayBuffer(buffer.url, "new", state_type=1.5),
    "read_url": lambda buffer: ReplayBuffer(buffer.url, "new", read_url="sqlite:///other.db"),
    "reason": lambda buffer: buffer.quarantine([1], reason=ODD["deep list"]()),
    "version": lambda buffer: buffer.annotate([1], adv_t=1.0, version=ODD["deep list"]()),
    "agent_id": lambda buffer: buffer.episode(agent_id=ODD["deep list"]()),
    "casting": lambda buffer: buffer.extend({"obs": [0.0]}, casting="safe"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", CASES)
def test_an_argument_is_named_in_a_short_message_before_a_buffer_is_made(name, schema_url):
    with ReplayBuffer(schema_url, "typed", fields={"obs": "float32"}) as buffer:
        buffer.extend({"obs": [0.0, 1.0]})
        with pytest.raises(OF_ARGUMENTS, match=name) as caught:
            CASES[name](buffer)
        assert len(str(caught.value)) < 300
        assert len(buffer) == 2
    assert ReplayBuffer.list(schema_url) == ["typed"]
