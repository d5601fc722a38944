"""`minibert trace` as a command: pages and pictures, figures, and requests that cannot be met.

A classifier's decision is traced back to dimensions and tokens, and a feed-forward to its units: sums that add up.
"""

import html
import json
import re
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from support.words import labelled, write_words_checkpoint
from torch import nn

import minibert
from minibert.prediction.frozen import Classifier, train
from minibert.prediction.reader import open_reader
from minibert.tracing import trace as command
from minibert.tracing.journey import strongest_units
from minibert.tracing.trace import Trace

TEXT = "the film very lovely it good"


@pytest.fixture
def run(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `minibert trace` in an empty folder: its output; with status 2 its error."""
    monkeypatch.chdir(tmp_path)
    return partial(run, "trace")


def figures(out: str) -> Any:
    return json.loads(out.splitlines()[-1])


def test_the_page_of_a_text_is_written_and_its_figures_printed(run, checkpoint):
    options = ("--model", checkpoint, "--out", "page.html", "--layers", "1", "--heads", "0,2")
    out = run(TEXT, *options, "--json")
    found, page = figures(out), Path("page.html").read_text(encoding="utf-8")
    assert found["bytes"] == len(page.encode()) and found["out"] == "page.html"
    assert found["tokens"] == ["[CLS]", "the", "film", "very", "lovely", "i", "##t", "good", "[SEP]"]
    assert (found["page_layers"], found["page_heads"]) == ([1], [0, 2])
    assert "this page has layers 1 of 0 to 1 (--layers chooses others); heads 0, 2 of 0 to 2" in " ".join(out.split())
    assert str(checkpoint) not in page and list(Path().iterdir()) == [Path("page.html")]  # the folder's name is enough
    assert figures(run("the film", "a book", "--model", checkpoint, "--json"))["segments"] == [0, 0, 0, 0, 1, 1, 1]


def test_a_masked_language_model_is_recognised_and_guesses(run, tmp_path):
    model = write_words_checkpoint(tmp_path / "model", "distilbert", head="masked-lm")
    (mask,) = figures(run("the [MASK] is", "--model", model, "--json"))["masks"]
    assert mask["place"] == 2 and len(mask["guesses"]) == 10


def test_the_pooler_stays_where_a_checkpoint_has_it_beside_the_head(tmp_path):
    write_words_checkpoint(tmp_path, head="pretraining")
    model = command.model_for(str(tmp_path))
    traced = minibert.trace(model, minibert.load_tokenizer(tmp_path), "the [MASK]")
    assert traced.pooled is not None and len(traced.predictions) == 1


def test_a_classifier_brings_its_own_model_and_decides(run, checkpoint, tmp_path):
    train(*labelled(), model=str(checkpoint), folds=0, pooling="mean").save(tmp_path / "saved")
    found = figures(run("the film very good", "--classifier", tmp_path / "saved", "--json"))
    (expected,) = Classifier.load(tmp_path / "saved").predict_proba(["the film very good"])
    assert found["model"] == str(checkpoint) and list(found["probabilities"]) == ["neg", "pos"]
    assert list(found["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)


@pytest.mark.parametrize("head", ["0", "mean", "rollout"])
def test_pictures_show_the_attention_of_the_layer_and_head(head, run, checkpoint, monkeypatch):
    pytest.importorskip("matplotlib", reason="needs matplotlib, of the extra tutorials")
    drawn = Mock(wraps=command.heat_map)
    monkeypatch.setattr(command, "heat_map", drawn)
    options = ("--png", "a.png", "--svg", "a.svg", "--layer", 0, "--head", head, "--words", "--json")
    out = run(f"{TEXT} $ $", "--model", checkpoint, *options)  # matplotlib must read no formula
    assert figures(out)["pictures"] == ["a.png", "a.svg"]
    assert Path("a.png").read_bytes().startswith(b"\x89PNG") and "<svg" in Path("a.svg").read_text(encoding="utf-8")
    traced = minibert.trace(minibert.load(checkpoint), minibert.load_tokenizer(checkpoint), f"{TEXT} $ $")
    (matrix, rows, columns), more = drawn.call_args
    assert np.array_equal(matrix, traced.attention(0, head, merge=True).numpy())
    assert rows == columns == ["[CLS]", "the", "film", "very", "lovely", "it", "good", r"\$", r"\$", "[SEP]"]
    assert more["title"] == f"layer 0, {'head 0' if head == '0' else head}"


def test_annotated_pages_are_linked_where_make_annotated_put_them(run, checkpoint, tmp_path):
    def linked(page, *options):
        run(TEXT, "--model", checkpoint, "--out", page, *options)
        return re.findall(r'href="([^"]*model.html)#L', Path(page).read_text(encoding="utf-8"))[:1]

    assert linked("plain.html") == []
    (tmp_path / "build/annotated").mkdir(parents=True)
    Path("build/annotated/model.html").touch()
    assert linked("build/page.html") == ["annotated/model.html"]
    assert linked("page.html", "--annotated", "build/annotated") == ["build/annotated/model.html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], r"--out FILE.html, --png FILE.png or --svg FILE.svg"),
        (["--out", "page.txt"], r"page\.txt .*\.html"),
        (["--png", "page.svg"], r"page\.svg .*\.png"),
        (["--out", "none/page.html"], r"none/page\.html .*none"),
        (["--out", "a.html", "--layers", "2"], r"layers .*\[2\].* 0 to 1\b"),
        (["--svg", "a.svg", "--layer", "2"], r"layer is 2\b.*head is mean.* 0 to 1\b.*-1"),
        (["--out", "a.html", "--annotated", "none"], r"--annotated .*none.*model\.html"),
        (["--out", "a.html", "--truncation", "cut"], "truncation is 'cut'"),
        (["--out", "a.html", "--classifier", "none"], "none"),
    ],
)
def test_a_request_that_cannot_be_met_is_answered_in_one_line(options, message, run, checkpoint):
    error = run(TEXT, "--model", checkpoint, *options, status=2)
    assert re.search(message, error) and error.count("\n") == 1
    assert not list(Path().iterdir())


# -- the decision of a classifier

SHORT = "the film very good"
RECIPES: list[dict[str, Any]] = [
    {"pooling": "cls"},
    {"pooling": "pooler"},
    {"pooling": "max", "layers": (0, 1), "combine": "sum"},
    {"pooling": "mean"},
    {"pooling": "mean", "normalize": True},
    {"pooling": "mean", "layers": (-2, -1)},
    {"pooling": "mean", "layers": (0, 1), "combine": "sum"},
    {"pooling": "mean", "layers": (1, 2), "combine": "mean"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"), max_position_embeddings=40)


def classified(folder: Path, text: str = SHORT, names: tuple[str, ...] = ("neg", "pos"), **recipe: Any) -> Any:
    """A classifier of these labels, and its decision on a text traced."""
    texts, labels = labelled()
    given = [names[0 if label == "neg" else 1 + row // 2 % (len(names) - 1)] for row, label in enumerate(labels)]
    classifier = train(texts, given, model=folder, folds=0, **recipe)
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    return classifier, minibert.trace(encoder, tokenizer, text, classifier=classifier)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def rows_of(traced: Trace, caption: str) -> list[list[str]]:
    """The cells of the table of the page with this caption, as they are read."""
    tables = re.findall(r"<table.*?</table>", traced.to_html(), re.DOTALL)
    (table,) = (one for one in tables if f"<caption>{caption}" in one)
    rows = re.findall(r"<tr.*?</tr>", table.partition("<tbody>")[2], re.DOTALL)
    cells = [re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL) for row in rows]
    return [[re.sub(r"<.*?>", "", cell).strip() for cell in row] for row in cells]


@pytest.mark.parametrize(
    ("names", "recipe"),
    [*((("neg", "pos"), recipe) for recipe in RECIPES), (("a", "b", "c"), {"pooling": "mean"})],
    ids=str,
)
def test_dimensions_and_for_a_mean_tokens_add_up_to_the_logits_of_the_classifier(names, recipe, folder):
    classifier, traced = classified(folder, names=names, **recipe)
    made, logits = traced.decision, len(names) if len(names) > 2 else 1
    assert made.labels == list(names) and made.contributions.shape == (logits, len(made.columns))
    assert np.allclose(made.contributions.sum(axis=1) + made.intercepts, made.logits)
    assert np.allclose(made.probabilities, classifier.predict_proba([SHORT])[0], atol=1e-5)
    assert np.allclose(made.logits, classifier.head.decision_function(made.vector[None].numpy())[0])
    assert (recipe["pooling"] == "mean") == (made.by_token is not None)
    if made.by_token is not None:
        assert made.by_token.shape == (logits, 6)
        assert np.allclose(made.by_token.sum(axis=1) + made.intercepts, made.logits)
    assert traced.to_html().count("What makes up the logit of") == logits


def test_the_page_lists_the_largest_dimensions_with_their_coefficients_and_their_sum(folder):
    _, traced = classified(folder, pooling="mean")
    rows = rows_of(traced, "The largest contributions to the logit of pos")
    made, parts = traced.decision, traced.decision.contributions[0]
    for (_, *shown, _), d in zip(rows[:12], np.argsort(-abs(parts))[:12], strict=True):
        expected = (made.coefficients[0, d], made.standardised[d], parts[d])
        assert [number(cell) for cell in shown] == pytest.approx(expected, abs=6e-4)
    assert sum(number(row[3]) for row in rows[:-1]) == pytest.approx(number(rows[-1][3]), abs=2e-3) and len(rows) == 15


def test_names_of_classes_are_escaped_once(folder):
    names = ("</script><b>&lt;neg</b>", '\u202e"pos"')
    page = classified(folder, names=names)[1].to_html()
    assert html.escape(names[0]) in page and "\u202e" not in page and "⟨U+202E⟩&#34;pos&#34;" in page
    assert page.count("</script>") == 2


def test_a_classifier_that_does_not_fit_is_refused(folder):
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    classifier, _ = classified(folder, pooling="cls", layers=(-2, -1))
    with pytest.raises(ValueError, match="pair"):
        minibert.trace(encoder, tokenizer, "a", "b", classifier=classifier)
    classifier.features.layers = (-1,)
    with pytest.raises(ValueError, match=r"\b48 .* 24\b"):
        minibert.trace(encoder, tokenizer, SHORT, classifier=classifier)


@pytest.mark.parametrize("dimensions", [None, 7])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_a_masked_token_changes_the_probability_as_a_text_with_the_mask_does(pooling, dimensions, folder):
    classifier, traced = classified(folder, pooling=pooling, dimensions=dimensions)
    decided, words = traced.decision.decided, SHORT.split()
    texts = [SHORT, *(" ".join([*words[:i], "[MASK]", *words[i + 1 :]]) for i in range(len(words)))]
    whole, *without = classifier.predict_proba(texts)[:, decided]
    assert [one.place for one in traced.masked] == [1, 2, 3, 4] and len({round(p, 6) for p in without}) > 1
    assert [one.probability for one in traced.masked] == pytest.approx(without, abs=1e-5)
    assert [one.change for one in traced.masked] == pytest.approx([p - whole for p in without], abs=1e-5)


def table_of_tokens(traced: Trace) -> list[list[str]]:
    return rows_of(traced, f"Probability of {traced.decision.labels[traced.decision.decided]} with [MASK]")


def test_the_table_of_tokens_has_the_numbers_and_their_sum(folder):
    _, traced = classified(folder, pooling="mean")
    *tokens, intercept, logit = table_of_tokens(traced)
    assert [row[0] for row in tokens] == traced.tokens and tokens[0][2:4] == tokens[-1][2:4] == ["–", "–"]
    for row, one in zip(tokens[1:-1], traced.masked, strict=True):
        assert [number(cell) for cell in row[2:4]] == pytest.approx([one.probability, one.change], abs=6e-5)
    assert sum(number(row[1]) for row in [*tokens, intercept]) == pytest.approx(number(logit[1]), abs=1e-3)


@pytest.mark.parametrize(("layer", "read"), [(1, 0), (2, 1)])
def test_beside_cls_stands_its_attention_in_the_layer_whose_state_is_read(layer, read, folder):
    _, traced = classified(folder, pooling="cls", layers=layer)
    shown = [number(row[1]) for row in table_of_tokens(traced)]
    assert shown == pytest.approx(traced.attention(read, "mean")[0].tolist(), abs=6e-4)
    assert shown != pytest.approx(traced.attention(1 - read, "mean")[0].tolist(), abs=6e-4)
    _, embeddings = classified(folder, pooling="cls", layers=0)  # they have gathered from nowhere
    assert "attention of [CLS]" not in embeddings.to_html()


@pytest.mark.parametrize(("text", "places"), [(SHORT, [1, 2]), ("the film", [1, 2]), ("", [])])
def test_of_a_long_text_the_first_tokens_are_tried_and_the_page_says_so(text, places, folder, monkeypatch):
    for name, most in (("MASKED", 2), ("MOST", 1)):
        monkeypatch.setattr(f"minibert.tracing.ablation.{name}", most)
    _, traced = classified(folder, text, pooling="mean")
    assert [one.place for one in traced.masked] == places
    assert ("Only the first 2 were tried." in traced.to_html()) == (text == SHORT)


# -- units


def test_the_shares_of_all_units_and_the_bias_add_up_to_one(folder):
    encoder = minibert.load(folder)
    traced = minibert.trace(encoder, minibert.load_tokenizer(folder), SHORT)
    for layer, units, own in zip(traced.layers, traced.units, encoder.layers, strict=True):
        total = units.share.sum(dim=-1) + units.rest + units.bias
        assert torch.allclose(total, torch.ones_like(total)) and (units.bias.abs() > 1e-3).any()
        unit, out = units.unit[:, 0], layer["contract"]  # the strongest unit of each token
        activation = layer["activation"].gather(1, unit[:, None])
        adds = activation * own.feed_forward.contract.weight.detach().T[unit]  # (S,D)
        assert torch.allclose(units.share[:, 0].float(), (adds * out).sum(-1) / out.square().sum(-1), rtol=1e-3)
        assert torch.equal(units.activation[:, :1].float(), activation)


def test_the_strongest_units_are_found_whatever_their_sign_and_of_zeros_there_are_no_shares():
    contract = nn.Linear(4, 2)
    contract.weight.data = torch.tensor([[4.0, -2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 9.0]])
    contract.bias.data = torch.tensor([1.0, 0.0])
    units = strongest_units(torch.tensor([[1.0, 1.0, 1.0, 0.0]]), contract)  # adds (4 - 2 + 1 + 1, 0)
    assert units.unit[0, :3].tolist() == [0, 1, 2] and units.share[0].tolist() == [1.0, -0.5, 0.25, 0.0]
    assert (units.rest.item(), units.bias.item()) == (0.0, 0.25)
    contract.weight.data, contract.bias.data = torch.zeros(2, 4), torch.zeros(2)
    units = strongest_units(torch.ones(1, 4), contract)
    assert units.share.tolist() == [[0.0, 0.0, 0.0, 0.0]] and units.bias.tolist() == [0.0]


# -- task heads


@pytest.mark.parametrize("family", ["bert", "distilbert"])  # with the pooler, and with a first layer of its own
@pytest.mark.parametrize("labels", [2, 3])
def test_the_decision_of_a_task_head_adds_up_and_is_that_of_predict(family, labels, tmp_path):
    sizes = {"num_labels": labels, "max_position_embeddings": 40}
    write_words_checkpoint(tmp_path, family, "sequence-classification", **sizes)
    reader = open_reader(tmp_path, device="cpu")
    traced = minibert.trace(reader.model.encoder, reader.tokenizer, SHORT, classifier=reader)
    made, (expected,) = traced.decision, minibert.predict(reader, [SHORT])
    assert made.labels == list(expected["probabilities"])
    assert np.allclose(made.probabilities, list(expected["probabilities"].values()), atol=1e-6)
    assert np.allclose(made.contributions.sum(axis=1) + made.intercepts, made.logits)
    assert np.allclose(np.exp(made.logits) / np.exp(made.logits).sum(), made.probabilities)
    (masked,) = minibert.predict(reader, ["the film [MASK] good"])
    assert traced.masked[2].probability == pytest.approx(masked["probabilities"][expected["label"]], abs=1e-6)
    html = traced.to_html()
    assert html.count("What makes up the logit of") == labels
    assert "The task head reads a vector" in html and "SequenceClassification in minibert/heads.py" in html
    assert "× standardised" not in html and "Logistic regression" not in html


@pytest.mark.parametrize("head", ["token-classification", "question-answering", "regression"])
def test_what_has_no_label_for_a_text_is_refused_with_the_way_out(head, tmp_path):
    name, labels = ("sequence-classification", 1) if head == "regression" else (head, 2)
    reader = open_reader(write_words_checkpoint(tmp_path, head=name, num_labels=labels), device="cpu")
    with pytest.raises(ValueError, match="minibert predict"):
        minibert.trace(reader.model.encoder, reader.tokenizer, SHORT, classifier=reader)


def test_a_task_head_explains_its_own_encoder_alone(folder, tmp_path):
    reader = open_reader(write_words_checkpoint(tmp_path, head="sequence-classification"), device="cpu")
    with pytest.raises(ValueError, match=r"encoder.*classifier"):
        minibert.trace(minibert.load(folder), reader.tokenizer, SHORT, classifier=reader)
