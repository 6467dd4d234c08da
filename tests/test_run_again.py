"""The command that a report prints to run it again: parsed and run, it plans the same work."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from verifier import managed, matrix, recording, session
from verifier.cli import run
from verifier.golden import Store
from verifier.records import SCHEMA_VERSION, Header, Message, Prompt, Rendering
from verifier.reports.reproduce import again

SETTINGS_THAT_CHANGE_NOTHING = {"out", "fresh", "invocation"}

PROMPTS = [
    Prompt("a", category="code", language="en", text="one", tags=("short",)),
    Prompt("b", category="code", language="zh-Hant", text="two", tags=("long",), max_tokens=7),
    Prompt("c", category="prose", language="zh", text="三", tags=("short", "odd")),
    Prompt("d", category="prose", language="en", messages=(Message("user", "four"),)),
]
TOML = """
[servers.plain]
command = "engine --port {port}"
environment = { HF_TOKEN = "hf_abcdefghijklmnop" }

[servers.fast]
command = "engine --port {port} --draft"

[check]
prompts = ["sets/mine.jsonl"]
category = ["code"]
max_tokens = 9

[[matrix]]
reference = "plain"
speculative = "fast"

[[matrix]]
name = "other"
reference = "plain"
speculative = "fast"
"""


class Stopped(Exception):
    """Everything is planned."""


@dataclass
class Planned:
    """What a command line comes to."""

    header: Header
    plan: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    more: Any = None


def _comparable(thing: object) -> dict[str, Any]:
    values = {each.name: getattr(thing, each.name) for each in fields(thing)}  # type: ignore[arg-type]
    prompts = values.get("prompts")
    if prompts is not None and not isinstance(prompts, tuple):
        values["prompts"] = (prompts.digest, [(prompt.id, prompt.digest) for prompt in prompts])
    return {name: value for name, value in values.items() if name not in SETTINGS_THAT_CHANGE_NOTHING}


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Planned]:
    """Run a command line until everything is planned and nothing was asked."""
    seen: dict[str, Any] = {}

    @asynccontextmanager
    async def no_server(*_: object, **__: object) -> AsyncIterator[None]:
        yield None

    @contextmanager
    def stop(folder: Path, header: Header, display: object) -> Any:
        del folder, display
        seen["header"] = header
        raise Stopped
        yield

    async def stop_recording(server: object, plan: object, store: Store, display: object) -> None:
        del server, plan, display
        seen["header"] = store.header
        raise Stopped

    async def recorded(settings: object, plan: Any, source: object, path: Path, display: object) -> None:
        del settings, source, display
        Store(path, Header(SCHEMA_VERSION, "t", "", "golden", "s", plan.prompts.digest, {})).close()

    for module in (session, managed, recording, matrix):
        original = vars(module)["plan_of"]

        def plan_of(settings: Any, *more: Any, original: Any = original) -> Any:
            plan = original(settings, *more)
            seen["plan"], seen["settings"] = _comparable(plan), _comparable(settings)
            return plan

        monkeypatch.setattr(module, "plan_of", plan_of)
        monkeypatch.setattr(module, "connected", no_server, raising=False)
    monkeypatch.setattr(matrix, "recorded", recorded)
    for module in (session, managed, matrix):
        monkeypatch.setattr(module, "run_store", stop)
    monkeypatch.setattr("verifier.check.record", stop_recording)
    started = managed.check
    monkeypatch.setattr(
        managed, "check", lambda settings, pair, display: (seen.update(more=pair), started(settings, pair, display))
    )
    checked = matrix.check

    def check_matrix(config: Any, *arguments: Any, **named: Any) -> Any:
        seen.update(more=(config.methods, named))
        return checked(config, *arguments, **named)

    monkeypatch.setattr(matrix, "check", check_matrix)

    @asynccontextmanager
    async def up(source: Any, *_: object) -> AsyncIterator[managed.Running]:
        seen.update(more=source)
        yield managed.Running("http://127.0.0.1:1")

    monkeypatch.setattr(managed, "up", up)

    def plan(words: list[str]) -> Planned:
        seen.clear()
        with pytest.raises(Stopped):
            assert run(words) == 0
        return Planned(seen["header"], seen["plan"], seen["settings"], seen.get("more"))

    return plan


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make a folder with prompt sets, a golden and a lossless.toml in it, and go there."""

    def go(name: str) -> Path:
        folder = tmp_path / name
        (folder / "sets").mkdir(parents=True)
        lines = [json.dumps(_plain(prompt), ensure_ascii=False) + "\n" for prompt in PROMPTS]
        (folder / "sets" / "mine.jsonl").write_text("".join(lines[:3]))
        (folder / "sets" / "other set.jsonl").write_text(lines[3])
        (folder / "lossless.toml").write_text(TOML)
        options = {"max_tokens": 33, "capped": True, "concurrency": 1, "ref_runs": 2}
        header = Header(SCHEMA_VERSION, "t", "", "golden", "mine", "0" * 16, options)
        with Store(folder / "gold.jsonl", header) as golden:
            for prompt in PROMPTS[:3]:
                golden.append(Rendering(prompt.id, prompt.digest, (1, 2), prompt=prompt))
        os.utime(folder / "gold.jsonl", (1, 1))
        monkeypatch.chdir(folder)
        return folder

    return go


