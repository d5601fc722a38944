"""What the command line says to a wrong request: the nearest name, and advice in words of the command line alone."""

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.words import write_words_checkpoint

from minibert.cli.main import COMMANDS, main
from minibert.cli.shared import check_texts

Refuse = Callable[[str], str]
# What only Python takes: an argument, a call, a name with an underscore that no file has.
PYTHON = re.compile(r"\w=[\w'\"(,;) ]|\w=$|\w\(|(?<![\w/.'-])(?!answer_start|model_type)[a-z]+_[a-z_]+(?![\w/.'])")


@pytest.fixture
def refuse(capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Run a command line that is wrong: its error."""

    def call(line):
        try:
            status = main(line.split())
        except SystemExit as end:
            status = int(end.code or 0)
        *_, said = capsys.readouterr().err.splitlines()
        assert status in (1, 2) and said.startswith("minibert: error: "), (status, said)
        return str(said)

    return call


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a classifier, an encoder and files."""
    write_words_checkpoint(tmp_path / "sentiment", head="sequence-classification")
    write_words_checkpoint(tmp_path / "encoder")
    rows = "".join(f"{word} film\t{word}\n" for word in ("good", "bad") * 6)
    (tmp_path / "train.tsv").write_text(f"sentence\tlabel\n{rows}")
    (tmp_path / "other.csv").write_text("a;b\n1;2\n")
    (tmp_path / "gap.csv").write_text("text,label\ngood film,1\n,0\n")
    (tmp_path / "latin.csv").write_bytes("text,label\ncafé,1\n".encode("latin-1"))
    (tmp_path / "long.txt").write_text("good film " * 40)
    (tmp_path / "half.jsonl").write_text('{"text": "a \\ud800"}\n{"text": ["good", "film"]}\n')
    (tmp_path / "pairs.jsonl").write_text('{"text": ["good", "film"]}\n')
    (tmp_path / "squad.json").write_text(
        '{"data": [{"paragraphs": [{"context": "the good film", "qas": [{"id": "1", "question": "what", '
        '"answers": [{"text": "good", "answer_start": 0}]}]}]}]}'
    )
    (tmp_path / "x.npy").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# -- did you mean


@pytest.mark.parametrize(
    "row",
    """
clasify train.tsv                                              | classify        | minibert --help
train train.tsv                                                | classify train  | minibert --help
fill-masks x                                                   | fill-mask       | minibert --help
classify trian train.tsv                                       | train           | minibert classify --help
finetune tags train.tsv                                        | tag             | minibert finetune --help
--versoin                                                      | --version       | minibert --help
predict sentiment --modle encoder                              | --model         | minibert predict --help
embed train.tsv --outt x.npy                                   | --out           | minibert embed --help
embed train.tsv -model encoder --out x.npy                     | --model         | minibert embed --help
finetune classify train.tsv --learn_rate 1e-4 --out x          | --learning-rate | minibert finetune classify --help
distill train.tsv --epoch_s=1 --out x                          | --epochs        | minibert distill --help
finetune NER train.conll                                       | finetune tag    | minibert finetune --help
qa squad.json                                                  | finetune answer | minibert --help
finetune mlm long.txt                                          | finetune mask   | minibert finetune --help
encode long.txt                                                | embed           | minibert --help
similarity one two                                             | search          | minibert --help
finetune help                                                  | --help          | minibert finetune --help
searhc x.npy one                                               | search          | minibert --help
""".strip().splitlines(),
)
def test_a_command_or_an_option_that_is_not_there_is_answered_with_the_nearest_and_its_own_help(row, refuse):
    line, near, help = map(str.strip, row.split("|"))
    assert re.search(rf"; did you mean {near}( or [^;]+)?\?; see `{help}`", refuse(line))


@pytest.mark.parametrize(
    "row",
    """
finetune classify train.tsv --lr 1e-4       | --learning-rate
finetune tag train.tsv --num-train-epochs=3 | --epochs
embed train.tsv --batch-size 8              | --batch-tokens
search x.npy one --top-k 3                  | --top
pretrain long.txt --output_dir x            | --out
""".strip().splitlines(),
)
def test_an_option_of_other_libraries_is_answered_with_ours(row, refuse):
    line, ours = row.split("|")
    assert f"; use {ours.strip()};" in refuse(line)


@pytest.mark.parametrize("line", ["embed train.tsv --out=", "trace one --svg=", "finetune tag train.conll --plot="])
def test_an_empty_name_of_an_output_is_refused_in_one_sentence(line, refuse):
    option = line.split()[-1].rstrip("=")
    assert f"error: {option} has an empty name; " in refuse(line)


TEXTS = ["predict sentiment", "classify predict sentiment", "score", "search x.npy", "fill-mask", "trace", "trace good"]
A_FILE = ["train.tsv", "sentiment", "nofile.tsv", "no/such.jsonl.gz", "*.csv", "./long.txt"]


@pytest.mark.parametrize("command", TEXTS)
@pytest.mark.parametrize("name", A_FILE)
@pytest.mark.usefixtures("place")
def test_the_name_of_a_file_is_no_text(command, name, refuse):
    said = refuse(f"{command} {name}")
    assert f"error: {name} is the name of a file" in said and "--file" in said


@pytest.mark.parametrize("text", ["and/or", "e.g. this.", "readme", "", "a. tsv", "the end.", "a.b", "good\tin a.txt"])
def test_an_ordinary_text_is_no_file(text, place):
    check_texts(argparse.Namespace(file=None), [text])


def test_what_is_left_over_points_to_the_help_of_its_command(refuse):
    assert "unrecognized arguments: extra; see `minibert embed --help`" in refuse("embed train.tsv extra --out x.npy")


@pytest.mark.parametrize(
    "row",
    """
evaluate sentimnt train.tsv                         | sentiment
predict ./sentimnt text                             | sentiment
classify predict Sentimen text                      | sentiment
embed train.tsv --out y.npy --model encodr          | encoder
inspect all-MiniLM-L6v2                             | all-MiniLM-L6-v2
evaluate sentiment trian.tsv                        | train.tsv
finetune classify train.csv --out x                 | train.tsv
embed long.txt --out y.npy --model bert-base-uncsed | bert-base-uncased
""".strip().splitlines(),
)
@pytest.mark.usefixtures("place")
def test_a_folder_or_a_file_that_is_not_there_is_answered_with_the_nearest(row, refuse):
    line, near = row.split("|")
    said = refuse(line)
    assert f"did you mean {near.strip()}" in said
    assert "by hand" not in said


@pytest.mark.usefixtures("place")
def test_a_checkpoint_that_is_missing_is_answered_with_one_that_is_here(refuse):
    for name in ("distilbert-base-uncased", "bert-large-uncased"):
        said = refuse(f"embed long.txt --out y.npy --model {name}")
        assert "; all-MiniLM-L6-v2 is on this machine; use it: --model all-MiniLM-L6-v2;" in said
        assert "did you mean" not in said
        for line in (f"inspect {name}", f"export {name} --out x.onnx", f"convert {name} --out x"):
            assert "; all-MiniLM-L6-v2 is on this machine;" in refuse(line)
    assert "`minibert download distilbert-base-uncased`" in refuse("inspect distilbert-base-uncased")
    assert "on this machine" not in refuse("predict nosuchfolder text")
    assert "model.safetensors is a file, and a checkpoint is a folder" in refuse("inspect sentiment/model.safetensors")


@pytest.mark.usefixtures("place")
def test_only_what_the_hub_may_have_is_said_to_be_downloaded(refuse):
    said = refuse("predict nosuchfolder text")
    assert "nosuchfolder" in said
    assert "by hand" not in said
    assert "by hand" in refuse("predict someone/nosuchmodel text")


@pytest.mark.parametrize("command", ["fill-mask", "score"])
def test_a_model_without_a_masked_lm_head_is_answered_with_one_that_has_it(command, refuse, place):
    assert "; minibert-novels has one" in refuse(f"{command} [MASK] --model {place}/encoder")


# -- no Python on the command line

WRONG = """
embed train.tsv --out x.npy
embed train.tsv --column sentence --out y.npy --model encoder --long windows --stride 30
embed train.tsv --column sentence --out y.npy --model encoder --stride 3
embed train.tsv --column sentence --out y.npy --model encoder --max-length 1
embed train.tsv --column sentence --out y.npy --model encoder --batch-tokens 0
embed train.tsv --column sentence --out y.npy --model encoder --device gpu
embed train.tsv --column sentence --out y.npy --model encoder --layers 9
embed train.tsv --column sentence --out y.npy --model encoder --pooling pooler --layers 0
embed train.tsv --column none --out y.npy --model encoder
embed gap.csv --column text --out y.npy --model encoder
embed latin.csv --column text --out y.npy --model encoder
embed other.csv --format jsonl --out y.npy --model encoder
embed long.txt --out y.npy --model encoder --long error
search train.tsv one --model encoder --top 0
search x.npy one --texts long.txt --model encoder
search x.npy one
search train.tsv one --texts long.txt --model encoder
mine x.npy --top 0
mine latin.csv --model encoder
embed half.jsonl --column text --out y.npy --model encoder
embed pairs.jsonl --column text --out y.npy --model encoder
embed *.none --out y.npy --model encoder
classify train train.tsv --out sentiment --model encoder
classify train train.tsv --out new --model encoder --overwrite --features x.npy
classify train train.tsv --out new --model encoder --grid 0
classify train gap.csv --out new --model encoder
classify evaluate sentiment gap.csv
classify predict sentiment --file gap.csv
demo --data train.tsv --rows 0
demo --data gap.csv
evaluate sentiment gap.csv
evaluate encoder train.tsv
predict sentiment text --batch-tokens 0
predict sentiment --file other.csv --pair b
predict sentiment text --pretokenized
predict sentiment text --device gpu
predict encoder text
finetune classify train.tsv --model encoder --out new --learning-rate 0
finetune classify train.tsv --model encoder --out new --batch-size 0
finetune classify train.tsv --model encoder --out new --max-length 1
finetune classify train.tsv --model encoder --out new --freeze 77
finetune classify gap.csv --model encoder --out new
finetune classify train.tsv --model encoder --out sentiment
finetune answer squad.json --model encoder --out new
finetune tag train.tsv --model encoder --out new --max-length 1
finetune embed train.tsv --model encoder --out new --batch-size 1
finetune mask long.txt --model encoder --out new --mask-rate 2
finetune choose half.jsonl --model encoder --out new
pretrain long.txt --tokenizer encoder --config none.json --out new
pretrain long.txt --tokenizer encoder --steps 1 --out new --dev long.txt --batch-size 0
pretrain long.txt --tokenizer encoder --out new --save-every 0
distill long.txt --teacher encoder --out new
distill long.txt --teacher encoder --layers 0 --out new
vocab long.txt --size 3 --out new
vocab long.txt --out sentiment
check nothing.py
check --export new.npz --model nothing
fill-mask text --model encoder
fill-mask text --model minibert-novels
fill-mask [MASK] --model minibert-novels --top-k 0
score text --model encoder
score --pairs --file train.tsv
score text --precision int8 --model minibert-novels
score text --long windows --model minibert-novels
trace text --model encoder --out page.txt
trace text --model encoder --out page.html --layers 7
trace text text --model minibert-novels --classifier sentiment --out page.html
inspect encodr
convert encoder --out new
export encoder --out model.txt
export encoder --out model.onnx --head masked-lm
export encoder --out model.onnx --head none
serve --model encoder --port 99999
serve --model encoder --batch-tokens 0
parity encoder --report page.txt
bench --serve --rounds -1
""".strip().splitlines()


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("line", WRONG)
@pytest.mark.usefixtures("place")
def test_no_error_of_the_command_line_names_a_python_argument(line, refuse):
    said = refuse(line)
    assert not PYTHON.search(said), said


def test_every_command_was_tried():
    tried = [name for name in COMMANDS if any(line.startswith(name + " ") for line in WRONG)]
    assert set(COMMANDS) - set(tried) == {"download"}
