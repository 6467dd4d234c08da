"""How often a sound server is blamed: `python -m benchmarks.soundness [RUNS] [--jobs N]`, with real servers.

Every quantization of the lab model, with every method of speculation of the demo, one and four requests at once: RUNS
checks of eight prompts each, every one with other prompts. Nothing may be blamed on speculation; where the arithmetic
is exact (F32 and Q8_0) every answer must be equal. Then methods that accept drafts at random, which must all be LOSSY.
Exits with 1 where any of that does not hold.

llama.cpp's MTP, EAGLE3 and DFlash give rare wrong tokens on this model when several slots are busy (docs/found.md): at
four requests at once these servers are not sound. An answer blamed there is asked for again, alone. If the same server
then gives a sound one, it counts as "crowded" and not as blamed. Nothing else is excused that way.
"""

from __future__ import annotations

import argparse
import functools
import io
import itertools
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab import to_gguf
from verifier.cli import run
from verifier.demo import demo_models, methods

QUANTIZATIONS = ("F32", "Q8_0", "Q6_K", "Q4_K_M")
EXACT = ("F32", "Q8_0")
METHODS = ("mtp", "eagle3", "dflash", "draft", "ngram")
SLOTS = (1, 4)
FAULTY_WHEN_CROWDED = ("mtp", "eagle3", "dflash")
SETS = ("tasks", "unicode", "near-ties", "copying")
"""Prompt sets, in turn; the seed of the sample is that of the run."""
LENGTHS = (1.5, 2.0, 3.0, 4.5, 6.0)
"""Mean numbers of tokens that a broken method accepts in a step."""
PROMPTS, TOKENS = 8, 48


@dataclass(frozen=True)
class Pair:
    """One pair of servers and the runs that it is checked in."""

    model: Path
    quantization: str
    method: str
    slots: int
    runs: tuple[int, ...]
    synthetic_length: float | None = None
    """Mean number of tokens that a broken method accepts in a step."""


@dataclass
class Count:
    """Results of the checks of some pairs."""

    runs: int = 0
    prompts: int = 0
    blamed: int = 0
    crowded: int = 0
    """Answers that are wrong only while other requests are in flight, by a fault of the engine."""
    verdicts: Counter[str] = field(default_factory=Counter)
    classes: Counter[str] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    accused: list[str] = field(default_factory=list)
    """Of sound servers: what was blamed, and why."""

    def add(self, other: Count) -> None:
        self.runs += other.runs
        self.prompts += other.prompts
        self.blamed += other.blamed
        self.crowded += other.crowded
        self.verdicts += other.verdicts
        self.classes += other.classes
        self.causes += other.causes
        self.accused += other.accused


def checked(pair: Pair, keep: Path | None = None) -> tuple[Pair, Count]:
    """Start a pair, check it in each of its runs, and count; runs with a blamed answer are copied to ``keep``."""
    count = Count()
    # A step must be able to accept as many as a broken method shall.
    drafts = 8 if pair.synthetic_length else None
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        servers = stack.enter_context(
            methods.pair(
                pair.model,
                pair.method,
                Path(folder),
                slots=pair.slots,
                n_max=drafts,
                synthetic_length=pair.synthetic_length,
            )
        )
        for seed in pair.runs:
            out = Path(folder) / str(seed)
            result = _check(servers.spec_url, servers.ref_url, pair, seed, out)
            rows = result["comparisons"]
            count.runs += 1
            count.prompts += len(rows)
            where = f"{pair.quantization} {pair.method}, {pair.slots} at once, seed {seed}"
            blamed = [row for row in rows if row["fault"] == "speculation"]
            crowded = _sound_alone(servers.spec_url, servers.ref_url, pair, seed, out, blamed)
            for row in blamed:
                only = "only with other requests in flight, " if row["prompt_id"] in crowded else ""
                count.accused.append(f"{only}{where}: {row['prompt_id']}: {row['reason']}")
            count.crowded += len(crowded)
            count.blamed += len(blamed) - len(crowded)
            if keep is not None and blamed:
                shutil.copytree(out, keep / where.replace(", ", "-").replace(" ", "-"))
            count.verdicts[result["verdict"]] += 1
            count.classes.update(row["cls"] for row in rows if row["prompt_id"] not in crowded)
            count.causes.update(row["cause"] for row in rows if row["cls"] != "exact")
    return pair, count


def _sound_alone(spec: str, ref: str, pair: Pair, seed: int, out: Path, blamed: list[Any]) -> set[str]:
    """The blamed prompts that the same server answers soundly when nothing else is in flight."""
    if pair.slots == 1 or pair.method not in FAULTY_WHEN_CROWDED or not blamed:
        return set()
    ids = [row["prompt_id"] for row in blamed]
    again = _check(spec, ref, replace(pair, slots=1), seed, out / "alone", ids)
    return {row["prompt_id"] for row in again["comparisons"] if row["fault"] == "none"}


