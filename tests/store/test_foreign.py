"""`lossless compare` on files that other tools wrote: what is matched, what is compared, and what is refused how."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mock_servers import MockServer
from verifier.cli import run
from verifier.store.foreign import entries
from verifier.store.run_file import Run

Rows = list[dict[str, Any]]


class Compared:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def classes(self) -> dict[str, str]:
        return {row["prompt_id"]: row["cls"] for row in self.json["comparisons"]}

    def finding(self, name: str) -> str:
        (found,) = [finding["message"] for finding in self.json["findings"] if finding["name"] == name]
        return str(found)


Compare = Callable[..., Compared]


@pytest.fixture
def compare(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Compare two files, given as rows or bytes or paths."""

    def written(name: str, content: Any) -> Path:
        if isinstance(content, Path):
            return content
        path = tmp_path / f"{name}.jsonl"
        data = content if isinstance(content, bytes) else "".join(json.dumps(row) + "\n" for row in content).encode()
        path.write_bytes(data)
        return path

    def call(one: Any, other: Any, *words: str) -> Compared:
        paths = [str(written("a", one)), str(written("b", other))]
        code = run(["compare", *paths, "--out", str(tmp_path / "out"), "--json", *words])
        return Compared(code, *capsys.readouterr())

    return call


def plain(*pairs: tuple[str, str], **more: Any) -> Rows:
    return [{"prompt": prompt, "output": output, **more} for prompt, output in pairs]


