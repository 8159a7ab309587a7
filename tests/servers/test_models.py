"""The embedded model's preparation: what a damaged download or cache gets."""

import hashlib
import json
from pathlib import Path

import pytest

from servers.models import MANIFEST_NAME, ModelError, damage, prepare

GGUF = b"not really a model"
GGUF_SHA256 = hashlib.sha256(GGUF).hexdigest()


class Source:
    """A download and a conversion of a few bytes, which count how often they are asked."""

    def __init__(self, content: bytes = GGUF) -> None:
        self.content = content
        self.fetched = 0

    def fetch(self, into: Path) -> Path:
        self.fetched += 1
        path = into / "model.gguf"
        path.write_bytes(self.content)
        return path

    def convert(self, gguf: Path, into: Path) -> None:
        (into / "model.safetensors").write_bytes(gguf.read_bytes() * 2)
        (into / "config.json").write_text("{}")

    def prepare(self, cache: Path) -> Path:
        return prepare(cache, self.fetch, self.convert, GGUF_SHA256)


def test_made_once(tmp_path: Path) -> None:
    """A prepared model is found again without a second download, by its manifest."""
    source = Source()
    first = source.prepare(tmp_path)
    assert source.prepare(tmp_path) == first
    assert source.fetched == 1
    stated = json.loads((first / MANIFEST_NAME).read_text())["files"]["model.safetensors"]
    assert stated == {
        "size_bytes": 2 * len(GGUF),
        "sha256": hashlib.sha256(GGUF * 2).hexdigest(),
    }


def test_corrupt_download(tmp_path: Path) -> None:
    """A download with another SHA-256 is refused with one line that says what to do."""
    with pytest.raises(ModelError, match=r"damaged or not the expected one.*run again") as caught:
        Source(b"something else").prepare(tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["models.lock"]
    assert Source().prepare(tmp_path).is_dir()


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        pytest.param(
            lambda d: (d / "model.safetensors").write_bytes(b"x" * 36), "SHA-256", id="bytes"
        ),
        pytest.param(lambda d: (d / "model.safetensors").write_bytes(b"x"), "size", id="size"),
        pytest.param(lambda d: (d / "config.json").unlink(), "config.json is missing", id="file"),
        pytest.param(lambda d: (d / MANIFEST_NAME).write_text("{"), "manifest", id="manifest"),
        pytest.param(lambda d: (d / MANIFEST_NAME).unlink(), "manifest", id="no-manifest"),
    ],
)
def test_corrupt_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], harm: object, what: str
) -> None:
    """A cached model that differs from its manifest is named and made again."""
    assert callable(harm)
    directory = Source().prepare(tmp_path)
    harm(directory)
    source = Source()
    assert source.prepare(tmp_path) == directory
    assert source.fetched == 1
    assert damage(directory, GGUF_SHA256) is None
    said = capsys.readouterr().err
    assert what in said
    assert "making it again" in said


def test_torn_attempt(tmp_path: Path) -> None:
    """What a killed attempt left behind is neither taken for a model nor kept."""
    torn = tmp_path / ".making-torn" / "model"
    torn.mkdir(parents=True)
    (torn / "model.safetensors").write_bytes(b"half")
    directory = Source().prepare(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [directory.name, "models.lock"]
    )


def test_unusable_cache_folder(tmp_path: Path) -> None:
    """A cache folder that cannot be made is named, with the variable that moves it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="LOADGEN_CACHE"):
        Source().prepare(tmp_path / "file" / "cache")
