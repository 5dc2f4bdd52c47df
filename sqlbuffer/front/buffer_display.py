"""The text and the HTML of a buffer."""

import threading
from functools import partial

from sqlbuffer.call_threads import Call
from sqlbuffer.display import html_table
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.store import BufferStore

# How long a notebook waits for the number of steps.
ANSWER_S = 1.0


def buffer_text(store: BufferStore) -> str:
    """Return the repr of a buffer. It asks the database nothing, since programs print objects where
    they may not wait: limits are those that this process saw last.
    """
    limits = "".join(f", {name}={n}" for name, n in _limits(store).items() if n is not None)
    fields = f", fields={{{_fields(store)}}}" if store.info.config.fields.specs else ""
    return f"ReplayBuffer({store.shown_url!r}, name={store.info.name!r}{limits}{fields})"


def buffer_html(store: BufferStore) -> str:
    """Return a table of what a buffer is, for notebooks; the number of steps is that of now, or
    says why it is not known.
    """
    steps = _stored_steps(store)
    limits = _limits(store)
    capacity, episodes = limits["max_capacity"], limits["max_episodes"]
    rows = {
        "name": store.info.name,
        "database": store.shown_url,
        "steps": f"{steps} of {capacity:,}" if capacity is not None else steps,
        "episodes": None if episodes is None else f"{episodes:,} at most",
        "fields": _fields(store) or None,
    }
    known = ((name, value) for name, value in rows.items() if value is not None)
    return html_table(["ReplayBuffer", ""], known)


def _limits(store: BufferStore) -> dict[str, int | None]:
    window, retention = store.last_window, store.info.config.retention
    source = retention if window is None else window
    return {"max_capacity": source.max_capacity, "max_episodes": source.max_episodes}


def _fields(store: BufferStore) -> str:
    return ", ".join(f"{name}: {spec}" for name, spec in store.info.config.fields.specs.items())


def _stored_steps(store: BufferStore) -> str:
    """Return how many steps are stored, without those of this process that wait."""
    call = Call(partial(store.rows.count_stored, EVERYTHING), lambda _: None)
    # Not one of those that the interpreter waits for when it ends: the server may be gone.
    threading.Thread(target=call.run, name="sqlbuffer-display", daemon=True).start()
    try:
        return f"{call.future.result(ANSWER_S):,}"
    except TimeoutError:
        call.cancel()
        return "unknown (the database did not answer)"
    except SQLBufferError as error:
        return f"unknown ({error})"
    except Exception as error:  # a notebook would show neither the table nor the error
        return f"unknown ({type(error).__name__})"
