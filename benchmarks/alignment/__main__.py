"""Alignment side by side with other differs: ``python -m benchmarks.alignment [--help]``.

Each case, method and length runs in a process of its own, so that the peak of its memory is its own and one that does
not come to an end can be stopped. Times are the best of several runs of the whole call, from two Python lists of token
ids to an edit script. Extra memory is the peak of resident memory during the call less what was resident before it.
The exponent is the slope of log time over log length: 1 is linear, 2 quadratic. ``patiencediff`` is measured if it is
installed; its licence keeps it out of the dependencies.
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib.util
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import numpy as np
from rapidfuzz.distance import Levenshtein
from rich.console import Console
from rich.table import Table

from verifier.compare.alignment import Answer, align
from verifier.compare.sequences import diff

VOCABULARY = 150_000
LENGTHS = (8_192, 32_768, 131_072)
REPEATS_WITHIN = 2.0
"""Seconds within which a measurement is repeated, up to `REPEATS` times."""
REPEATS = 15

Ids = list[int]
Result = dict[str, float]


def zipf(rng: np.random.Generator, size: int) -> Ids:
    """Ids as frequent as the words of a language: the r-th has probability proportional to 1/r."""
    weights = 1 / np.arange(1, VOCABULARY + 1)
    found: Ids = np.searchsorted(np.cumsum(weights / weights.sum()), rng.random(size)).tolist()
    return found


def identical(rng: np.random.Generator, ids: Ids) -> tuple[Ids, Ids]:
    return ids, list(ids)


def twenty_edits(rng: np.random.Generator, ids: Ids) -> tuple[Ids, Ids]:
    spec = list(ids)
    for at in sorted(rng.choice(len(ids) - 3, 20, replace=False).tolist(), reverse=True):
        spec[at : at + int(rng.integers(0, 3))] = zipf(rng, int(rng.integers(1, 3)))
    return ids, spec


def divergence(rng: np.random.Generator, ids: Ids) -> tuple[Ids, Ids]:
    same = len(ids) // 10
    return ids, ids[:same] + zipf(rng, len(ids) - same)


def reconvergence(rng: np.random.Generator, ids: Ids) -> tuple[Ids, Ids]:
    third = len(ids) // 3
    return ids, ids[:third] + zipf(rng, third - third // 10) + ids[2 * third :]


def insertion(rng: np.random.Generator, ids: Ids) -> tuple[Ids, Ids]:
    return ids, [VOCABULARY, *ids[:-1]]


def loop(rng: np.random.Generator, ids: Ids) -> tuple[Ids, Ids]:
    return ids, (zipf(rng, 17) * len(ids))[: len(ids)]


CASES: dict[str, tuple[str, Callable[[np.random.Generator, Ids], tuple[Ids, Ids]]]] = {
    "identical": ("identical", identical),
    "edits": ("20 scattered edits", twenty_edits),
    "divergence": ("apart for good after 10 %", divergence),
    "reconvergence": ("apart in the middle third", reconvergence),
    "insertion": ("one inserted in front, both cut", insertion),
    "loop": ("a loop against a text", loop),
}


def _with_patiencediff(ref: Ids, spec: Ids) -> object:
    import patiencediff

    return patiencediff.PatienceSequenceMatcher(None, ref, spec).get_opcodes()


METHODS: dict[str, Callable[[Ids, Ids], object]] = {
    "lossless": diff,
    "patiencediff": _with_patiencediff,
    "rapidfuzz": lambda ref, spec: Levenshtein.opcodes(ref, spec).as_list(),
    "difflib": lambda ref, spec: difflib.SequenceMatcher(None, ref, spec, autojunk=True).get_opcodes(),
}


def resident(field: str) -> float:
    """MiB of resident memory, now (``VmRSS``) or at most (``VmHWM``); the most so far where there is no /proc."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(status.split(field + ":")[1].split()[0]) / 1024


