"""Plant bugs, one at a time, and see whether a test fails: mutation testing with a seed.

`python -m tests.measures.planted_bugs --seed 1` draws 40 bugs. Each is planted in a copy of the
checkout, where the tests that cover its line run until one fails, those that are over soonest
first. `python -m tests.measures.coverage` must have run before: it says which tests cover a line.
"""

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PARTS = ("storage", "encoding", "mirror", "batches", "samplers", "query", "interchange")
_ROOT = Path(__file__).parents[2]
_BATCHES = (40, 400, 1_000_000)
_NEGATED = {
    ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
# To leave out one of these is to leave a change undone, or unseen.
_COMMITS = {
    "add", "append", "apply", "clear", "close", "commit", "discard", "execute", "extend", "fetch",
    "flush", "forget", "notify", "pop", "put", "record", "refresh", "release", "remove", "set",
    "store", "update", "write",
}  # fmt: skip


@dataclass(frozen=True)
class Bug:
    """A change of one expression.

    Attributes:
        path: The file, below the checkout.
        line: The first line of the statement that holds the expression, as coverage counts it.
        kind: What is wrong with the new text.
        start: Where the expression begins in the file, in characters.
        end: Where it ends.
        text: What stands there afterwards.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    text: str

    def planted(self, source: str) -> str:
        """Return the source with the bug."""
        return source[: self.start] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """Return where the bug is and what it changes."""
        before = " ".join(source[self.start : self.end].split())
        after = " ".join(self.text.split())
        return f"{self.path}:{self.line} {self.kind}: `{before}` -> `{after}`"


def bugs_of(path: Path) -> Iterator[Bug]:
    """Yield every bug that can be planted in a file."""
    source = path.read_text()
    offsets = [0]
    for text in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(text))

    def place(line: int, column: int) -> int:
        start = offsets[line - 1]
        text = source[start : offsets[line]]
        return start + len(text.encode()[:column].decode())

    def bug(kind: str, node: ast.expr | ast.stmt, line: int, text: str) -> Bug:
        start = place(node.lineno, node.col_offset)
        end = place(node.end_lineno or 0, node.end_col_offset or 0)
        # Parentheses keep what binds less than its surroundings, and new lines, together.
        whole = text if isinstance(node, ast.stmt) else f"({text})"
        return Bug(path.relative_to(_ROOT).as_posix(), line, kind, start, end, whole)

    for statement, node in _expressions(ast.parse(source)):
        for kind, text in _changes(node):
            yield bug(kind, node, statement.lineno, text)


def _expressions(tree: ast.Module) -> Iterator[tuple[ast.stmt, ast.expr | ast.stmt]]:
    """Yield each expression inside of functions, with the statement it is in."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    pending = [f for f in ast.walk(tree) if isinstance(f, functions)]
    inner = {f for outer in pending for f in ast.walk(outer) if f is not outer}
    for function in pending:
        if function in inner:
            continue
        for statement in ast.walk(function):
            if isinstance(statement, ast.stmt) and statement is not function:
                yield statement, statement
                for child in ast.iter_child_nodes(statement):
                    child = child.context_expr if isinstance(child, ast.withitem) else child
                    if isinstance(child, ast.expr) and not _is_annotation(statement, child):
                        yield from ((statement, n) for n in _walk_expressions(child))


def _is_annotation(statement: ast.stmt, child: ast.expr) -> bool:
    return child in (getattr(statement, "annotation", None), getattr(statement, "returns", None))


def _walk_expressions(root: ast.expr) -> Iterator[ast.expr]:
    # The parts of an f-string have no places of their own in Python 3.11.
    texts = [node for node in ast.walk(root) if isinstance(node, ast.JoinedStr)]
    parts = {part for text in texts for part in ast.walk(text)}
    yield from (n for n in ast.walk(root) if isinstance(n, ast.expr) and n not in parts)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """Yield kinds of bugs of a node, with the text it is replaced by."""
    for kind, changes in _KINDS.items():
        yield from ((kind, ast.unparse(changed)) for changed in changes(node))


def _flipped_comparisons(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, [operator], [right]) if type(operator) in _NEGATED:
            yield ast.Compare(left, [_NEGATED[type(operator)]()], [right])


def _dropped_bounds(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(ast.Name("min" | "max"), [first, second], []):
            yield from (first, second)
        case ast.Subscript(value, ast.Slice(lower, upper, step)):
            if lower is not None:
                yield ast.Subscript(value, ast.Slice(None, upper, step))
            if upper is not None:
                yield ast.Subscript(value, ast.Slice(lower, None, step))
        case ast.Call(ast.Attribute(value, "where" | "limit"), [_, *_]):
            yield value
        case ast.BoolOp(ast.And(), [_, *rest]):
            yield rest[0] if len(rest) == 1 else ast.BoolOp(ast.And(), rest)


def _off_by_ones(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub(), ast.Constant(int())):
            yield left
        case ast.Constant(int(value)) if not isinstance(value, bool) and value < 100:
            yield ast.Constant(value + 1)


def _missing_commits(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Expr(ast.Call(ast.Attribute(_, name))):
            if name.lstrip("_").split("_")[0] in _COMMITS:
                yield ast.Pass()


def _swapped_arguments(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Call(function, [first, second, *rest], keywords):
            starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            if not starred and ast.dump(first) != ast.dump(second):
                yield ast.Call(function, [second, first, *rest], keywords)


_KINDS = {
    "flipped comparison": _flipped_comparisons,
    "dropped bound": _dropped_bounds,
    "off by one": _off_by_ones,
    "missing commit": _missing_commits,
    "swapped argument": _swapped_arguments,
}


def drawn_bugs(seed: int, n: int, parts: Iterable[str] = PARTS) -> list[Bug]:
    """Draw bugs: a part and a kind at a time, so that none is rare."""
    pools: dict[tuple[str, str], list[Bug]] = {}
    for part in parts:
        for path in sorted((_ROOT / "sqlbuffer" / part).rglob("*.py")):
            for bug in bugs_of(path):
                pools.setdefault((part, bug.kind), []).append(bug)
    rng = random.Random(seed)
    kinds = sorted({kind for _, kind in pools})
    drawn: list[Bug] = []
    while len(drawn) < n:
        kind = kinds[len(drawn) % len(kinds)]
        pool = pools.get((rng.choice(sorted({p for p, k in pools if k == kind})), kind), [])
        bug = rng.choice(pool)
        if bug not in drawn:
            drawn.append(bug)
    return drawn


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a bug: which one failed, after how many tests and seconds."""

    bug: str
    caught_by: str | None
    n_tests: int
    seconds: float


def hunt(bug: Bug, tests: list[str], minutes: float) -> Outcome:
    """Plant a bug in a copy of the checkout and run tests until one fails."""
    source = (_ROOT / bug.path).read_text()
    begun = time.monotonic()
    n_run, failed = 0, None
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        checkout = Path(folder) / "checkout"
        ignored = shutil.ignore_patterns(
            ".git", ".covered", ".venv*", ".*_cache", "__pycache__", "_build"
        )
        shutil.copytree(_ROOT, checkout, ignore=ignored)
        for environment in _ROOT.glob(".venv*"):
            (checkout / environment.name).symlink_to(environment.resolve())
        (checkout / bug.path).write_text(bug.planted(source))
        for batch in _batches(tests):
            left = minutes * 60 - (time.monotonic() - begun)
            if left <= 0:
                break
            failed = _first_failure(checkout, batch, left)
            n_run += len(batch)
            if failed is not None:
                break
    return Outcome(bug.describe(source), failed, n_run, round(time.monotonic() - begun, 1))


def _batches(tests: list[str]) -> Iterator[list[str]]:
    for size in _BATCHES:
        if tests[:size]:
            yield tests[:size]
        tests = tests[size:]


def _first_failure(checkout: Path, tests: list[str], seconds: float) -> str | None:
    """Run tests until one fails; return its name, or how the run ended where it names none."""
    listed = checkout / "tests.txt"
    listed.write_text("\n".join(tests))
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=line"]
    try:
        run = subprocess.run(
            [*command, "--timeout=120", f"@{listed}"],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return None
    if run.returncode in (0, 5):
        return None
    names = [line for line in run.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return names[0][:200] if names else f"the run ended: {(run.stdout + run.stderr)[-200:]!r}"


def main() -> None:
    """Plant the bugs of a seed and print which were caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--n", type=int, default=40)
    parser.add_argument("--minutes", type=float, default=15.0, help="the most for one bug")
    parser.add_argument("--only", type=int, action="append", help="the number of a bug")
    parser.add_argument("--quick", action="store_true", help="the tests of `make test` alone")
    parser.add_argument("--out", type=Path, help="a file for the outcomes, as JSON lines")
    parser.add_argument("--list", action="store_true", help="print the bugs and plant none")
    options = parser.parse_args()
    bugs = drawn_bugs(options.seed, options.n)
    if options.list:
        for number, bug in enumerate(bugs):
            print(number, bug.describe((_ROOT / bug.path).read_text()))
        return
    from tests.measures.coverage import Covered  # the tests of this module need no coverage

    covered = Covered.load()
    n_caught = 0
    for number, bug in enumerate(bugs):
        if options.only and number not in options.only:
            continue
        tests = covered.tests_of(bug.path, bug.line, quick=options.quick)
        outcome = hunt(bug, tests, options.minutes)
        n_caught += outcome.caught_by is not None
        print(f"{number}: {outcome.bug}\n   {outcome.caught_by or 'NOT CAUGHT'}", end=" ")
        print(f"({outcome.n_tests} of {len(tests)} tests, {outcome.seconds} s)", flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps({"number": number, **asdict(outcome)}) + "\n")
    print(f"{n_caught} caught")


if __name__ == "__main__":
    main()
