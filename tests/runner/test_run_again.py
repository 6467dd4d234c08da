"""The command that a report prints to run it again: parsed and run, it plans the same work."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mock_servers import MockServer, Wrong
from verifier.cli import run
from verifier.demo import methods
from verifier.records import SCHEMA_VERSION, Header, Message, Prompt, Rendering
from verifier.reports.reproduce import about_again, again
from verifier.runner import managed, matrix, session
from verifier.store.run_file import Run, Store

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


class Stopped(BaseException):
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
    def stop(where: object, header: Header, display: object) -> Any:
        del where, display
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

    monkeypatch.setattr("verifier.runner.check.connected", no_server)
    for module in (session, managed, matrix):
        original = vars(module)["plan_of"]

        def plan_of(settings: Any, *more: Any, original: Any = original) -> Any:
            plan = original(settings, *more)
            seen["plan"], seen["settings"] = _comparable(plan), _comparable(settings)
            return plan

        monkeypatch.setattr(module, "plan_of", plan_of)
    monkeypatch.setattr(matrix, "recorded", recorded)
    monkeypatch.setattr(managed, "opened_run", stop)
    monkeypatch.setattr(matrix, "run_store", stop)
    monkeypatch.setattr("verifier.runner.check.record", stop_recording)
    started = managed.check

    def start(settings: Any, pair: managed.Pair, display: Any, **named: Any) -> Any:
        seen.update(more=pair)
        return started(settings, pair, display, **named)

    monkeypatch.setattr(managed, "check", start)
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
            golden.finish()
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
    Case(f"{MINE} --sample 2 --seed=7"),
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
    Case(f"{MINE} --one-at-a-time --allow-mismatch model --allow-mismatch kv_dtype"),
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


KEY = "k3y-of-nobody-at-all"


def test_no_secret_is_in_a_file_or_report(
    planned: Callable[..., Planned], there: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = there("here")
    monkeypatch.setenv("LOSSLESS_SPEC_API_KEY", KEY)
    monkeypatch.setenv("LOSSLESS_REF_CMD", f"env HF_TOKEN={KEY} engine --api-key={KEY} --port {{port}}")
    first = planned(["check", "--spec-cmd", f"engine --port {{port}} --x hf_{KEY.replace('-', '')} --api-key {KEY}"])
    path = folder / "run.jsonl"
    Store(path, first.header).close()
    kinds = {"--html": "r.html", "--markdown": "r.md", "--junit": "r.xml", "--json": "r.json"}
    assert run(["report", str(path), *(word for pair in kinds.items() for word in pair)]) == 0
    for name in ("run.jsonl", *kinds.values()):
        content = (folder / name).read_text()
        assert KEY not in content, name
        assert KEY.replace("-", "") not in content, name
    for name in ("r.html", "r.md", "r.json"):
        content = (folder / name).read_text()
        assert "Set LOSSLESS_SPEC" in content.replace("\\", "")
        assert "put one back" in content


SPEC: dict[str, Any] = {"speculative": True}
FEW = ["--max-tokens", "16", "--timeout", "20", "--json"]


class Ran:
    """What a command that was run to its end said and left behind."""

    def __init__(self, code: int, told: Any, err: str) -> None:
        self.code, self.told, self.err = code, told, err

    @property
    def path(self) -> Path:
        return Path(self.told["run"])

    @property
    def commands(self) -> list[list[str]]:
        with Run(self.path) as stored:
            return [shlex.split(line)[1:] for line in again(stored).splitlines()]

    @property
    def verdicts(self) -> tuple[Any, ...]:
        rows = [(row["prompt_id"], row["cls"], row["cause"], row.get("scored")) for row in self.told["comparisons"]]
        return self.code, self.told["verdict"], self.told["summary"].get("policy"), rows


@pytest.fixture
def lossless(there: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run `lossless` to its end in a folder with prompt sets."""
    there("here")

    def call(*words: object) -> Ran:
        code = run([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, json.loads(captured.out) if captured.out.startswith("{") else None, captured.err)

    return call


def test_a_check_is_run_again_and_says_the_same(lossless: Callable[..., Ran]) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(flip_at=6), **SPEC) as spec:
        words = ["--prompts", "sets/mine.jsonl", "--tag", "short", "--policy", "strict", "--score", "all", *FEW]
        first = lossless("check", "--spec", spec.url, "--ref", ref.url, *words)
        (command,) = first.commands
        second = lossless(*command, "--json")
    assert len(first.told["comparisons"]) == 2
    assert second.verdicts == first.verdicts
    assert second.path != first.path
    html = first.path.with_name("report.html").read_text()
    assert all(word in html for word in ("--tag short", "--policy strict", "--score all", "sets/mine.jsonl"))


