"""The sample files are of the kinds that minibert reads, and replace nothing."""

import json

from minibert.config import Config
from minibert.prediction.samples import sample_files, write_samples
from minibert.tasks.classification import Classification
from minibert.tasks.tagging import Tagging


def test_the_files_are_read_by_the_tasks_and_no_row_is_in_two_of_them(tmp_path):
    assert all(write_samples(tmp_path / "new" / "samples").values())
    folder = tmp_path / "new" / "samples"
    train, dev = (Classification().read(folder / f"{part}.tsv") for part in ("train", "dev"))
    assert (len(train), len(dev)) == (360, 120) and not {*train.texts} & {*dev.texts}
    assert {*train.known_labels} == {*dev.known_labels} == {"negative", "positive"}
    pairs = Classification(text="document", label="words", regression=True).read(folder / "pairs.tsv")
    assert [len(text.split()) for text in pairs.texts] == pairs.labels
    assert Classification(text="body").read(folder / "reviews.jsonl.gz").texts == [*train.texts, *dev.texts]
    assert [len(Tagging().read(folder / f"{part}.conll")) for part in ("train", "dev")] == [40, 10]
    assert Config(**json.loads((folder / "small.json").read_text())).num_hidden_layers == 4


def test_files_of_a_user_stay_as_they_are_and_the_others_are_written(tmp_path):
    (tmp_path / "train.tsv").write_text("mine")
    (tmp_path / "dev.tsv").symlink_to("nowhere")
    written = write_samples(tmp_path)
    assert [name for name, new in written.items() if not new] == ["train.tsv", "dev.tsv"]
    assert (tmp_path / "train.tsv").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {*sample_files()}
    assert not any(write_samples(tmp_path).values())