def _check(spec: str, ref: str, pair: Pair, seed: int, out: Path, ids: Sequence[str] = ()) -> Any:
    words = ["check", "--spec", spec, "--ref", ref, "--prompts", SETS[seed % len(SETS)]]
    words += [word for one in ids for word in ("--id", one)] or ["--sample", str(PROMPTS), "--seed", str(seed)]
    words += ["--max-tokens", str(TOKENS), "--concurrency", str(pair.slots), "--timeout", "300"]
    printed, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(errors):
        code = run([*words, "--out", str(out), "--json"])
    if not printed.getvalue():
        raise SystemExit(f"A check stopped with exit code {code}: {errors.getvalue()}")
    return json.loads(printed.getvalue())


def sound(models: dict[str, Path], runs: int) -> list[Pair]:
    """All combinations, with ``runs`` checks shared among them; seeds are never used twice."""
    combinations = list(itertools.product(QUANTIZATIONS, METHODS, SLOTS))
    shares = [range(start, runs, len(combinations)) for start in range(len(combinations))]
    pairs = zip(combinations, shares, strict=True)
    # A share steps by the number of combinations, a multiple of the number of sets: add the turn, so that sets vary.
    return [
        Pair(models[name], name, method, slots, tuple(seed + turn for turn, seed in enumerate(share)))
        for (name, method, slots), share in pairs
    ]


def show(title: str, counts: dict[str, Count]) -> None:
    columns = f"{'runs':>6}{'prompts':>9}{'exact':>7}{'near':>6}{'diverged':>10}{'blamed':>8}{'crowded':>9}"
    print(f"\n{title:<24}{columns}  verdicts")
    for name, count in counts.items():
        classes = count.classes
        verdicts = ", ".join(f"{number} {verdict}" for verdict, number in count.verdicts.most_common())
        print(
            f"{name:<24}{count.runs:>6}{count.prompts:>9}{classes['exact']:>7}{classes['near-lossless']:>6}"
            f"{classes['diverged']:>10}{count.blamed:>8}{count.crowded:>9}  {verdicts}"
        )


def grouped(results: list[tuple[Pair, Count]], *, by: tuple[str, ...]) -> dict[str, Count]:
    counts: dict[str, Count] = {}
    for pair, count in results:
        name = " ".join(str(getattr(pair, part)) for part in by)
        counts.setdefault(name, Count()).add(count)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="?", type=int, default=320)
    parser.add_argument("--jobs", type=int, default=1, help="pairs at a time; each needs two cores")
    parser.add_argument("--only", default="", help='such as "Q4_K_M mtp": this quantization and method alone')
    parser.add_argument("--keep", type=Path, help="a folder for the runs in which an answer is blamed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models = {name: to_gguf.write_target(Path(folder) / f"lab-mtp-{name}.gguf", name) for name in QUANTIZATIONS}
        for kind in ("eagle3", "dflash"):
            # Drafts are looked for beside the model.
            (Path(folder) / f"lab-{kind}-Q8_0.gguf").symlink_to(demo_models.LAB_FOLDER / f"lab-{kind}-Q8_0.gguf")
        broken = [Pair(models["Q8_0"], f"{length} a step", "lossy", 1, (0, 1), length) for length in LENGTHS]
        with ProcessPoolExecutor(given.jobs) as pool:
            chosen = [one for one in sound(models, given.runs) if given.only in f"{one.quantization} {one.method}"]
            whole = list(pool.map(functools.partial(checked, keep=given.keep), chosen))
            caught = list(pool.map(checked, broken))
    show("sound", grouped(whole, by=("quantization", "method")))
    total = grouped(whole, by=())[""]
    show("sound, all", {"": total})
    exact = grouped([result for result in whole if result[0].quantization in EXACT], by=()).get("", Count())
    show("broken", grouped(caught, by=("quantization",)))
    for accused in total.accused:
        print(f"\nblamed: {accused}")
    missed = sum(count.runs - count.verdicts["LOSSY"] for _, count in caught)
    unequal = exact.prompts - exact.classes["exact"] - exact.crowded
    print(
        f"\n{total.blamed} of {total.prompts} answers of sound servers blamed in {total.runs} runs; "
        f"{total.crowded} wrong only with other requests in flight; "
        f"{unequal} of {exact.prompts} differ where arithmetic is exact; "
        f"{missed} of {sum(count.runs for _, count in caught)} broken runs missed"
    )
    return int(bool(total.blamed or missed or unequal))


if __name__ == "__main__":
    sys.exit(main())