def _plain(prompt: Prompt) -> dict[str, Any]:
    if prompt.messages:
        return {"id": prompt.id, "messages": [{"role": "user", "content": "four"}], "category": "prose"}
    plain: dict[str, Any] = {"id": prompt.id, "prompt": prompt.text, "category": prompt.category}
    plain |= {"language": prompt.language, "tags": list(prompt.tags)}
    return plain | ({"max_tokens": prompt.max_tokens} if prompt.max_tokens else {})


@dataclass(frozen=True)
class Case:
    """A command line, with what else decides the work. ``absent`` must not be printed."""

    words: str
    environment: Mapping[str, str] = field(default_factory=dict)
    pyproject: str = ""
    absent: str = ""


LIVE = "check --spec :30001 --ref :30000"
MINE = f"{LIVE} --prompts sets/mine.jsonl"
ENGINES = "check --ref-cmd 'engine --port {port}' --spec-cmd 'engine --port {port} --draft' --prompts sets/mine.jsonl"
CASES = [
    Case(LIVE, absent="--max-tokens --prompts --concurrency --ref-runs --seed --policy --score --timeout"),
    Case(MINE, absent="--max-tokens"),
    Case(f"{MINE} --prompts 'sets/other set.jsonl'"),
    Case(f"{MINE} --prompts seed8"),
    Case(f"{LIVE} --prompts seed8.jsonl"),
    Case(f"{MINE} --category code"),
    Case(f"{MINE} --category code --category prose --language zh"),
    Case(f"{MINE} --tag odd"),
    Case(f"{MINE} --sample 2"),
    Case(f"{MINE} --sample 2 --seed 5"),
    Case(f"{MINE} --sample 2 --seed=-5"),
    Case(f"{MINE} --id b"),
    Case(f"{MINE} --id a --id c"),
    Case("check --spec :30001 --golden gold.jsonl", absent="--max-tokens --prompts --ref"),
    Case("check --spec :30001 --golden ./gold.jsonl --category code --strict-golden"),
    Case("check --spec :30001 --golden gold.jsonl --prompts sets/mine.jsonl --max-tokens 33"),
    Case("check --spec :30001 --golden gold.jsonl --sample 1 --seed 3 --concurrency 2"),
    Case(f"{MINE} --policy strict"),
    Case(f"{MINE} --policy text --fail-on rounding --fail-on near-lossless --allow degeneration"),
    Case(f"{MINE} --allow speculation --allow near-lossless"),
    Case(f"{MINE} --tolerance 0.125"),
    Case(f"{MINE} --tolerance 0"),
    Case(f"{MINE} --score all --noise-concurrency 8"),
    Case(f"{MINE} --ref-runs 1 --concurrency 4"),
    Case(f"{MINE} --one-at-a-time --allow-mismatch model --allow-mismatch 'kv dtype'"),
    Case(f"{MINE} --max-tokens 128"),
    Case(f"{MINE} --timeout 20.5"),
    Case("check --spec 'localhost:30001/prefix/v1#lora:8b' --ref [::1]:30000"),
    Case(f"{MINE} --json --quiet --fresh --out elsewhere", absent="--json --quiet --fresh --out"),
    Case(f"{MINE} --seed 0 --concurrency 1 --policy lossless", absent="--seed --concurrency --policy"),
    Case(
        "check --ref :30000",
        environment={"LOSSLESS_SPEC": ":9", "LOSSLESS_MAX_TOKENS": "5", "LOSSLESS_CATEGORY": "arithmetic code"},
    ),
    Case("check", environment={"LOSSLESS_SPEC": ":9", "LOSSLESS_GOLDEN": "gold.jsonl", "LOSSLESS_ONE_AT_A_TIME": "1"}),
    Case(
        "check --ref :30000",
        pyproject='spec = ":9"\nprompts = ["sets/mine.jsonl"]\npolicy = "strict"\nmax-tokens = 6\nallow = ["rounding"]',
    ),
    Case(f"{LIVE} --concurrency 1", pyproject="concurrency = 4\nsample = 2\nseed = 7"),
    Case(f"{LIVE} --max-tokens 3", environment={"LOSSLESS_MAX_TOKENS": "5"}, pyproject="max_tokens = 6"),
    Case(ENGINES),
    Case(f"{ENGINES} --together --concurrency 3 --policy strict"),
    Case(f"{ENGINES} --no-rescore --health-deadline 5 --tolerance 0.5 --sample 2"),
    Case("check --ref :30000 --spec :30001 --spec-cmd 'env A=\"b c\" engine' --prompts sets/mine.jsonl"),
    Case("check --golden gold.jsonl --spec-cmd 'engine --port {port}' --tag short"),
    Case("check --config lossless.toml --only fast"),
    Case("check --config lossless.toml --only other --max-tokens 4 --policy strict --no-rescore"),
    Case("check --config lossless.toml --only fast --concurrency 1 --id a"),
    Case("record --ref :30000 -o new/golden.jsonl", absent="--prompts --max-tokens"),
    Case("record --ref :30000 -o g.jsonl --prompts sets/mine.jsonl --category code --sample 1 --seed 2 --ref-runs 3"),
    Case("record --ref-cmd 'engine --port {port}' -o g.jsonl --prompts sets/mine.jsonl --max-tokens 5 --id c"),
    Case("record --ref :30000 --noise-concurrency 3 -o g.jsonl --update --fresh", absent="--fresh"),
    Case("record --ref :30000", environment={"LOSSLESS_OUTPUT": "g.jsonl", "LOSSLESS_LANGUAGE": "zh"}),
]


def command_of(header: Header, path: Path) -> str:
    """The command that a report of this file prints."""
    with Store(path, header) as store:
        return again(store)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.words)
def test_the_printed_command_plans_the_same_work(
    case: Case,
    planned: Callable[..., Planned],
    there: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = there("here")
    if case.pyproject:
        (folder / "pyproject.toml").write_text(f"[tool.lossless]\n{case.pyproject}\n")
    with monkeypatch.context() as environment:
        for name, value in case.environment.items():
            environment.setenv(name, value)
        first = planned(shlex.split(case.words))
        command = command_of(first.header, tmp_path / "first.jsonl")
    words = shlex.split(command)
    assert words[0] == "lossless"
    assert not set(case.absent.split()) & set(words)
    # The same files, but neither the environment nor the pyproject.toml.
    there("elsewhere")
    second = planned(words[1:])
    assert second.plan == first.plan
    assert second.settings == first.settings
    assert second.more == first.more
    assert second.header.options == first.header.options
    assert second.header.prompt_set_digest == first.header.prompt_set_digest
    if not case.pyproject:
        # And the command of the second run is the command of the first.
        assert sorted(shlex.split(command_of(second.header, tmp_path / "second.jsonl"))) == sorted(words)
