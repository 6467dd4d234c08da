"""Commands as they are stored: settings to words and back through click, nothing forgotten and no secret in them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from verifier.cli import check, compare, options, record, rescore, run
from verifier.compare.fingerprints import ALLOWABLE
from verifier.compare.policy import NAMES, POLICIES, Policy
from verifier.errors import LosslessError
from verifier.records import Invocation
from verifier.redaction import is_secret_name, without_secrets
from verifier.reports.reproduce import shell_line
from verifier.run_options import OPTIONS, Command
from verifier.runner import managed, session
from verifier.runner.invocation import of_settings, takes
from verifier.runner.settings import Settings
from verifier.servers.process.launch import Process
from verifier.store.commands import UNREPEATED, invocation, note, words

COMMANDS: dict[Command, click.Command] = {
    "check": check.command,
    "record": record.command,
    "compare": compare.command,
    "rescore": rescore.command,
}
HERE = Path(__file__)
BESIDE: dict[Command, set[str]] = {
    "check": {"ref-cmd", "spec-cmd", "together", "no-rescore", "health-deadline", "config", "only"},
    "record": {"ref-cmd", "health-deadline", "output"},
    "compare": set(),
    "rescore": set(),
}
"""Options that are no setting: how servers are started, and where a golden goes."""

anything = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12)
several = st.lists(anything, max_size=3).map(tuple)
switches = st.sets(st.sampled_from(sorted(NAMES)), max_size=3)
policies = st.builds(
    lambda name, fail_on, allow: Policy.of(name, fail_on=fail_on, allow=allow),
    st.sampled_from(sorted(POLICIES)),
    switches,
    switches,
)
addresses = st.sampled_from([":30000", "localhost:1", "http://gpu:8000/v1", "[::1]:9#lora:8b", "gpu:1#org/model"])
asking: dict[str, Any] = {
    "prompts": several,
    "category": several,
    "language": several,
    "tag": several,
    "ids": several,
    "sample": st.none() | st.integers(1, 10**9),
    "seed": st.integers(0, 10**9),
    "max_tokens": st.none() | st.integers(1, 10**6),
    "concurrency": st.integers(1, 1024),
    "ref_runs": st.integers(1, 9),
    "noise_concurrency": st.integers(0, 1024),
    "timeout": st.floats(1, 1e9),
}
judging: dict[str, Any] = {
    "score": st.sampled_from(["differing", "all", "none"]),
    "tolerance": st.none() | st.floats(0, 1e9),
    "policy": policies,
    "allow_mismatch": st.frozensets(st.sampled_from(sorted(ALLOWABLE)), max_size=3),
    "min_acceptance": st.none() | st.floats(1, 1e9),
}
checks = st.builds(
    lambda golden, ref, **more: Settings(ref=None if golden else ref, golden=golden, **more),
    golden=st.sampled_from([None, HERE]),
    ref=addresses,
    spec=addresses,
    strict_golden=st.booleans(),
    one_at_a_time=st.booleans(),
    **asking,
    **judging,
)
records = st.builds(Settings, ref=addresses, update=st.sampled_from(["", "all", "new"]), **asking)
comparisons = st.builds(Settings, **judging)


def settings_of(line: list[str], function: str) -> Settings:
    """What a command line comes to: the settings that it calls ``session.FUNCTION`` with."""
    seen: list[Settings] = []
    with pytest.MonkeyPatch.context() as patch:

        def done(settings: Settings, *_: object) -> Done:
            seen.append(settings)
            return Done()

        patch.setattr(session, function, done)
        assert run(line[1:]) == 0, line
    return seen[0]


class Done(int):
    """Stands for a summary, and for an exit code."""

    exit_code = 0


@given(checks)
@example(Settings(spec=":1", ref=":2", tolerance=0.0, prompts=("-x", "--out", "a b", "")))
def test_settings_of_a_check_come_back_from_its_command(settings: Settings) -> None:
    assert settings_of(words(of_settings("check", settings)), "check") == settings


@given(records)
def test_settings_of_a_recording_come_back_from_its_command(settings: Settings) -> None:
    step = of_settings("record", settings, output=Path("-new/g.jsonl"))
    assert settings_of(words(step), "record") == settings
    assert "--output=-new/g.jsonl" in words(step)


@given(comparisons)
def test_settings_of_a_comparison_come_back_from_its_command(settings: Settings) -> None:
    step = of_settings("compare", settings, arguments=(HERE, HERE))
    assert settings_of(words(step), "compare") == settings


@given(checks)
def test_what_is_typed_and_what_settings_say_is_the_same_command(settings: Settings) -> None:
    """A program that calls the library leaves the same command behind as the command line."""
    step = of_settings("check", settings)
    typed = settings_of(words(step), "check").invocation
    assert typed is not None
    assert sorted(words(typed)) == sorted(words(step))


@given(st.lists(anything, max_size=3))
def test_a_shell_splits_a_command_into_its_words(values: list[str]) -> None:
    step = invocation("check", {"prompts": tuple(values)})
    line = shell_line(step)
    assert "\n" not in line
    if all(value.isascii() and value.isprintable() for value in values):
        assert shlex.split(line) == words(step)


def long_names(command: click.Command) -> set[str]:
    return {options.long_name(one) for one in command.params if isinstance(one, click.Option)}


def test_options_that_are_not_repeated_are_named_and_change_nothing() -> None:
    assert set(UNREPEATED) == {"json", "quiet", "out", "fresh"}
    kept = {one.name for name in COMMANDS for one in takes(name)}
    assert kept == {one.name for one in OPTIONS} - {"out", "fresh"}
    fields = {name for name, each in Settings.__dataclass_fields__.items() if each.metadata}
    assert fields == set(Settings.__dataclass_fields__) - {"invocation"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_a_setting_or_stored_by_itself(name: Command) -> None:
    """Fails for a new option or setting that nobody thought of here."""
    settings = {one.long_name for one in takes(name)}
    assert long_names(COMMANDS[name]) == settings | BESIDE[name] | (UNREPEATED & long_names(COMMANDS[name]))


def other_value(option: click.Option) -> list[str]:
    """Words that give an option a value that is not its default."""
    (name,) = [one for one in option.opts if one.startswith("--")]
    if option.is_flag:
        return [name]
    if isinstance(option.type, click.Choice):
        return [name, next(str(one) for one in option.type.choices if one != option.default)]
    if isinstance(option.type, (click.IntRange, click.FloatRange)):
        return [name, str(int(option.type.min or 0) + 6)]
    if isinstance(option.type, click.Path) and not option.type.file_okay:
        return [name, str(HERE.parent)]
    return [name, "7" if option.type is click.INT else str(HERE)]


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, one) for name, command in COMMANDS.items() for one in command.params if isinstance(one, click.Option)],
    ids=lambda value: value if isinstance(value, str) else options.long_name(value),
)
def test_each_option_that_is_set_is_stored_and_comes_back(name: Command, option: click.Option) -> None:
    command = COMMANDS[name]
    needed = [str(HERE) for one in command.params if isinstance(one, click.Argument)]
    needed += [
        word
        for one in command.params
        if isinstance(one, click.Option) and one.required and one is not option
        for word in other_value(one)
    ]
    with command.make_context(name, [*needed, *other_value(option)]) as context:
        step = options.invoked(context)
        given_values = dict(context.params)
    assert (options.long_name(option) in step.options) == (options.long_name(option) not in UNREPEATED)
    with command.make_context(name, words(step)[2:]) as context:
        for parameter in command.params:
            plain = parameter.name or ""
            if options.long_name(parameter) not in UNREPEATED if isinstance(parameter, click.Option) else True:
                assert context.params[plain] == given_values[plain], plain


SECRET = "Xq7-verysecret_9Z"  # noqa: S105 - nobody's
QUOTED = 'engine --opt \'{"api_key": "SECRET", "model": "m"}\' --port {port}'
LEAKS = [
    "engine --api-key SECRET --port {port}",
    "engine --api-key=SECRET --port {port}",
    "engine --api_key 'SECRET and more' --port {port}",
    'engine --api-key "SECRET" --port {port}',
    "engine '--api-key=SECRET x' --port {port}",
    "engine --API-KEY SECRET --port {port}",
    "engine -api-key SECRET",
    "vllm serve m --api-key first SECRET --port {port}",
    "env HF_TOKEN=SECRET engine --port {port}",
    "env 'HF_TOKEN=SECRET' engine",
    "env HF_TOKEN='SECRET x' engine",
    "OPENAI_API_KEY=SECRET engine",
    "engine --hf-token SECRET",
    "engine --ssl-keyfile-password SECRET",
    "engine --admin-api-key SECRET --model m",
    "engine --client-secret SECRET --db-password=SECRET",
    "sh -c 'HF_TOKEN=SECRET engine --port {port}'",
    "sh -c 'engine --api-key SECRET --port {port}'",
    "sh -c \"engine --api-key 'SECRET x' --port {port}\"",
    "bash -c 'export AWS_SESSION_TOKEN=SECRET; engine --port {port}'",
    QUOTED,
    "engine --header 'Authorization: Bearer SECRET'",
    "engine --header 'authorization: Basic SECRET='",
    "engine --header 'X-Api-Key: SECRET'",
    "engine --proxy http://user:SECRET@proxy:3128",
    "engine --proxy=http://SECRET@proxy:3128",
    "engine --url 'https://host/model?token=SECRET&x=1'",
    "engine --url https://host/model?sig=SECRET",
    "engine hf_SECRET",
    "engine --model sk-SECRET",
    "engine --x=ghp_SECRETSECRET",
    "engine --api-key 'SECRET",
]


@pytest.mark.parametrize("command", LEAKS)
def test_no_secret_of_a_command_is_stored_or_printed(command: str) -> None:
    command = command.replace("SECRET", SECRET.replace("-", "") if "gh" in command or "hf_" in command else SECRET)
    for shown in (
        without_secrets(command),
        shell_line(invocation("check", {"ref-cmd": command, "spec": ":1"})),
        managed.Source(command=command).mark,
    ):
        assert "secret_9Z" not in shown
        assert "…" in shown
        assert ("{port}" in shown) == ("{port}" in command)
        assert "--model" not in command or "--model" in shown


@given(
    st.sampled_from(["--api-key", "--hf-token", "--admin_api_key", "--password"]),
    st.sampled_from([" ", "="]),
    st.text(st.characters(codec="ascii", categories=["L", "N", "P", "S"]), min_size=1).filter(lambda s: s[0] != "-"),
)
def test_whatever_a_key_is_made_of_it_is_left_out(option: str, between: str, key: str) -> None:
    secret = f"K{key}Q"
    command = f"engine {option}{between}{shlex.quote(secret)} --port {{port}}"
    assert without_secrets(command) == f"engine {option}{between}… --port {{port}}"


PLAIN = [
    "engine --num-draft-tokens 5 --port {port}",
    "engine --max-tokens 5 --tokenizer org/tok --speculative-num-draft-tokens 4",
    "engine --override-kv tokenizer.ggml.eos_token_id=int:3 --pad-token 5",
    'vllm serve org/model --speculative-config \'{"method": "ngram", "num_speculative_tokens": 5}\'',
    "engine --keyboard us --monkey-patch x --token-map map.pt",
    "env CUDA_VISIBLE_DEVICES=0 engine --model task-sk/hf_x -m 'a b.gguf'",
    "engine --hf_overrides x --model ./hf_cache/m-2B --download-dir hf_hub --other org/sk-model-2B hf_home/x2",
    "engine --host http://127.0.0.1:8000/v1 --served-model-name a@b",
]


@pytest.mark.parametrize("command", PLAIN)
def test_what_is_no_secret_stays_as_it_was_written(command: str) -> None:
    assert without_secrets(command) == command


@pytest.mark.parametrize("name", ["pad_token", "--eos-token", "tokens", "tokenizer", "max_tokens", "keyboard"])
def test_tokens_of_a_vocabulary_are_no_secrets(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://user:pass@gpu:1/v1", "http://gpu:1/v1"),
        ("user:p#ss@gpu:1#m", "gpu:1#m"),
        ("gpu:1/v1?key=abc#lora", "gpu:1/v1#lora"),
        (":30000#hf_abcdef2hijkl", ":30000#…"),
        (":30000#org/model", ":30000#org/model"),
    ],
)
def test_addresses_are_stored_without_user_query_and_token(address: str, shown: str) -> None:
    assert of_settings("check", Settings(spec=address, ref=":1")).options["spec"] == shown


def test_a_server_that_prints_its_own_command_does_not_show_its_key(tmp_path: Path) -> None:
    started = ["python", "-c", "x", "--api-key", SECRET, "--port", "1", f"HF_TOKEN={SECRET}2"]
    secrets = {"A_TOKEN": f"{SECRET}3", "B": "log"}
    process = Process(started, "http://127.0.0.1:1", tmp_path / "log", environment=secrets)
    process.log.write_text(f"args: api_key=['{SECRET}'] {SECRET}2 {SECRET}3 port 1 log\n")
    assert process.last_line() == "args: api_key=['…'] … … port 1 log"
    assert SECRET not in str(process.failure("x", "ended"))
    with pytest.raises(LosslessError) as raised:
        managed.Source(command=f"engine --api-key {SECRET} 'x").require()
    assert SECRET not in str(raised.value)


def test_a_key_is_named_and_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSLESS_API_KEY", SECRET)
    monkeypatch.setenv("LOSSLESS_REF_API_KEY", SECRET)
    step = of_settings("check", Settings(spec=":1", ref=":2"))
    assert step.keys == ("LOSSLESS_REF_API_KEY", "LOSSLESS_API_KEY")
    assert note([step]) == "Set LOSSLESS_API_KEY and LOSSLESS_REF_API_KEY first."
    assert of_settings("check", Settings(spec=":1", golden=HERE)).keys == ("LOSSLESS_API_KEY",)
    assert of_settings("compare", Settings(), arguments=(HERE, HERE)).keys == ()


def test_secrets_that_were_left_out_are_mentioned() -> None:
    step = invocation("check", {"ref-cmd": "engine --api-key x --port {port}"})
    assert "put one back for each …" in note([step])
    assert note([invocation("check", {"spec": ":1"})]) == ""


def test_names_that_no_encoding_has_are_stored_all_the_same() -> None:
    step = invocation("check", {"prompts": (Path("caf\udce9.jsonl"),), "tolerance": float("inf")})
    assert step == Invocation("check", {"prompts": ["caf\\udce9.jsonl"], "tolerance": "inf"})
