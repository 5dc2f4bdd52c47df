"""A naive buffer of plain Python values."""


class Model:
    """What a `NaiveReplayBuffer` does, on a list."""

    def __init__(self, size):
        self.size, self.items, self.push_count, self.tail = size, [], 0, 0
        self.n_in, self.n_out = 0, 0

    def push(self, items):
        n_before = len(self.items)
        self.items = [*self.items, *items][-self.size :]
        self.n_in += len(items)
        self.n_out += n_before + len(items) - len(self.items)
        self.push_count += len(items)
        self.tail = (self.tail + len(items)) % self.size

    def clear(self):
        self.n_out += len(self.items)
        self.items, self.push_count, self.tail = [], 0, 0

    def can_draw(self, n, replace):
        return n <= len(self.items) or (replace and bool(self.items))

    def state(self):
        data = [None] * self.size
        for i, item in enumerate(self.items):
            data[(self.tail - len(self.items) + i) % self.size] = item
        counts = {"valid_count": len(self.items), "push_count": self.push_count}
        return {"data": data, "tail": self.tail, **counts}
