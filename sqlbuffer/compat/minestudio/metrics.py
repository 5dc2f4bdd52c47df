"""The metrics of a buffer, under MineStudio's names."""

from sqlbuffer.storage.extensions.fragments.pool import Pool

PREFIX = "replay_buffer/"
_COUNTED = (
    "fragments", "fetches", "fetched", "used_up", "evicted", "stale", "other_session",
    "broken", "dropped", "gaps", "missing",
)  # fmt: skip


def metrics(pool: Pool) -> dict[str, float]:
    """Return the metrics of a buffer; unknown ones are left out, so that none is NaN."""
    counts = pool.counts
    known = {
        "fragments_per_second": counts.per_second,
        "replay_buffer_size (chunk)": pool.n_groups,
        "model_version": pool.version,
        "avg_reuse": counts.reuse,
        "avg_staleness": counts.staleness,
        "size_bytes": pool.n_bytes,
        "chunks": counts.groups,
        **{name: getattr(counts, name) for name in _COUNTED},
    }
    return {PREFIX + name: value for name, value in known.items() if value is not None}