def test_a_rescored_run_takes_two_commands(lossless: Callable[..., Ran]) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9), **SPEC) as spec:
        made = lossless("record", "--ref", ref.url, "-o", "g.jsonl", "--prompts", "sets/mine.jsonl", *FEW[:-1])
        assert made.code == 0
        first = lossless("check", "--spec", spec.url, "--golden", "g.jsonl", "--json")
        path = os.path.relpath(first.path)
        rescored = lossless("rescore", path, "--ref", ref.url, "--policy", "text", "--allow", "degeneration", "--json")
        # Once more changes nothing about how it is made.
        assert lossless("rescore", *rescored.commands[1][1:], "--json").commands == rescored.commands
        check, rescore = rescored.commands
        assert check == ["check", "--spec", spec.url, "--golden", "g.jsonl"]
        assert rescore[:2] == ["rescore", path]
        second = lossless(*check, "--json")
        again_rescored = lossless("rescore", second.path, *rescore[2:], "--json")
    assert again_rescored.verdicts == rescored.verdicts
    assert again_rescored.told["summary"]["policy"] == "text -degeneration"
    with Run(rescored.path) as stored:
        assert "2 commands" in about_again(stored)


def test_a_joined_run_takes_the_commands_of_its_parts(lossless: Callable[..., Ran]) -> None:
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", **SPEC) as spec:
        two = ["--spec", spec.url, "--ref", ref.url, "--prompts", "sets/mine.jsonl"]
        parts = [lossless("check", *two, *FEW, "--id", one) for one in "abc"]
        paths = [os.path.relpath(part.path) for part in parts]
        joined = lossless("merge", *paths, "-o", "joined.jsonl", "--json")
        *commands, merge = joined.commands
        assert commands == [part.commands[0] for part in parts]
        assert merge == ["merge", *paths, "--output", "joined.jsonl"]
        second = [lossless(*command, "--json").path for command in commands]
        again_joined = lossless("merge", *second, "-o", "joined again.jsonl", "--json")
        of_two = lossless("merge", *paths[:2], "-o", "two.jsonl", "--json")
        of_three = lossless("merge", of_two.path, paths[2], "-o", "three.jsonl", "--json")
    assert again_joined.verdicts == joined.verdicts
    assert [command[0] for command in of_three.commands] == ["check", "check", "merge", "check", "merge"]
    assert "Run it again" in joined.path.with_name("report.html").read_text()
    assert run(["report", str(joined.path), "--markdown", "joined.md"]) == 0
    with Run(joined.path) as stored:
        assert f"```sh\n{again(stored)}\n```" in Path("joined.md").read_text()


def test_a_comparison_is_run_again_with_the_files_as_given(lossless: Callable[..., Ran]) -> None:
    Path("-a b").mkdir()
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", wrong=Wrong(wrong_at=9)) as other:
        for server, name in ((ref, "-a b/-x.jsonl"), (other, "y.jsonl")):
            made = ["record", "--ref", server.url, f"--output={name}", "--prompts", "sets/mine.jsonl", *FEW[:-1]]
            assert lossless(*made).code == 0
    options = ["--allow-mismatch", "model", "--policy", "text", "--tolerance", "0.25", "--fail-on", "undetermined"]
    first = lossless("compare", *options, "--json", "--", "-a b/-x.jsonl", "y.jsonl")
    (command,) = first.commands
    assert command[:3] == ["compare", "./-a b/-x.jsonl", "y.jsonl"]
    assert set(options) < set(command)
    assert lossless(*command, "--json").verdicts == first.verdicts


