"""A classifier's decision traced back to dimensions and tokens, and a feed-forward to its units: sums that add up."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from words import labelled, write_words_checkpoint

import minibert
from minibert.tasks.frozen import Classifier, train
from minibert.tracing.journey import strongest_units
from minibert.tracing.run import Trace

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the film very good"
RECIPES: list[dict[str, Any]] = [
    {"pooling": "cls"},
    {"pooling": "pooler"},
    {"pooling": "max", "layers": (0, 1), "combine": "sum"},
    {"pooling": "mean"},
    {"pooling": "mean", "layers": (-2, -1)},
    {"pooling": "mean", "layers": (0, 1), "combine": "sum"},
    {"pooling": "mean", "layers": (1, 2), "combine": "mean"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("words"), max_position_embeddings=40)


def classifier_of(folder: Path, classes: int = 2, **recipe: Any) -> Classifier:
    texts, labels = labelled()
    names = labels if classes == 2 else [["a", "b", "c"][i % 3] for i in range(len(labels))]
    return train(texts, names, model=folder, folds=0, **recipe)


def traced_by(folder: Path, classifier: Classifier, text: str = TEXT) -> Trace:
    return minibert.trace(minibert.load(folder), minibert.load_tokenizer(folder), text, classifier=classifier)


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def rows_of(page: str, caption: str) -> list[list[str]]:
    """The cells of the table with this caption, as they are read."""
    (table,) = (one for one in re.findall(r"<table.*?</table>", page, re.DOTALL) if f"<caption>{caption}" in one)
    rows = re.findall(r"<tr.*?</tr>", table.partition("<tbody>")[2], re.DOTALL)
    return [
        [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
        for row in rows
    ]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
@pytest.mark.parametrize("classes", [2, 3])
def test_dimensions_and_for_a_mean_tokens_add_up_to_the_logits_of_the_classifier(classes, recipe, folder):
    classifier = classifier_of(folder, classes, **recipe)
    traced = traced_by(folder, classifier)
    made, text = traced.decision, traced.to_html()
    assert made.labels == classifier.labels and len(made.columns) == made.contributions.shape[1]
    assert np.allclose(made.contributions.sum(axis=1) + made.intercepts, made.logits)
    assert np.allclose(made.probabilities, classifier.predict_proba([TEXT])[0], atol=1e-5)
    head = classifier.head.decision_function(classifier.features.transform([TEXT]))[0]
    assert np.allclose(made.logits, head, atol=1e-4)
    assert ("adds to the logit" in text) == (recipe["pooling"] == "mean") == (made.by_token is not None)
    if made.by_token is not None:
        assert made.by_token.shape == (1 if classes == 2 else 3, 6)
        assert np.allclose(made.by_token.sum(axis=1) + made.intercepts, made.logits)
    assert text.count("What makes the logit of") == (1 if classes == 2 else 3)


def test_the_page_lists_the_largest_dimensions_with_their_coefficients_and_their_sum(folder):
    traced = traced_by(folder, classifier_of(folder, pooling="mean"))
    rows = rows_of(traced.to_html(), "The largest contributions to the logit of pos")
    assert len(rows) == 12 + 3
    largest = sorted(traced.decision.contributions[0], key=abs, reverse=True)[:12]
    for (_, coefficient, standardised, adds, _), expected in zip(rows, largest, strict=False):
        most = 0.0006 * (abs(number(coefficient)) + abs(number(standardised)) + 1)  # of rounding
        assert number(coefficient) * number(standardised) == pytest.approx(number(adds), abs=most)
        assert number(adds) == pytest.approx(expected, abs=1e-4)
    assert sum(number(row[3]) for row in rows[:-1]) == pytest.approx(number(rows[-1][3]), abs=2e-3)


def test_names_of_classes_are_escaped_once(folder):
    texts, labels = labelled()
    names = {"neg": "</script><b>&lt;neg</b>", "pos": '\u202e"pos"'}
    classifier = train(texts, [names[label] for label in labels], model=folder, folds=0)
    page = traced_by(folder, classifier).to_html()
    assert html.escape(names["neg"]) in page and "\u202e" not in page and "⟨U+202E⟩&#34;pos&#34;" in page
    assert page.count("</script>") == 2


def test_a_classifier_that_does_not_fit_is_refused(folder):
    encoder, tokenizer = minibert.load(folder), minibert.load_tokenizer(folder)
    classifier = classifier_of(folder, layers=(-2, -1))
    with pytest.raises(ValueError, match="on one text, not on a pair"):
        minibert.trace(encoder, tokenizer, "a", "b", classifier=classifier)
    classifier.features.layers = (-1,)
    with pytest.raises(ValueError, match="reads 48 columns, and this encoder gives 24"):
        minibert.trace(encoder, tokenizer, TEXT, classifier=classifier)
    encoder.pooler, classifier.features.pooling = None, "pooler"
    with pytest.raises(ValueError, match="no pooler"):
        minibert.trace(encoder, tokenizer, TEXT, classifier=classifier)


def test_a_token_adds_what_its_own_final_vector_adds(folder):
    classifier = classifier_of(folder, pooling="mean")
    traced = traced_by(folder, classifier)
    scaler, regression = classifier.head[0], classifier.head[-1]
    vector = traced.hidden_states[-1][4].double().numpy()
    expected = float((regression.coef_ @ ((vector - scaler.mean_) / scaler.scale_))[0]) / 6
    assert traced.decision is not None and traced.decision.by_token is not None
    assert traced.decision.by_token[0, 4] == pytest.approx(expected)


@pytest.mark.parametrize("pooling", ["cls", "mean", "max", "pooler"])
def test_a_masked_token_changes_the_probability_as_a_text_with_the_mask_does(pooling, folder):
    classifier = classifier_of(folder, pooling=pooling)
    traced = traced_by(folder, classifier)
    decided = traced.decision.decided
    words = TEXT.split()
    assert [one.place for one in traced.masked] == [1, 2, 3, 4]
    for one in traced.masked:
        text = " ".join([*words[: one.place - 1], "[MASK]", *words[one.place :]])
        assert one.probability == pytest.approx(classifier.predict_proba([text])[0][decided], abs=1e-5)
        assert one.probability - one.change == pytest.approx(traced.decision.probabilities[decided], abs=1e-5)
    assert len({round(one.probability, 6) for one in traced.masked}) > 1


def test_the_table_of_tokens_has_the_numbers_and_their_sum(folder):
    traced = traced_by(folder, classifier_of(folder, pooling="mean"))
    decided = traced.decision.labels[traced.decision.decided]
    *tokens, intercept, logit = rows_of(traced.to_html(), f"Probability of {decided} with [MASK]")
    assert [row[0] for row in tokens] == traced.tokens
    assert [row[2:4] for row in (tokens[0], tokens[-1])] == [["–", "–"]] * 2
    for one in traced.masked:
        assert [number(cell) for cell in tokens[one.place][2:4]] == pytest.approx(
            [one.probability, one.change], abs=6e-5
        )
    assert sum(number(row[1]) for row in [*tokens, intercept]) == pytest.approx(number(logit[1]), abs=1e-3)


@pytest.mark.parametrize(("layer", "read"), [(1, 0), (2, 1)])
def test_beside_cls_stands_its_attention_in_the_layer_whose_state_is_read(layer, read, folder):
    traced = traced_by(folder, classifier_of(folder, pooling="cls", layers=layer))
    decided = traced.decision.labels[traced.decision.decided]
    shown = [number(row[1]) for row in rows_of(traced.to_html(), f"Probability of {decided} with [MASK]")]
    assert shown == pytest.approx(traced.attention(read, "mean")[0].tolist(), abs=6e-4)
    assert shown != pytest.approx(traced.attention(1 - read, "mean")[0].tolist(), abs=6e-4)
    page = traced_by(folder, classifier_of(folder, pooling="cls", layers=0)).to_html()
    assert "attention of [CLS]" not in page  # embeddings have gathered from nowhere


def test_of_a_long_text_the_first_tokens_are_tried_and_the_page_says_so(folder, monkeypatch):
    classifier = classifier_of(folder, pooling="mean")
    assert "were tried" not in traced_by(folder, classifier).to_html()
    monkeypatch.setattr("minibert.tracing.run.MASKED", 2)
    traced = traced_by(folder, classifier)
    assert [one.place for one in traced.masked] == [1, 2]
    assert "Only the first 2 were tried." in traced.to_html()


def test_an_empty_text_has_no_token_to_mask(folder):
    traced = traced_by(folder, classifier_of(folder, pooling="mean"), "")
    assert traced.masked == [] and "Which tokens decide" in traced.to_html()


# -- units


def test_the_shares_of_all_units_and_the_bias_add_up_to_one(folder):
    encoder = minibert.load(folder)
    traced = minibert.trace(encoder, minibert.load_tokenizer(folder), TEXT)
    for layer, units, own in zip(traced.layers, traced.units, encoder.layers, strict=True):
        total = units.share.sum(dim=-1) + units.rest + units.bias
        assert torch.allclose(total, torch.ones_like(total))
        assert not torch.allclose(total - units.bias, torch.ones_like(total), atol=1e-3)
        weight = own.feed_forward.contract.weight.detach()
        for token in range(len(traced.tokens)):
            unit = int(units.unit[token, 0])
            adds = layer["activation"][token, unit] * weight[:, unit]
            share = (adds @ layer["contract"][token]) / layer["contract"][token].square().sum()
            assert float(units.share[token, 0]) == pytest.approx(float(share), rel=1e-4)
            assert float(units.activation[token, 0]) == float(layer["activation"][token, unit])


def test_the_strongest_units_are_found_whatever_their_sign():
    contract = nn.Linear(4, 2)
    with torch.no_grad():
        contract.weight.copy_(torch.tensor([[4.0, -2.0, 1.0, 0.0], [0.0, 0.0, 0.0, 9.0]]))
        contract.bias.copy_(torch.tensor([1.0, 0.0]))
    units = strongest_units(torch.tensor([[1.0, 1.0, 1.0, 0.0]]), contract)  # adds (4 - 2 + 1 + 1, 0)
    assert units.unit[0, :3].tolist() == [0, 1, 2]
    assert units.share[0].tolist() == [1.0, -0.5, 0.25, 0.0]
    assert units.rest.item() == 0.0 and units.bias.item() == 0.25


def test_a_feed_forward_that_adds_nothing_has_no_shares():
    contract = nn.Linear(3, 2)
    nn.init.zeros_(contract.weight)
    nn.init.zeros_(contract.bias)
    units = strongest_units(torch.ones(1, 3), contract)
    assert units.share.tolist() == [[0.0, 0.0, 0.0]] and units.bias.tolist() == [0.0]
