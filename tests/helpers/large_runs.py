"""Large run files: made-up words with the frequencies of real text, made-up verdicts."""

from __future__ import annotations

import random
from pathlib import Path

from tests.helpers.run_builder import Built
from verifier.store.run_file import Run

WORDS = 4000
CATEGORIES = ("code", "chat", "extraction", "prose", "math", "translation")
LANGUAGES = ("en", "de", "fr")


class Writer:
    """Writes text of a number of tokens, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        letters = "etaoinshrdlucmfwygpbvk"
        self.words = ["".join(self.random.choices(letters, k=self.random.randint(2, 6))) for _ in range(WORDS)]
        # Zipf's law: the word of rank r comes about 1/r as often as the first.
        self.weights = [1 / rank for rank in range(1, WORDS + 1)]

    def tokens(self, count: int) -> list[str]:
        """``count`` pieces; a full stop about every 12 and a new line about every 60."""
        made = []
        for index, word in enumerate(self.random.choices(self.words, self.weights, k=count)):
            made.append("\n" if index % 60 == 59 else "." if index % 12 == 11 else f" {word}")
        return made

    def changed(self, tokens: list[str], places: int) -> list[str]:
        """``tokens`` with ``places`` of them replaced by one or two others."""
        changed = list(tokens)
        for _ in range(places):
            at = self.random.randrange(len(changed))
            changed[at : at + 1] = [f" {self.random.choice(self.words)}" for _ in range(self.random.randint(1, 2))]
        return changed


def many(path: Path, prompts: int = 10_000, tokens: int = 512, differing: int = 20) -> Run:
    """A run of ``prompts`` answers of ``tokens`` tokens, one of ``differing`` of them not the same."""
    writer, built = Writer(1), Built(path).servers()
    for number in range(prompts):
        made = writer.tokens(tokens)
        changed = writer.changed(made, 1 + number % 5) if number % differing == 0 else made
        built.prompt(
            f"prompt-{number:05d}",
            "".join(made),
            "".join(changed),
            asked="".join(writer.tokens(40)),
            category=CATEGORIES[number % len(CATEGORIES)],
            language=LANGUAGES[number % len(LANGUAGES)],
            cls="diverged" if number % (3 * differing) == 0 else None,
            gap=writer.random.expovariate(8),
            acceptance=2 + number % 5,
        )
    return built.finish()


def long(path: Path, tokens: int = 131_072, places: int = 200) -> Run:
    """A run of one prompt whose answers are long and differ in some places, and one where they share nothing."""
    writer, built = Writer(2), Built(path).servers()
    made = writer.tokens(tokens)
    built.prompt("long", "".join(made), "".join(writer.changed(made, places)))
    built.prompt("apart", "".join(made), "".join(writer.tokens(tokens)), cls="diverged")
    return built.finish()
