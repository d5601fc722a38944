"""Files of functions, trained alike: the same file gives the same losses, a changed one others."""

import gzip
import re
from pathlib import Path

import own
import pytest

from minibert.checking.mistakes import SOURCE

SENTENCES = ["He opened the door and went in.", "She was very unhappy.", "", "They saw the old boat."] * 20
ADDED = 'weights["embeddings.position_embeddings.weight"][position]'


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus of a few sentences, where the novels would be."""
    folder = tmp_path / "novels"
    folder.mkdir()
    text = "\n".join(SENTENCES).encode()
    (folder / "train.txt.gz").write_bytes(gzip.compress(text))
    (folder / "heldout.txt").write_bytes(text)
    monkeypatch.setenv("MINIBERT_DATA", str(tmp_path))
    return folder


def written(path: Path, old: str = "", new: str = "") -> str:
    """Write the reference with an edit, and with the folder of the vocabulary, which is above the package."""
    assert old in SOURCE
    weights = Path(__file__).parents[3] / "weights"
    if not (path.parent / "weights").exists():
        (path.parent / "weights").symlink_to(weights)
    path.write_text(SOURCE.replace(old, new), "utf-8")
    return str(path)


@pytest.mark.slow
def test_a_change_is_measured_beside_the_file_without_it(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = written(tmp_path / "my_bert.py")
    files = [first, written(tmp_path / "copy.py"), written(tmp_path / "changed.py", ADDED, f"0 * {ADDED}")]
    assert own.main([*files, "--steps", "6", "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    losses = {line.split()[0]: re.findall(r"\d+\.\d{3}", line) for line in printed.splitlines()[1:4]}
    assert losses["my_bert.py"] == losses["copy.py"] and losses["copy.py"][2:] == ["0.000", "0.000"]
    assert losses["changed.py"][:2] != losses["my_bert.py"][:2]
    assert losses["my_bert.py"][0] != losses["my_bert.py"][1]
    assert float(printed.split()[-1]) < 9.1  # log 8192, a guess without knowledge


def test_without_the_text_it_ends_with_status_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBERT_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        own.main(["my_bert.py"])
    assert ended.value.code == 2
