"""Measure everything on both databases and print the table: `python -m tests.benchmarks --help`."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.benchmarks import (
    arrays,
    conditions,
    ding,
    disk,
    fragments,
    frames,
    interchange,
    labels,
    leases,
    limits,
    lookups,
    machine,
    memmap,
    minestudio,
    mirror,
    own_writes,
    priorities,
    prioritized,
    questions,
    sampling,
    sizes,
    snapshot,
    start,
    turnover,
    vectors,
    web,
    writers,
    writing,
)
from tests.benchmarks.bench import FULL_ROWS, USUAL_ROWS, Bench, Scale
from tests.benchmarks.caches import server_and_restart
from tests.benchmarks.report import Figure, table, write_between_markers
from tests.support.markdown import ROOT
from tests.support.postgres import PostgresServer

DOCUMENT = ROOT / "docs" / "contributing" / "benchmarks.md"
KINDS = ("sqlite", "postgresql")
SECTIONS: dict[str, Callable[[Bench], Iterator[Figure]]] = {
    "writing": writing.measure,
    "sampling": sampling.measure,
    "sizes": sizes.measure,
    "snapshot": snapshot.measure,
    "turnover": turnover.measure,
    "writers": writers.measure,
    "arrays": arrays.measure,
    "mirror": mirror.measure,
    "interchange": interchange.measure,
    "own_writes": own_writes.measure,
    "lookups": lookups.measure,
    "disk": disk.measure,
    "frames": frames.measure,
    "fragments": fragments.measure,
    "limits": limits.measure,
    "labels": labels.measure,
    "leases": leases.measure,
    "memmap": memmap.measure,
    "minestudio": minestudio.measure,
    "ding": ding.measure,
    "priorities": priorities.measure,
    "prioritized": prioritized.measure,
    "questions": questions.measure,
    "conditions": conditions.measure,
    "start": start.measure,
    "vectors": vectors.measure,
    "web": web.measure,
}


def main(arguments: Sequence[str] | None = None, server: PostgresServer | None = None) -> None:
    """Run what the arguments name; on a server of the caller, which is not restarted, if given."""
    options = _options(arguments)
    scale, started = Scale(options.rows), time.monotonic()

    def say(what: str) -> None:
        print(f"[{time.monotonic() - started:4.0f} s] {what}", file=sys.stderr, flush=True)

    with ExitStack() as stack:
        benches = []
        for kind in options.database:
            found, restart = None, None
            if kind == "postgresql":
                found, restart = (
                    (server, None) if server else stack.enter_context(server_and_restart())
                )
            benches.append(Bench(kind, scale, found, restart, say))
        facts = machine.facts(benches)
        figures = []
        for section in options.section:
            for bench in benches:
                say(f"{section} on {bench.label}")
                for figure in SECTIONS[section](bench):
                    say(" | ".join(cell for cell in figure.cells(judged=scale.full) if cell))
                    figures.append(figure)
    order = list(dict.fromkeys(figure.what for figure in figures))
    figures.sort(key=lambda figure: order.index(figure.what))
    text = f"{facts}\n\n{table(figures, judged=scale.full)}"
    print(text)
    if options.write:
        write_between_markers(options.write, text)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--rows",
        type=int,
        default=USUAL_ROWS,
        help="rows of the large buffer; everything else shrinks with it (default: %(default)s; "
        f"the targets are set for {FULL_ROWS})",
    )
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--database", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=DOCUMENT,
        metavar="FILE",
        help="put the table between the markers of a document, and into the JSON next to it "
        "(docs/contributing/benchmarks.md)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