def test_a_golden_that_was_added_to_takes_both_commands(lossless: Callable[..., Ran]) -> None:
    with MockServer("llama.cpp") as ref:
        one = ["--ref", ref.url, "--output", "g.jsonl", "--prompts", "sets/mine.jsonl"]
        few = ["--max-tokens", "9"]
        assert lossless("record", *one, *few, "--id", "a").code == 0
        assert lossless("record", *one, *few, "--update-new-only").code == 0
        with Run(Path("g.jsonl")) as golden:
            ids = golden.prompt_ids()
            commands = [shlex.split(line)[1:] for line in again(golden).splitlines()]
        assert [("--id" in words, "--update-new-only" in words) for words in commands] == [(True, False), (False, True)]
        Path("g.jsonl").rename("before.jsonl")
        assert [lossless(*words).code for words in commands] == [0, 0]
    with Run(Path("g.jsonl")) as golden:
        assert golden.prompt_ids() == ids == ["a", "b", "c"]


def test_a_run_that_is_resumed_tells_the_latest_command(lossless: Callable[..., Ran]) -> None:
    """The policy changes nothing about what is asked, so the run goes on; but it changes the verdict."""
    with MockServer("llama.cpp") as ref, MockServer("llama.cpp", faults={"500": {"on": "/completion"}}, **SPEC) as spec:
        two = ["check", "--spec", spec.url, "--ref", ref.url, "--prompts", "sets/mine.jsonl", *FEW]
        first = lossless(*two)
        assert first.code == 4
        second = lossless(*two, "--policy", "text", "--timeout", "19", "--quiet", "--out", "./reports/")
    assert second.path == first.path
    (command,) = second.commands
    assert command[-2:] == ["--timeout", "19.0"]
    assert command[command.index("--policy") :][:2] == ["--policy", "text"]
    assert not {"--quiet", "--json", "--out"} & set(command)


def test_the_demo_is_run_again_as_a_demo(
    planned: Callable[..., Planned], there: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []

    @contextmanager
    def pair(model: Path, kind: str, *_: object) -> Iterator[methods.Pair]:
        kinds.append(f"{kind} {model}")
        yield methods.Pair(":1", ":2", 0, 0)

    monkeypatch.setattr(methods, "pair", pair)
    folder = there("here")
    (folder / "m.gguf").touch()
    words = ["demo", "--kind", "lossy", "--model", "m.gguf", "--prompts", "sets/mine.jsonl", "--max-tokens", "5"]
    first = planned(words)
    command = shlex.split(command_of(first.header, tmp_path / "first.jsonl"))
    assert command[:2] == ["lossless", "demo"]
    second = planned(command[1:])
    assert second.plan == first.plan
    assert kinds == ["lossy m.gguf", "lossy m.gguf"]


def test_a_program_that_calls_the_library_leaves_a_command_too(
    planned: Callable[..., Planned], there: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there("here")
    headers: list[Header] = []

    def stop(settings: object, header: Header, display: object) -> None:
        headers.append(header)
        raise Stopped

    settings = session.Settings(prompts=("sets/mine.jsonl",), category=("code",), score="all")
    plain = managed.Source(command="engine --port {port}", health_deadline=7.0)
    pair = managed.Pair(plain, managed.Source(":9", "engine", {}, 7.0), together=True, rescore=False)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(managed, "opened_run", stop)
        managed.check(settings, pair, None)  # type: ignore[arg-type]
    words = shlex.split(command_of(headers[0], tmp_path / "first.jsonl"))
    second = planned(words[1:])
    assert second.plan["score"] == "all"
    assert second.plan["prompts"][0] == headers[0].prompt_set_digest
    assert second.more == pair
