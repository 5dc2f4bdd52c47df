"""Two ranks of torch's DistributedDataParallel that divide the passes over one buffer.

    torchrun --nproc-per-node=2 docs/examples/ddp_returns.py --url postgresql://me@db.internal/replay
    torchrun --nproc-per-node=2 docs/examples/ddp_returns.py --url sqlite:///ddp.db --folder ddp

The ranks train a network on all rows of the buffer. Each row is read by one of them, in each pass
once, and all ranks have the same number of batches. Every few batches each rank saves its network,
its optimizer and the state of its loader. If the run is killed, type the command again: it goes on
behind the last saved batch, with the same rows, although others may have been stored since. At the
end each rank writes the numbers of the rows that it has read.

It needs `pip install '.[torch]'` in the checkout.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sqlbuffer import ReplayBuffer

BUFFER, FIELDS = "ddp", {"obs": ("float32", (8,)), "target": "float32"}
SAVE_EVERY = 5


def fill(url: str, n_rows: int) -> None:
    """Store rows for the example, unless there are some."""
    with ReplayBuffer(url, name=BUFFER, fields=FIELDS, create=True) as buffer:
        if not len(buffer):
            obs = np.random.default_rng(0).normal(size=(n_rows, 8)).astype("float32")
            buffer.extend({"obs": obs, "target": obs.sum(axis=1)})


def save(folder: Path, rank: int, step: int, checkpoint: dict) -> None:
    """Write the checkpoint of a rank; delete older ones once all ranks have written theirs."""
    path = folder / f"step-{step:06d}-rank-{rank}.pt"
    torch.save(checkpoint, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)
    dist.barrier()
    for old in folder.glob(f"step-*-rank-{rank}.pt"):
        if old != path:
            old.unlink()


def latest(folder: Path, rank: int, world: int) -> dict | None:
    """Return the newest checkpoint that all ranks have."""
    steps = sorted({path.name[:11] for path in folder.glob("step-*.pt")}, reverse=True)
    for step in steps:
        paths = [folder / f"{step}-rank-{rank}.pt" for rank in range(world)]
        if all(path.exists() for path in paths):
            return torch.load(paths[rank], weights_only=True)
    return None


def train(url: str, folder: Path, epochs: int, rank: int, world: int) -> None:
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with ReplayBuffer(url, name=BUFFER) as buffer:
        loader = buffer.loader("step", 32, epochs=epochs, shard="torch", even=True, device="cpu")
        step, seen, error = 0, [], float("nan")
        checkpoint = latest(folder, rank, world)
        dist.barrier()  # no rank saves before all have looked
        if checkpoint is not None:
            step, seen = checkpoint["step"], checkpoint["seen"]
            model.load_state_dict(checkpoint["model"])
            optimizer.load_state_dict(checkpoint["optimizer"])
            loader.load_state_dict(checkpoint["loader"])
            print(f"rank {rank} goes on behind batch {step}", flush=True)
        for batch in loader:
            loss = torch.nn.functional.mse_loss(model(batch.obs)[:, 0], batch.target)
            optimizer.zero_grad()
            loss.backward()  # waits for the other ranks
            optimizer.step()
            error = loss.item()
            step, seen = step + 1, [*seen, *batch.info["seq"].tolist()]
            if step % SAVE_EVERY == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                state |= {"loader": loader.state_dict(), "step": step, "seen": seen}
                save(folder, rank, step, state)
    (folder / f"seen-{rank}.json").write_text(json.dumps(seen))
    print(f"rank {rank} read {len(seen)} rows in {step} batches, loss {error:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="sqlite:///ddp.db")
    parser.add_argument("--folder", type=Path, default=Path("ddp"))
    parser.add_argument("--rows", type=int, default=1_000)
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    if rank == 0:
        fill(given.url, given.rows)
    dist.barrier()
    train(given.url, given.folder, given.epochs, rank, world)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
