"""A prompt set as a pytest collector, with one item for each prompt and one for all of them together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from verifier.errors import LosslessError
from verifier.prompts.selection import Selection
from verifier.prompts.sources import read_prompts
from verifier.pytest_plugin import ANSWER, ASKED, SET, SUFFIX, checks_of
from verifier.pytest_plugin import outcomes as judging
from verifier.pytest_plugin.checks import Checks, Work
from verifier.pytest_plugin.discovery import is_shipped
from verifier.pytest_plugin.outcomes import Outcome
from verifier.records import Prompt

SUITE = "suite"


def prompt_file(path: Path, parent: pytest.Collector) -> PromptFile | None:
    """The collector of a file, or ``None`` where it is not a prompt set."""
    shipped = is_shipped(path)
    if not path.name.endswith(SUFFIX) and path not in parent.config.stash.get(ASKED, ()) and not shipped:
        return None
    if not shipped:
        return PromptFile.from_parent(parent, path=path)
    return PromptFile.from_parent(parent, path=path, nodeid=f"{SET}{path.stem}")


class PromptFile(pytest.File):
    """A prompt set. Its items share one check."""

    def collect(self) -> Iterator[pytest.Item]:
        checks = checks_of(self.config)
        work = checks.work(self.path)
        try:
            Selection([self.path])
        except LosslessError as error:
            raise self.CollectError(str(error)) from None
        names = set()
        for line, prompt in read_prompts(self.path, []):
            names.add(prompt.id)
            yield PromptItem.from_parent(self, name=prompt.id, work=work, prompt=prompt, line=line - 1)
        # A prompt may have any id, and node ids must differ.
        yield SuiteItem.from_parent(self, name=SUITE if SUITE not in names else f"{SUITE} (all prompts)", work=work)


class CheckItem(pytest.Item):
    """What prompt and suite have in common: the check is made, or waited for, while the item is set up."""

    def __init__(self, *, work: Work, line: int = 0, **given: object) -> None:
        super().__init__(**given)  # type: ignore[arg-type]
        self.work = work
        self.line = line
        self.add_marker("lossless")
        if self.config.pluginmanager.hasplugin("xdist"):
            # Under --dist loadgroup one worker gets the whole set, so that no other waits for it.
            self.add_marker(pytest.mark.xdist_group(f"lossless-{self.path.name.partition('.')[0]}"))
        self._attempt = 0
        self._outcome = Outcome("passed")

    @property
    def prompt_id(self) -> str | None:
        """The prompt that is needed; ``None`` for all that were selected."""
        return None

    def judged(self, checks: Checks, attempt: int) -> Outcome:
        raise NotImplementedError

    def setup(self) -> None:
        self._attempt += 1
        checks = checks_of(self.config)
        self.user_properties = [pair for pair in self.user_properties if not pair[0].startswith("lossless_")]
        self._outcome = judging.nothing_to_ask(self.work) or self.judged(checks, self._attempt)
        judging.raise_if_error(self._outcome)

    def runtest(self) -> None:
        judging.conclude(checks_of(self.config), self, self._outcome)

    def reportinfo(self) -> tuple[Path, int, str]:
        # The file as in the node id: the install location of a packaged set says nothing.
        set_name = self.nodeid.partition("::")[0]
        return self.config.rootpath / set_name, self.line, self.name


class PromptItem(CheckItem):
    """One prompt of a set."""

    def __init__(self, *, prompt: Prompt, work: Work, line: int, **given: object) -> None:
        super().__init__(work=work, line=line, **given)
        self.prompt = prompt
        self.keywords[ANSWER] = True
        self.extra_keyword_matches.update(filter(None, (prompt.category, prompt.language, *prompt.tags)))

    @property
    def prompt_id(self) -> str:
        return self.prompt.id

    def judged(self, checks: Checks, attempt: int) -> Outcome:
        checked = checks.of(self.work, attempt)
        comparison = checked.comparisons.get(self.prompt.id)
        if comparison is not None:
            self.user_properties += [
                ("lossless_class", comparison.cls),
                ("lossless_cause", comparison.cause),
                ("lossless_fault", comparison.fault),
            ]
        return judging.of_prompt(checks, checked, self.prompt.id, checks.policy())


class SuiteItem(CheckItem):
    """All selected prompts of a set together."""

    def judged(self, checks: Checks, attempt: int) -> Outcome:
        checked = checks.of(self.work, attempt)
        if checked.summary is not None:
            self.user_properties.append(("lossless_verdict", checked.summary.verdict))
        return judging.of_suite(checked)
