"""Size and speed of the store: ``python -m benchmarks.store [--help]``.

Answers are made as a real tokenizer makes them: ids of the vocabulary of the demo's model in the proportions of a real
golden (``golden/seed8.jsonl``), with that golden's own texts and logprobs drawn again and again. Printed are bytes a
token without logprobs and with the five most likely tokens (targets 12 and 60), and the seconds in which a file of
10,000 records of 512 tokens is read and validated (target 3).
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from verifier.records import Completion, Header, Timing, TokenLogprob
from verifier.store.compression import compress
from verifier.store.run_file import Run, Store, read

GOLDEN = Path(__file__).parents[2] / "golden" / "seed8.jsonl"
RECORDS = 10_000
TOKENS = 512
PROBED = 500
"""Records with logprobs: enough to measure their size."""
TOP = 5
TARGETS = {"plain": 12.0, "top": 60.0, "seconds": 3.0}


class Source:
    """The tokens of a real golden, one after the other and again from the start."""

    def __init__(self, path: Path) -> None:
        self.ids: list[int] = []
        self.top: list[tuple[TokenLogprob, ...]] = []
        texts = []
        with Run(path) as golden:
            for prompt_id in golden.prompt_ids():
                probed = [one for one in golden.completions(prompt_id) if one.top is not None]
                for one in probed:
                    count = len(one.top or ())
                    self.ids += (one.ids or ())[:count]
                    self.top += one.top or ()
                    texts.append(one.text)
        self.text = "".join(texts)

    def completion(self, number: int, tokens: int, *, probed: bool) -> Completion:
        """An answer of so many tokens, each number another one."""
        start = number * 37
        places = [(start + step) % len(self.ids) for step in range(tokens)]
        share = len(self.text) / len(self.ids)
        first, length = int(start * share) % len(self.text), round(tokens * share)
        text = (self.text * (2 + length // len(self.text)))[first : first + length]
        return Completion(
            prompt_id=f"prompt-{number:06}",
            arm="ref",
            run=int(probed),
            digest=f"{number:016x}",
            text=text,
            finish="length",
            ids=tuple(self.ids[place] for place in places),
            prompt_tokens=57,
            completion_tokens=tokens,
            timing=Timing(total=3.1234, prefill=0.12345, decode=3.00012),
            top=tuple(self.top[place][:TOP] for place in places) if probed else None,
        )


def write(path: Path, records: Iterator[Completion]) -> int:
    """Write records to a new file; returns its size without the header."""
    header = Header(2, "benchmark", "2026-01-01T00:00:00Z", "golden", "benchmark", "0" * 16, {})
    with Store(path, header) as store:
        begin = path.stat().st_size
        for record in records:
            store.append(record)
    return path.stat().st_size - begin


def timed_read(path: Path, rounds: int) -> tuple[float, int]:
    """Seconds of the best of several rounds, and how many records came."""
    best, count = float("inf"), 0
    for _ in range(rounds):
        gc.collect()
        began = time.perf_counter()
        count = sum(1 for _ in read(path))
        best = min(best, time.perf_counter() - began)
    return best, count


def main() -> int:
    """Measure, and return 1 when a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=RECORDS, help="records to read (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of a record (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts (default: %(default)s)")
    options = parser.parse_args()
    source = Source(GOLDEN)
    with tempfile.TemporaryDirectory() as folder:
        plain, probed = Path(folder) / "plain.jsonl", Path(folder) / "top.jsonl"
        began = time.perf_counter()
        size = write(plain, (source.completion(n, options.tokens, probed=False) for n in range(options.records)))
        written = time.perf_counter() - began
        size_probed = write(probed, (source.completion(n, options.tokens, probed=True) for n in range(PROBED)))
        seconds, count = timed_read(plain, options.rounds)
        assert count == options.records + 1
        began = time.perf_counter()
        validated = sum(1 for _ in read(probed))
        seconds_probed = (time.perf_counter() - began) / validated
        packed = {"": GOLDEN.stat().st_size}
        for suffix in (".gz", ".zst"):
            with GOLDEN.open("rb") as content, (Path(folder) / f"packed{suffix}").open("wb") as output:
                compress(content, output, suffix)
                packed[suffix] = output.tell()
    tokens = options.records * options.tokens
    results = {
        "plain": size / tokens,
        "top": size_probed / (PROBED * options.tokens),
        "seconds": seconds,
    }
    print(f"Python {sys.version.split()[0]}, {options.records:,} records of {options.tokens} tokens, {size:,} bytes")
    print(f"  without logprobs  {results['plain']:6.2f} bytes a token (target at most {TARGETS['plain']:.0f})")
    print(f"  with top-{TOP}        {results['top']:6.2f} bytes a token (target at most {TARGETS['top']:.0f})")
    print(f"  read, validated   {seconds:6.2f} s (target at most {TARGETS['seconds']:.0f}), written in {written:.1f} s")
    print(f"  with logprobs, every record unpacked: {seconds_probed * 1e3:.2f} ms each")
    sizes = ", ".join(f"{suffix or 'plain'} {size:,}" for suffix, size in packed.items())
    print(f"  {GOLDEN.name}: {sizes} bytes")
    return int(any(results[name] > target for name, target in TARGETS.items()))


if __name__ == "__main__":
    sys.exit(main())