def forget_peak() -> None:
    """Start the peak of resident memory again from what is resident now (Linux 4.0; without it the peak is kept)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def measure_here(case: str, method: str, length: int) -> Result:
    """Seconds and extra MiB of one call, in this process."""
    rng = np.random.default_rng(length)
    ref, spec = CASES[case][1](rng, zipf(rng, length))
    call = METHODS[method]
    call(ref[:64], spec[:64])  # imports and first-time set-up are not what is measured
    gc.collect()
    forget_peak()
    before = resident("VmRSS")
    seconds = math.inf
    memory = 0.0
    started = time.perf_counter()
    for repeat in range(REPEATS):
        start = time.perf_counter()
        result = call(ref, spec)
        seconds = min(seconds, time.perf_counter() - start)
        if not repeat:
            memory = max(0.0, resident("VmHWM") - before)
        del result
        if time.perf_counter() - started > REPEATS_WITHIN:
            break
    return {"seconds": seconds, "memory": memory}


def measure(case: str, method: str, length: int, deadline: float) -> Result | None:
    """`measure_here` in a process of its own; ``None`` if it does not come to an end in ``deadline`` seconds."""
    command = [sys.executable, "-m", "benchmarks.alignment", "--one", case, method, str(length)]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=deadline, text=True)
    except subprocess.TimeoutExpired:
        return None
    result: Result = json.loads(done.stdout)
    return result


def exponent(seconds: dict[int, float]) -> float:
    """Slope of log seconds over log length, by least squares."""
    return float(np.polyfit(np.log(list(seconds)), np.log(list(seconds.values())), 1)[0])


def usual_answers() -> Table:
    """What `align` takes for answers of 512 tokens with texts and pieces."""
    rng = np.random.default_rng(0)

    def answer(ids: Ids) -> Answer:
        pieces = [f" {value:x}" for value in ids]
        return Answer("".join(pieces), ids, pieces)

    ids = zipf(rng, 512)
    edited = list(ids)
    for at in (400, 250, 100):
        edited[at : at + 2] = [VOCABULARY]
    table = Table()
    table.add_column("align() on answers of 512 tokens")
    table.add_column("µs, best of 300", justify="right")
    for name, other in (("identical", list(ids)), ("three edits", edited), ("unrelated", zipf(rng, 512))):
        ref, spec = answer(ids), answer(other)
        taken = []
        for _ in range(300):
            start = time.perf_counter()
            align(ref, spec)
            taken.append(time.perf_counter() - start)
        table.add_row(name, f"{min(taken) * 1e6:.0f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alignment", description=__doc__)
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds for one measurement (default 20)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--one", nargs=3, metavar=("CASE", "METHOD", "LENGTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        case, method, length = options.one
        print(json.dumps(measure_here(case, method, int(length))))
        return
    methods = list(options.methods)
    if "patiencediff" in methods and importlib.util.find_spec("patiencediff") is None:
        methods.remove("patiencediff")
    console = Console(width=max(100, Console().width))
    installed = ", ".join(f"{name} {version(name)}" for name in methods if name not in ("lossless", "difflib"))
    console.print(f"Python {sys.version.split()[0]}, numpy {np.__version__}, {installed}")
    console.print(f"{LENGTHS[-1]:,} tokens, Zipf-like over {VOCABULARY:,} ids; exponent from {LENGTHS[0]:,} tokens on")
    table = Table()
    for heading in ("case", "method", "seconds", "× lossless", "extra MiB", "exponent"):
        table.add_column(heading, justify="left" if heading in ("case", "method") else "right")
    for case in options.cases:
        ours = math.nan
        for method in methods:
            seconds: dict[int, float] = {}
            last: Result | None = None
            for length in LENGTHS:
                last = measure(case, method, length, options.deadline)
                if last is None:
                    break
                seconds[length] = last["seconds"]
            if last is None:
                table.add_row(CASES[case][0], method, f"> {options.deadline:g} at {length:,}", "", "", "")
                continue
            if method == "lossless":
                ours = last["seconds"]
            table.add_row(
                CASES[case][0],
                method,
                f"{last['seconds']:.4f}",
                f"{last['seconds'] / ours:.1f}",
                f"{last['memory']:.0f}",
                f"{exponent(seconds):.2f}",
            )
        table.add_section()
    console.print(table)
    console.print(usual_answers())


if __name__ == "__main__":
    main()