def batch(custom_id: str, content: str | None, finish: str = "stop", **body: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": finish}
    return {
        "id": "batch_req_1",
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": "r", "body": {"choices": [choice], **body}},
        "error": None,
    }


SAME = plain(("Say hi", "Hi there."), ("2+2", "4"))
OTHER = plain(("Say hi", "Hi there!"), ("2+2", "4"))


def test_equal_texts_are_exact_and_prove_no_drafting(compare: Compare) -> None:
    done = compare(SAME, SAME)
    assert (done.code, done.json["verdict"]) == (3, "INCONCLUSIVE")
    assert done.json["summary"]["counts"]["exact"] == 2
    assert "by text alone" in done.finding("text-only")
    assert "2 answers were matched by prompt" in done.finding("text-only")


def test_different_texts_are_nobodys_fault(compare: Compare) -> None:
    done = compare(SAME, OTHER)
    assert (done.code, done.json["verdict"]) == (3, "INCONCLUSIVE")
    assert sorted(done.classes.values()) == ["diverged", "exact"]
    differing = next(row for row in done.json["comparisons"] if row["cls"] != "exact")
    assert (differing["cause"], differing["fault"]) == ("undetermined", "undetermined")
    assert differing["alignment"]["unit"] == "grapheme"
    assert compare(SAME, OTHER, "--policy", "strict").code == 1


def test_the_run_that_is_written_is_one_of_ours(compare: Compare, tmp_path: Path) -> None:
    path = Path(compare(SAME, OTHER).json["run"])
    with Run(path) as stored:
        assert stored.summary is not None
        assert {prompt.text for prompt in stored.prompts()} == {"Say hi", "2+2"}
    page = path.with_name("report.html").read_text()
    assert "Say hi" in page
    assert "curl -sS" not in page
    for words in (["report", str(path), "--markdown", str(tmp_path / "r.md"), "--junit", str(tmp_path / "r.xml")],
                  ["compare", str(path), str(path), "--out", str(tmp_path / "again")]):  # fmt: skip
        assert run(words) in {0, 3}


@pytest.mark.parametrize("name", ["output", "response", "completion", "text"])
def test_every_name_for_an_answer_is_read(compare: Compare, name: str) -> None:
    rows = [{"prompt": row["prompt"], name: row["output"]} for row in SAME]
    assert set(compare(SAME, rows).classes.values()) == {"exact"}


def test_lines_are_matched_by_prompt_and_not_by_their_order(compare: Compare) -> None:
    assert set(compare(SAME, SAME[::-1]).classes.values()) == {"exact"}


def test_lines_are_matched_by_id_where_both_files_have_them(compare: Compare) -> None:
    one = [{"id": "x", "output": "1"}, {"id": 7, "output": "2"}]
    done = compare(one, one[::-1])
    assert done.classes == {"x": "exact", "7": "exact"}
    assert "matched by id" in done.finding("text-only")


def test_random_ids_give_way_to_prompts(compare: Compare) -> None:
    one = [{**row, "id": f"cmpl-1{number}"} for number, row in enumerate(SAME)]
    other = [{**row, "id": f"cmpl-2{number}"} for number, row in enumerate(SAME[::-1])]
    done = compare(one, other)
    assert done.classes == {"cmpl-10": "exact", "cmpl-11": "exact"}
    assert "matched by prompt" in done.finding("text-only")


def test_one_id_for_two_prompts_cannot_be_compared(compare: Compare) -> None:
    one = [{"id": "x", "prompt": "a", "output": "1"}, {"id": "y", "prompt": "b", "output": "2"}]
    other = [{"id": "x", "prompt": "b", "output": "1"}, {"id": "y", "prompt": "a", "output": "2"}]
    done = compare(one, other)
    assert (done.code, done.json["verdict"]) == (3, "INVALID")


def test_messages_are_prompts_too(compare: Compare) -> None:
    ask = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    one = [{"messages": ask, "output": "x"}]
    other = [{"prompt": [ask[0], {"role": "user", "content": "hi"}], "output": "x"}]
    assert set(compare(one, other).classes.values()) == {"exact"}
    elsewhere = [{"messages": [ask[1]], "output": "x"}]
    assert "no prompt in common" in compare(one, elsewhere).err


def test_batch_outputs_are_compared(compare: Compare) -> None:
    one = [batch("a", "same"), batch("b", "one"), batch("c", "x")]
    other = [batch("c", "x"), batch("b", "other"), batch("a", "same")]
    done = compare(one, other)
    assert (done.code, done.json["verdict"]) == (3, "INCONCLUSIVE")
    assert done.classes["a"] == done.classes["c"] == "exact"
    assert done.classes["b"] != "exact"


def test_batch_output_of_completions_and_of_chats_are_read(compare: Compare) -> None:
    completion = batch("a", None)
    completion["response"]["body"]["choices"] = [{"index": 0, "text": "same", "finish_reason": "stop"}]
    assert compare([completion], [batch("a", "same")]).classes == {"a": "exact"}


def test_another_reason_to_end_is_a_difference_and_an_unknown_one_is_not(compare: Compare) -> None:
    assert compare([batch("a", "x")], [batch("a", "x", "length")]).classes["a"] != "exact"
    assert compare([batch("a", "x")], [{"id": "a", "output": "x"}]).classes == {"a": "exact"}
    assert compare([{"id": "a", "output": "x"}], [batch("a", "x", "length")]).classes == {"a": "exact"}


def test_an_answer_given_as_reasoning_is_a_difference(compare: Compare) -> None:
    thought = batch("a", "")
    thought["response"]["body"]["choices"][0]["message"]["reasoning_content"] = "x"
    assert compare([batch("a", "x")], [thought]).classes["a"] != "exact"
    assert compare([thought], [thought]).classes == {"a": "exact"}


def test_tool_calls_are_part_of_an_answer(compare: Compare) -> None:
    def call(arguments: str) -> dict[str, Any]:
        row = batch("a", None, "tool_calls")
        row["response"]["body"]["choices"][0]["message"]["tool_calls"] = [
            {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        ]
        return row

    assert compare([call("{}")], [call("{}")]).classes == {"a": "exact"}
    assert compare([call("{}")], [call('{"x": 1}')]).classes["a"] != "exact"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"custom_id": "b", "response": None, "error": {"code": "x", "message": "too\nmany"}}, "too many"),
        ({"custom_id": "b", "response": {"status_code": 500, "body": {"error": {"message": "oom"}}}}, "500"),
        ({"custom_id": "b", "response": {"status_code": 429, "body": {}}, "error": None}, "429"),
        ({"custom_id": "b", "response": {"status_code": 200, "body": {"error": {"message": "oom"}}}}, "oom"),
        (batch("b", None), "neither content nor tool calls"),
        ({"id": "b", "output": None}, "null"),
        ({"id": "b", "error": "timed out"}, "timed out"),
    ],
)
@pytest.mark.parametrize("side", ["reference", "speculative"])
def test_a_failed_request_is_an_error_of_its_prompt(
    compare: Compare, broken: dict[str, Any], said: str, side: str
) -> None:
    fine, failing = [batch("a", "x"), batch("b", "y")], [batch("a", "x"), broken]
    done = compare(*((failing, fine) if side == "reference" else (fine, failing)))
    assert done.code == 4
    assert done.classes == {"a": "exact", "b": "error"}
    (row,) = [row for row in done.json["comparisons"] if row["cls"] == "error"]
    assert said in row["reason"]
    assert ("The reference" if side == "reference" else "The speculative") in row["reason"]


