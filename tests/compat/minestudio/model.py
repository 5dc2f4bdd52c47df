"""The rules of chunks in plain Python: what the buffer is compared with."""

from collections.abc import Sequence


class ModelChunk:
    """Consecutive fragments of a worker: (worker, fid, version, session) of each."""

    def __init__(self, number: int, fragments: Sequence[tuple[str, int, int, str]]) -> None:
        self.number, self.fragments = number, list(fragments)
        self.is_used_up = False
        self.uses = 0

    @property
    def indices(self) -> list[tuple[str, int]]:
        return [(worker, fid) for worker, fid, _, _ in self.fragments]


class Model:
    """What MineStudio's actor did, without its weaknesses."""

    def __init__(self, max_chunks: int, max_staleness: int, max_reuse: int, per_chunk: int) -> None:
        self.max_chunks, self.max_staleness = max_chunks, max_staleness
        self.max_reuse, self.per_chunk = max_reuse, per_chunk
        self.version, self.session = -1, ""
        self.chunks: list[ModelChunk] = []
        self.held_chunks: list[ModelChunk] = []
        self.n_made = 0
        self.waiting: dict[str, list[tuple[str, int, int, str]]] = {}
        self.last: dict[str, int] = {}
        self.prepared: list[tuple[str, int]] = []
        self.left = dict.fromkeys(("used_up", "evicted", "stale", "other_session"), 0)
        self.dropped = self.gaps = 0

    def _is_fresh(self, fragment: tuple[str, int, int, str]) -> bool:
        _, _, version, session = fragment
        return session == self.session and self.version - version <= self.max_staleness

    def add(self, worker: str, fid: int, version: int, session: str) -> None:
        queue = self.waiting.pop(worker, [])
        if fid != self.last.get(worker, fid - 1) + 1:
            self.gaps += 1
            self.dropped += len(queue)
            queue = []
        self.last[worker] = fid
        queue.append((worker, fid, version, session))
        self._keep_fresh(worker, queue)
        queue = self.waiting.get(worker, [])
        if len(queue) == self.per_chunk:
            del self.waiting[worker]
            self.n_made += 1
            self.chunks.append(ModelChunk(self.n_made, queue))
            self._evict()

    def _evict(self) -> None:
        while len(self.chunks) > self.max_chunks:
            self.chunks.pop(0)
            self.left["evicted"] += 1

    def release(self) -> int:
        """Give back what was fetched last; return how much of it may be fetched."""
        held, self.held_chunks, self.prepared = self.held_chunks, [], []
        for chunk in held:
            chunk.uses -= 1
            if chunk.is_used_up and chunk.fragments[0][3] == self.session:
                chunk.is_used_up = False
                self.left["used_up"] -= 1
                self.chunks.append(chunk)
        self.chunks.sort(key=lambda chunk: chunk.number)
        self._expire("stale")
        self._evict()
        return sum(chunk in self.chunks for chunk in held)

    def _keep_fresh(self, worker: str, queue: list[tuple[str, int, int, str]]) -> None:
        kept: list[tuple[str, int, int, str]] = []
        for fragment in queue:
            kept = [*kept, fragment] if self._is_fresh(fragment) else []
        self.dropped += len(queue) - len(kept)
        self.waiting[worker] = kept

    def update(self, session: str, version: int) -> None:
        cause = "stale" if session == self.session else "other_session"
        self.session, self.version = session, version
        self._expire(cause)
        for worker, queue in self.waiting.items():
            self._keep_fresh(worker, queue)

    def _expire(self, cause: str) -> None:
        kept = [c for c in self.chunks if all(map(self._is_fresh, c.fragments))]
        self.left[cause] += len(self.chunks) - len(kept)
        self.chunks = kept

    def can_fetch(self, k: int) -> bool:
        return len(self.chunks) >= k

    def fetched(self, fragments: Sequence[tuple[str, int]]) -> None:
        """Follow a fetch; fails where it broke a rule."""
        n = self.per_chunk
        groups = [list(fragments[i : i + n]) for i in range(0, len(fragments), n)]
        chosen = [next(c for c in self.chunks if c.indices == group) for group in groups]
        assert len({id(chunk) for chunk in chosen}) == len(chosen)
        for chunk in chosen:
            chunk.uses += 1
            if chunk.uses == self.max_reuse:
                self.chunks.remove(chunk)
                self.left["used_up"] += 1
                chunk.is_used_up = True
        self.prepared, self.held_chunks = list(fragments), chosen

    def held(self) -> set[tuple[str, int]]:
        """Return the fragments whose payloads are there."""
        live = {index for chunk in self.chunks for index in chunk.indices}
        queued = {(w, fid) for queue in self.waiting.values() for w, fid, _, _ in queue}
        return live | queued | set(self.prepared)
