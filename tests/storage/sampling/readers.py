"""Readers of forms, for tests of what a draw reads."""

from sqlbuffer.batches.forms import Form


def reader_of(buffer, form, *args, **options):
    """Return the reader of a form, or of one that is made of the buffer's fields."""
    if not isinstance(form, Form):
        form = form.of(buffer._store.info.config.fields, *args, **options)
    return buffer._store.draws.reader_of(form)


def drawn(buffer, reader, sampler, n, node):
    """Return n items that a sampler draws."""
    return buffer._store.draws.draw(
        node, lambda candidates: reader.draw(candidates, sampler, n), reader.columns
    )