def test_a_prompt_that_one_file_lacks_is_an_error_and_the_others_are_compared(compare: Compare) -> None:
    more = [*SAME, *plain(("only here", "x"))]
    for one, other, who in ((more, SAME, "b.jsonl"), (SAME, more, "a.jsonl")):
        done = compare(one, other)
        assert done.code == 4
        assert sorted(done.classes.values()) == ["error", "exact", "exact"]
        (row,) = [row for row in done.json["comparisons"] if row["cls"] == "error"]
        assert f"{who} has no line for it" in row["reason"]


def test_a_difference_beside_a_missing_prompt_does_not_disappear(compare: Compare) -> None:
    done = compare([*SAME, *plain(("only here", "x"))], OTHER, "--policy", "text")
    assert done.code == 1


GOOD = json.dumps(SAME[0]).encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\n  \n", "is empty"),
        (b"\xef\xbb\xbf\n", "is empty"),
        (b"\x7fELF\0\0\1", "binary file"),
        (b"\x1f\x8b\x08\0\0", "binary file"),
        ('{"prompt": "x", "output": "y"}\n'.encode("utf-16"), "UTF-16"),
        (b'[{"prompt": "x", "output": "y"}]', "JSON array"),
        (b"\xef\xbb\xbf [\n", "JSON array"),
        (b'{\n  "prompt": "x",\n  "output": "y"\n}\n', "indented JSON"),
        (GOOD + b"\xff\n", "line 2"),
        (GOOD + b'{"prompt": "caf\xe9", "output": "y"}\n', "not UTF-8"),
        (GOOD + b"not json\n", "line 2"),
        (b"prompt,output\nx,y\n", "not a JSON object"),
        (GOOD + b"3\n", "not a JSON object"),
        (GOOD + b"[" * 100_000 + b"\n", "nested too deeply"),
        (b'{"a": 1, "b": 2}\n', "`a`, `b`"),
        (b"{}\n", "none"),
        (b'{"prompt": "x"}\n', "no answer"),
        (b'{"output": "x"}\n', "neither a prompt nor an id"),
        (b'{"prompt": 3, "output": "x"}\n', "`prompt` is not a string"),
        (b'{"prompt": [1, 2], "output": "x"}\n', "`prompt` is not a string"),
        (b'{"prompt": "x", "output": ["y"]}\n', "`output` is not a string"),
        (b'{"prompt": "x", "output": "y", "text": "z"}\n', "`output` and `text`"),
        (b'{"messages": [], "output": "y"}\n', "`messages`"),
        (b'{"messages": [{"role": "user"}], "output": "y"}\n', "message"),
        (b'{"messages": ["x"], "output": "y"}\n', "message"),
        (b'{"id": true, "output": "y"}\n', "`id`"),
        (b'{"id": "a\\u001b[2J", "output": "y"}\n', "printable"),
        (b'{"id": "", "output": "y"}\n', "printable"),
        (b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n', "batch input"),
        (b'{"custom_id": "a", "response": {"status_code": 200, "body": {"choices": []}}}\n', "0 answers"),
        (GOOD + GOOD, "same prompt as line 1"),
        (b'{"type": "rendering", "prompt_id": "a", "digest": "d"}\n', "header"),
    ],
)
def test_a_file_that_cannot_be_compared_says_why(compare: Compare, tmp_path: Path, content: bytes, said: str) -> None:
    for one, other in ((content, SAME), (SAME, content)):
        done = compare(one, other)
        assert done.code == 2
        assert said in done.err
        assert ("a.jsonl" if one is content else "b.jsonl") in done.err
        assert "Traceback" not in done.err
        assert "\x1b" not in done.err
        assert not (tmp_path / "out").exists()


