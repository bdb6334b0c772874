"""Takes one mask or one epsilon out of the code at a time and looks whether the tests notice.

    python -m tests.mutation --sample=12 --out=mutants.jsonl

Each mutant is a copy of the repository in which one expression of `creditjax/{algebra,kernels,numerics}` lost a part:

    numerics.select(x, mask)   -> x              jnp.where(c, x, 0)     -> x
    x + eps                    -> x              a & b                  -> a
    numerics.safe_divide(x, y) -> x / y

A mutant that no test notices is either a gap in the tests or a part that nothing needs: both are worth a look. Not part
of `make test`: a mutant takes a minute or more. A file that exists already is continued.
"""

import argparse
import ast
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parent.parent
CODE = ("creditjax/algebra", "creditjax/kernels", "creditjax/numerics.py")
TESTS = ("tests/kernels", "tests/algebra", "tests/objectives", "tests/recipes")


class Mutant(NamedTuple):
    """One expression of a file and what stands there instead."""

    file: str
    line: int
    kind: str
    start: int
    end: int
    text: str


def mutants() -> list[Mutant]:
    """All mutants, in the order of files and positions."""
    found = []
    for place in CODE:
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.glob("*.py")):
            found += _of_file(file)
    return found


def _of_file(file: pathlib.Path) -> list[Mutant]:
    source = file.read_text(encoding="utf-8")
    # Columns of the syntax tree count bytes.
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    starts = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]

    def place(node: ast.expr) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node: ast.expr) -> str:
        start, end = place(node)
        return source.encode()[start:end].decode()

    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.expr) and (made := _mutate(node, text)):
            found.append(Mutant(str(file.relative_to(ROOT)), node.lineno, made[0], *place(node), f"({made[1]})"))
    return sorted(found)


def _mutate(node: ast.expr, text) -> tuple[str, str] | None:
    match node:
        case ast.Call(func=ast.Attribute(attr="select", value=ast.Name("numerics")), args=[x, _]):
            return "select", text(x)
        case ast.Call(func=ast.Attribute(attr="where", value=ast.Name("jnp")), args=[_, x, ast.Constant(0 | False)]):
            return "where", text(x)
        case ast.Call(func=ast.Attribute(attr="safe_divide"), args=[x, y]):
            return "safe_divide", f"({text(x)}) / ({text(y)})"
        case ast.BinOp(op=ast.Add(), left=x, right=ast.Name("eps")):
            return "eps", text(x)
        case ast.BinOp(op=ast.BitAnd(), left=x):
            return "and", text(x)
    return None


def run(mutant: Mutant, workers: int) -> dict:
    """Runs the tests on one mutant until the first fails."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = pathlib.Path(scratch) / "copy"
        tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
        for name in filter(None, tracked.decode().split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
        file = copy / mutant.file
        source = file.read_bytes()
        file.write_bytes(source[: mutant.start] + mutant.text.encode() + source[mutant.end :])
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".jax_cache"), "PYTHONPATH": str(copy)}
        command = [sys.executable, "-m", "pytest", "-x", "-q", f"--numprocesses={workers}", *TESTS]
        begin = time.monotonic()
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {
        **mutant._asdict(),
        "caught": done.returncode != 0,
        "by": failed[0][:200] if failed else None,
        "seconds": round(time.monotonic() - begin, 1),
    }


def main() -> None:
    """Flags to calls."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=0, help="how many mutants, drawn at random; 0 for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    chosen = mutants()
    if arguments.sample:
        chosen = sorted(random.Random(arguments.seed).sample(chosen, min(arguments.sample, len(chosen))))
    rows = [json.loads(line) for line in arguments.out.read_text().splitlines()] if arguments.out.exists() else []
    seen = {(row["file"], row["start"], row["kind"]) for row in rows}
    for mutant in chosen:
        if (mutant.file, mutant.start, mutant.kind) in seen:
            continue
        row = run(mutant, arguments.workers)
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
        print(f"{row['file']}:{row['line']} {row['kind']}: {'caught' if row['caught'] else 'NOT CAUGHT'}", flush=True)
    caught = sum(row["caught"] for row in rows)
    print(f"{len(rows)} mutants, {caught} caught")


if __name__ == "__main__":
    main()
