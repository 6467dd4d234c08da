"""The lab model: its files in the package, the ones that tests make, and the kinds that can be asked for with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from click.testing import CliRunner

from lab import to_gguf
from verifier.demo import demo_models
from verifier.errors import LosslessError
from verifier.servers.process import embedded
from verifier.servers.process.embedded import Speculation


@pytest.mark.parametrize("quantization", demo_models.LAB_TYPES)
def test_the_packaged_files_are_those_that_the_checkpoint_gives(quantization: str, tmp_path: Path) -> None:
    packaged = demo_models.lab(quantization)
    assert to_gguf.write_target(tmp_path / packaged.name, quantization).read_bytes() == packaged.read_bytes()


@pytest.mark.parametrize(("kind", "write"), [("eagle3", to_gguf.write_eagle3), ("dflash", to_gguf.write_dflash)])
def test_the_packaged_drafts_are_those_that_the_checkpoint_gives(
    kind: str, write: Callable[[Path], Path], tmp_path: Path
) -> None:
    name = f"lab-{kind}-Q8_0.gguf"
    assert write(tmp_path / name).read_bytes() == (demo_models.LAB_FOLDER / name).read_bytes()


@pytest.mark.parametrize("file_type", ["F32", "BF16", "Q8_0"])
def test_other_types_need_no_pytorch_and_have_every_tensor(file_type: str, tmp_path: Path) -> None:
    made = gguf.GGUFReader(to_gguf.write_target(tmp_path / "made.gguf", file_type))
    packaged = gguf.GGUFReader(demo_models.lab())
    assert [(t.name, list(t.shape)) for t in made.tensors] == [(t.name, list(t.shape)) for t in packaged.tensors]
    assert gguf.GGMLQuantizationType[file_type] in {t.tensor_type for t in made.tensors}


def test_a_quantization_that_is_not_packaged_is_named() -> None:
    with pytest.raises(LosslessError, match="F32"):
        demo_models.lab("F32")


@pytest.mark.parametrize(
    ("kind", "types", "lossy"),
    [
        ("none", (), False),
        ("mtp", ("draft-mtp",), False),
        ("draft-mtp", ("draft-mtp",), False),
        ("eagle3", ("draft-eagle3",), False),
        ("dflash", ("draft-dflash",), False),
        ("dspark", ("draft-dspark",), False),
        ("draft", ("draft-simple",), False),
        ("ngram", ("ngram-simple",), False),
        ("ngram-map-k4v", ("ngram-map-k4v",), False),
        ("mtp,ngram", ("draft-mtp", "ngram-simple"), False),
        ("ngram-mod, eagle3, ngram-cache", ("ngram-mod", "draft-eagle3", "ngram-cache"), False),
        ("lossy", (), True),
        ("lossy,eagle3", ("draft-eagle3",), True),
    ],
)
def test_kinds_by_short_names_and_llama_cpps_own(kind: str, types: tuple[str, ...], lossy: bool) -> None:
    assert embedded.parsed(kind) == Speculation(types, lossy)


@pytest.mark.parametrize(
    "kind",
    ["", "nextn", "MTP", "mtp,", "mtp,draft-mtp", "none,mtp", "none,lossy", "lossy,lossy", "mtp,eagle3", "draft,mtp"],
)
def test_kinds_that_no_server_can_have_are_refused(kind: str) -> None:
    """llama.cpp crashes on MTP with another draft model, and drafts nothing with two draft models."""
    with pytest.raises(LosslessError):
        embedded.parsed(kind)


def test_lossy_breaks_what_the_model_has(tmp_path: Path) -> None:
    plain = tmp_path / "plain.gguf"
    plain.write_bytes(b"GGUF general.architecture llama")
    lossy = Speculation(lossy=True)
    assert embedded.completed(lossy, demo_models.lab()) == Speculation(("draft-mtp",), lossy=True)
    assert embedded.completed(lossy, plain) == Speculation(("ngram-simple",), lossy=True)
    named = Speculation(("draft-eagle3",), lossy=True)
    assert embedded.completed(named, demo_models.lab()) == named


def test_drafts_are_found_next_to_the_model(tmp_path: Path) -> None:
    model = demo_models.lab("Q6_K")
    for kind in ("eagle3", "dflash"):
        found = embedded.draft_file((f"draft-{kind}",), model, None)
        assert found == model.with_name(f"lab-{kind}-Q8_0.gguf")
    assert embedded.draft_file(("draft-mtp", "ngram-simple"), model, None) is None
    assert embedded.draft_file(("draft-simple",), model, None) == model
    given = tmp_path / "other.gguf"
    assert embedded.draft_file(("draft-eagle3",), model, given) == given


@pytest.mark.parametrize("there", [(), ("a-eagle3-Q8_0.gguf", "b-eagle3-F16.gguf")])
def test_a_draft_that_is_not_one_file_has_to_be_named(there: tuple[str, ...], tmp_path: Path) -> None:
    for name in there:
        (tmp_path / name).touch()
    with pytest.raises(LosslessError) as error:
        embedded.draft_file(("draft-eagle3",), tmp_path / "model.gguf", None)
    assert "--draft" in error.value.advice


def test_a_wrong_kind_is_a_usage_error_of_the_server_process() -> None:
    result = CliRunner().invoke(embedded.main, ["--model", str(demo_models.lab()), "--port", "1", "--kind", "nextn"])
    assert result.exit_code == 2
    assert "nextn" in result.output
    assert "draft-mtp" in result.output