def test_a_file_of_another_kind_is_told_what_can_be_compared(compare: Compare) -> None:
    done = compare(b'{"a": 1}\n', SAME)
    assert "is not a file of `lossless`" in done.err
    assert '"prompt"' in done.err
    assert '"output"' in done.err
    assert "missing required field" not in done.err


def test_a_huge_line_is_refused(compare: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verifier.store.foreign.LONGEST_LINE", 1 << 20)
    done = compare(SAME, GOOD + b'{"prompt": "x", "output": "' + b"y" * (1 << 21) + b'"}\n')
    assert done.code == 2
    assert "longer than 1 MiB" in done.err


@pytest.mark.parametrize("repeated", ["prompt", "id"])
def test_a_repeated_key_is_refused_in_either_file(compare: Compare, repeated: str) -> None:
    rows = [{repeated: "x", "output": "1"}, {repeated: "x", "output": "2"}]
    for one, other in ((rows, rows[:1]), (rows[:1], rows)):
        done = compare(one, other)
        assert done.code == 2
        assert f"line 2: it has the same {repeated} as line 1" in done.err


def test_repeated_prompts_are_fine_where_ids_tell_them_apart(compare: Compare) -> None:
    rows = [{"id": name, "prompt": "x", "output": name} for name in "ab"]
    assert compare(rows, rows).classes == {"a": "exact", "b": "exact"}


def test_lines_without_a_key_are_never_matched_by_their_order(compare: Compare) -> None:
    done = compare([{"id": "a", "output": "1"}], [{"prompt": "a", "output": "1"}])
    assert done.code == 2
    assert "order" in done.err


def test_what_editors_and_tools_leave_is_read(compare: Compare, tmp_path: Path) -> None:
    rows = b"\r\n".join(json.dumps(row).encode() for row in SAME)
    assert set(compare(SAME, b"\xef\xbb\xbf" + rows + b"\r\n\r\n").classes.values()) == {"exact"}
    packed = tmp_path / "c.jsonl.gz"
    packed.write_bytes(gzip.compress(rows))
    assert set(compare(SAME, packed).classes.values()) == {"exact"}


def test_half_a_character_is_no_crash(compare: Compare) -> None:
    done = compare(b'{"prompt": "x", "output": "\\ud83d"}\n', b'{"prompt": "x", "output": "\\ud83d"}\n')
    assert done.code == 3


def test_hostile_text_reaches_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;owned\x07\u202e"
    for name, more in (("a", "x"), ("b", "y")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": hostile, "output": hostile + more}) + "\n")
    run(["compare", str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"), "--out", str(tmp_path / "out")])
    shown = "".join(capsys.readouterr())
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_two_models_are_not_compared(compare: Compare) -> None:
    done = compare([batch("a", "x", model="m1")], [batch("a", "x", model="m2")])
    assert (done.code, done.json["verdict"]) == (3, "INVALID")
    same = compare([batch("a", "x", model="m1")], [batch("a", "x", model="m1")])
    assert same.json["verdict"] == "INCONCLUSIVE"
    allowed = compare([batch("a", "x", model="m1")], [batch("a", "x", model="m2")], "--allow-mismatch", "model")
    assert allowed.json["verdict"] == "INCONCLUSIVE"


# One file of ours and one of another tool


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """A golden of two prompts."""
    prompts = tmp_path / "two.jsonl"
    prompts.write_text("".join(json.dumps({"id": name, "prompt": text}) + "\n" for name, text in TWO.items()))
    path = tmp_path / "g.jsonl"
    with MockServer("llama.cpp") as ref:
        assert run(["record", "--ref", ref.url, "-o", str(path), "--prompts", str(prompts), "--max-tokens", "24"]) == 0
    return path


TWO = {"a": "one", "b": "two"}


def answers(golden: Path) -> dict[str, str]:
    with Run(golden) as stored:
        found = {name: stored.completion("ref", name) for name in TWO}
        return {name: answer.text for name, answer in found.items() if answer is not None}


@pytest.mark.parametrize("side", ["reference", "speculative"])
def test_a_golden_and_a_file_of_another_tool_are_compared_by_prompt(
    compare: Compare, golden: Path, side: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    texts = answers(golden)
    rows = plain(("two", texts["b"]), ("one", texts["a"] + "!"))
    done = compare(*((rows, golden) if side == "reference" else (golden, rows)))
    assert (done.code, done.json["verdict"]) == (3, "INCONCLUSIVE")
    assert done.classes["b"] == "exact"
    assert done.classes["a"] != "exact"
    assert {row["fault"] for row in done.json["comparisons"]} <= {"none", "undetermined"}


def test_a_golden_and_batch_output_are_compared_by_id(
    compare: Compare, golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with Run(golden) as stored:
        found = [answer for name in TWO if (answer := stored.completion("ref", name)) is not None]
    reasons = {"eos": "stop", "length": "length"}
    done = compare(golden, [batch(one.prompt_id, one.text, reasons[one.finish]) for one in found])
    assert done.classes == {"a": "exact", "b": "exact"}


def test_what_only_the_other_file_has_is_told(
    compare: Compare, golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    texts = answers(golden)
    rows = plain(("one", texts["a"]), ("two", texts["b"]), ("three", "x"))
    done = compare(golden, rows)
    assert done.classes == {"a": "exact", "b": "exact"}
    assert "lines 3" in done.finding("not-compared")
    lacking = compare(golden, rows[:1])
    assert (lacking.code, lacking.classes) == (4, {"a": "exact", "b": "error"})
    reverse = compare(rows[:1], golden)
    assert "prompts b" in reverse.finding("not-compared")
    assert compare(golden, plain(("nine", "x"))).code == 2


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(TEXTS.filter(bool), st.tuples(TEXTS, TEXTS), min_size=1, max_size=6), st.randoms())
def test_exactly_the_lines_with_equal_texts_are_exact(
    tmp_path_factory: pytest.TempPathFactory, rows: dict[str, tuple[str, str]], shuffle: Any
) -> None:
    folder = tmp_path_factory.mktemp("compare")
    order = list(rows)
    shuffle.shuffle(order)
    for name, side, prompts in (("a", 0, list(rows)), ("b", 1, order)):
        lines = [json.dumps({"prompt": prompt, "output": rows[prompt][side]}) for prompt in prompts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    code = run(["compare", str(folder / "a.jsonl"), str(folder / "b.jsonl"), "--out", str(folder / "out"), "--quiet"])
    assert code in {1, 3}
    (path,) = (folder / "out").glob("*/run.jsonl")
    with Run(path) as stored:
        asked = {prompt.id: prompt.text or "" for prompt in stored.prompts()}
        for comparison in stored.comparisons():
            one, other = rows[asked[comparison.prompt_id]]
            assert (comparison.cls == "exact") == (one == other)
        assert stored.summary is not None
        assert stored.summary.verdict not in {"LOSSLESS", "NEAR-LOSSLESS"}


@given(st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    from verifier.errors import StoreError

    path = tmp_path_factory.mktemp("bytes") / "a.jsonl"
    path.write_bytes(content)
    try:
        assert all(entry.line > 0 for entry in entries(path))
    except StoreError as error:
        assert "a.jsonl" in error.message


@pytest.mark.parametrize("words", [["report"], ["golden", "show"], ["rescore", "--ref", ":1"]])
def test_other_commands_say_that_a_file_is_not_of_lossless(
    tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.jsonl"
    # Without a newline at the end, which a file of ours only lacks after a kill.
    for content in (GOOD, GOOD.strip(), GOOD + GOOD.strip()):
        path.write_bytes(content)
        assert run([*words, str(path)]) == 2
        err = capsys.readouterr().err
        assert "not a file of `lossless`" in err
        assert "missing required field" not in err
        assert path.read_bytes() == content
