"""An advanced buffer of plain Python values: it follows the ids that a buffer has drawn."""

from collections import Counter


class Model:
    """What an `AdvancedReplayBuffer` does, on a list of dicts."""

    def __init__(self, size, *, max_use, max_staleness, alpha, beta, anneal_step):
        self.size, self.max_use, self.max_staleness = size, max_use, max_staleness
        self.alpha, self.beta, self.step = alpha, beta, (1 - beta) / anneal_step
        self.push_count, self.largest, self.items = 0, 1.0, {}
        self.n_out = 0

    def push(self, items):
        for item in items:
            number = self.push_count
            self.push_count += 1
            self.n_out += self.items.pop(number - self.size, None) is not None
            priority = item.get("priority", self.largest)
            self.items[number] = {**item, "priority": priority, "use": 0}

    def remove_stale(self, iteration):
        for number, item in list(self.items.items()):
            if self.staleness(item, iteration) >= self.max_staleness:
                del self.items[number]
                self.n_out += 1

    @staticmethod
    def staleness(item, iteration):
        collected = item.get("collect_iter")
        if collected is None:
            return -1
        return iteration - (min(collected) if isinstance(collected, list) else collected)

    def sample(self, ids, iteration):
        """Return what each of the drawn items has beside its own keys."""
        least = min(item["priority"] for item in self.items.values())
        total = sum(item["priority"] ** self.alpha for item in self.items.values())
        for id_, n in Counter(ids).items():
            weight = self.items[int(id_.split("_")[1])]["priority"] ** self.alpha
            assert n < len(ids) * weight / total + 2, (
                "no part of the sum holds it, and it was drawn"
            )
        found = []
        for id_ in ids:
            number = int(id_.split("_")[1])
            item = self.items[number]
            item["use"] += 1
            found.append(
                {
                    "replay_unique_id": id_,
                    "replay_buffer_idx": number % self.size,
                    "priority": item["priority"],
                    "use": item["use"],
                    "staleness": self.staleness(item, iteration),
                    "IS": (least**self.alpha / item["priority"] ** self.alpha) ** self.beta,
                    "obs": item["obs"],
                }
            )
        n_before = len(self.items)
        self.items = {n: item for n, item in self.items.items() if item["use"] < self.max_use}
        self.n_out += n_before - len(self.items)
        self.beta = min(1.0, self.beta + self.step)
        return found

    def update(self, ids, priorities):
        for id_, priority in zip(ids, priorities, strict=True):
            number = int(id_.split("_")[1])
            if number in self.items:
                self.items[number]["priority"] = priority + 1e-5
                self.largest = max(self.largest, priority)
