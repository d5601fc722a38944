"""A trace has the model's own tensors bit for bit; its page has the trace's numbers, and no text becomes part of it."""

from __future__ import annotations

import base64
import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import write_checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st
from words import labelled, write_words_checkpoint

import minibert
from minibert.config import Config
from minibert.heads import MaskedLM
from minibert.model import Encoder
from minibert.tasks.frozen import Classifier, train
from minibert.tasks.masked_text import fill_mask
from minibert.text.tokenizer import TruncationWarning, UnknownTokensWarning
from minibert.tracing import source
from minibert.tracing.data import choose, numbered
from minibert.tracing.journey import merge_words, quadrants, rollout, sides, words
from minibert.tracing.run import Trace

pytestmark = pytest.mark.usefixtures("one_thread")

TEXT = "the film very lovely it good"  # "it" is two pieces
PAIR = ("the film", "a very dull play")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of a few words with a masked language model's head; room for 80 tokens."""
    folder = tmp_path_factory.mktemp("mlm")
    write_words_checkpoint(folder, head="masked-lm", max_position_embeddings=80)
    return folder


@pytest.fixture(scope="module")
def encoder(folder: Path) -> Encoder:
    return minibert.load(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return minibert.load_tokenizer(folder)


@pytest.fixture(scope="module")
def distilbert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words_checkpoint(tmp_path_factory.mktemp("distilbert"), "distilbert")


def data_of(page: str) -> Any:
    """The numbers of a page, read as a browser reads them."""
    found = re.search(r'<script type="application/json" id="trace-data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def unpacked_probs(text: str, *shape: int) -> Any:
    """What packed_probs wrote."""
    return np.frombuffer(base64.b64decode(text), dtype="<u2").reshape(shape) / 65535


def unpacked_vectors(text: str, *shape: int) -> Any:
    """What packed_vectors wrote."""
    return np.frombuffer(base64.b64decode(text), dtype="<f2").reshape(shape)


class Reader(HTMLParser):
    """Elements, ids, links and text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_data(self, data: str) -> None:
        self.text += data


# -- the data


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("texts", [(TEXT,), PAIR, ("",)])
def test_the_tensors_are_the_models_own_bit_for_bit(texts, attention, folder, tokenizer):
    encoder = minibert.load(folder, attention=attention)
    traced = minibert.trace(encoder, tokenizer, *texts)
    batch = tokenizer(*texts)
    with torch.no_grad():
        out = encoder(
            batch.input_ids,
            attention_mask=batch.attention_mask,
            token_type_ids=batch.token_type_ids,
            output_hidden_states=True,
            output_attentions=True,
        )
    assert len(traced.hidden_states) == 3 and len(traced.attentions) == 2
    for ours, theirs in ((traced.hidden_states, out.hidden_states), (traced.attentions, out.attentions)):
        assert all(torch.equal(one, other[0]) for one, other in zip(ours, theirs, strict=True))


def test_the_steps_between_are_those_of_the_modules(encoder, tokenizer):
    traced = minibert.trace(encoder, tokenizer, *PAIR)
    with torch.no_grad():
        assert torch.equal(traced.token_embeddings, encoder.embeddings.token(torch.tensor(traced.ids)))
        assert torch.equal(traced.segment_embeddings, encoder.embeddings.segment(torch.tensor(traced.segments)))
        parts = traced.token_embeddings + traced.segment_embeddings + traced.position_embeddings
        assert torch.equal(traced.embedding_sum, parts)
        assert torch.equal(traced.hidden_states[0], encoder.embeddings.norm(parts))
        for number, (one, layer) in enumerate(zip(traced.layers, encoder.layers, strict=True)):
            x = traced.hidden_states[number]
            assert torch.equal(one.probs, one.scores.softmax(dim=-1))
            assert torch.equal(one.attention_sum, one.attention_output + x)
            assert torch.equal(one.attention_norm, layer.attention_norm(one.attention_sum))
            assert torch.equal(one.feed_forward, layer.feed_forward(one.attention_norm[None])[0])
            assert torch.equal(one.feed_forward_sum, one.feed_forward + one.attention_norm)
            assert torch.equal(one.output, traced.hidden_states[number + 1])
            assert one.activation.shape == (len(traced.tokens), 37)


def test_a_model_in_training_is_traced_without_dropout_and_stays_in_training(folder, tokenizer):
    encoder = minibert.load(folder).train()
    before = minibert.trace(encoder, tokenizer, TEXT)
    assert torch.equal(before.hidden_states[-1], minibert.trace(encoder.eval(), tokenizer, TEXT).hidden_states[-1])
    assert not encoder.training
    encoder.train()
    minibert.trace(encoder, tokenizer, TEXT)
    assert all(module.training for module in encoder.modules())
    assert not any(module._forward_hooks for module in encoder.modules())


def test_pieces_of_a_word_have_one_number_and_words_of_two_texts_do_not_meet():
    assert words([None, 0, 0, 1, None], [0] * 5) == [0, 1, 1, 2, 3]
    assert words([None, 0, None, 0, 0, None], [0, 0, 0, 1, 1, 1]) == [0, 1, 2, 3, 3, 4]
    assert words([None, None], [0, 0]) == [0, 1]


def test_the_first_end_parts_the_two_texts_of_a_pair():
    assert sides([None, 0, None, 0, 0, None]) == [0, 0, 0, 1, 1, 1]
    assert sides([None, None, 0, None]) == [0, 0, 1, 1]  # the first text is empty
    assert sides([None, 0, None, None]) == [0, 0, 0, 1]  # the second
    assert sides([None, 0, None, None, 0, None]) == [0, 0, 0, 1, 1, 1]  # two ends between them


@given(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_merged_attention_sums_keys_and_averages_queries(goes_on, seed):
    groups = np.cumsum([0, *(not same for same in goes_on)]).tolist()
    probs = torch.rand(3, len(groups), len(groups), generator=torch.Generator().manual_seed(seed)).softmax(dim=-1)
    merged = merge_words(probs, groups)
    assert torch.allclose(merged.sum(dim=-1), torch.ones(3, groups[-1] + 1))
    for q in range(groups[-1] + 1):
        for k in range(groups[-1] + 1):
            rows = [i for i, group in enumerate(groups) if group == q]
            columns = [i for i, group in enumerate(groups) if group == k]
            by_hand = probs[:, rows][:, :, columns].sum(dim=2).mean(dim=1)
            assert torch.allclose(merged[:, q, k], by_hand, atol=1e-6)


def test_rollout_is_the_product_of_the_layers_with_the_residual():
    first, second = torch.rand(2, 3, 5, 5).softmax(dim=-1)
    one, both = rollout([first, second])
    by_hand = [0.5 * probs.mean(0) + 0.5 * torch.eye(5) for probs in (first, second)]
    assert torch.allclose(one, by_hand[0])
    assert torch.allclose(both, by_hand[1] @ by_hand[0])
    assert torch.allclose(both.sum(dim=-1), torch.ones(5))


def test_the_shares_of_a_pair_add_up_for_each_text(encoder, tokenizer):
    traced = minibert.trace(encoder, tokenizer, *PAIR)
    shares = quadrants(traced.attention(1, "mean"), traced.segments)
    assert shares["A→A"] + shares["A→B"] == pytest.approx(1)
    assert shares["B→A"] + shares["B→B"] == pytest.approx(1)
    A = traced.segments.count(0)
    assert shares["A→B"] == pytest.approx(float(traced.attention(1, "mean")[:A, A:].sum() / A))
    assert set(quadrants(traced.attention(1, 0)[:A, :A], [0] * A)) == {"A→A"}


def test_masks_are_guessed_as_fill_mask_guesses_them(folder, tokenizer):
    model = minibert.load(folder, head="masked-lm")
    traced = minibert.trace(model, tokenizer, "the [MASK] is [MASK]")
    guesses = fill_mask("the [MASK] is [MASK]", model, 10, tokenizer=tokenizer)
    assert [prediction.guesses for prediction in traced.predictions] == guesses
    assert [traced.tokens[prediction.place] for prediction in traced.predictions] == ["[MASK]", "[MASK]"]


# -- the classifier


RECIPES: list[dict[str, Any]] = [
    {"pooling": "cls"},
    {"pooling": "mean", "layers": (-2, -1)},
    {"pooling": "max", "layers": (0, 1), "combine": "sum"},
    {"pooling": "mean", "layers": (1, 2), "combine": "mean"},
    {"pooling": "pooler"},
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare BERT with a pooler."""
    return write_words_checkpoint(tmp_path_factory.mktemp("plain"))


def check_decision(classifier: Classifier, folder: Path, text: str) -> Trace:
    traced = minibert.trace(minibert.load(folder), minibert.load_tokenizer(folder), text, classifier=classifier)
    made = traced.decision
    assert made is not None
    assert made.labels == classifier.labels
    assert np.allclose(made.contributions.sum(axis=1) + made.intercepts, made.logits)
    assert np.allclose(made.probabilities, classifier.predict_proba([text])[0], atol=1e-5)
    head = classifier.head.decision_function(classifier.features.transform([text]))[0]
    assert np.allclose(made.logits, head, atol=1e-4)
    assert len(made.columns) == made.contributions.shape[1]
    return traced


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_contributions_and_intercept_add_up_to_the_logit_for_every_pooling(recipe, plain):
    texts, labels = labelled()
    traced = check_decision(train(texts, labels, model=plain, folds=0, **recipe), plain, "the film very good")
    page, decision = Reader(traced.to_html()), traced.decision
    assert decision is not None and decision.labels == ["neg", "pos"]
    (logit,), (intercept,), (contributions,) = decision.logits, decision.intercepts, decision.contributions
    assert decision.probabilities[1] == pytest.approx(1 / (1 + np.exp(-logit)))
    of_dimensions = page.text.partition("Which tokens decide")[0]
    shown = [float(number.replace("−", "-")) for number in re.findall(r"[+−]\d+\.\d{4}", of_dimensions)]
    assert shown[:12] == pytest.approx(sorted(contributions, key=abs, reverse=True)[:12], abs=1e-4)
    assert shown[-2:] == pytest.approx([intercept, logit], abs=1e-4)
    assert sum(shown[:-1]) == pytest.approx(shown[-1], abs=2e-3)
    assert "classifier" in page.ids


def test_three_classes_have_a_sum_each(plain):
    texts, labels = labelled()
    labels = [["a", "b", "c"][i % 3] for i in range(len(labels))]
    traced = check_decision(train(texts, labels, model=plain, folds=0), plain, "the film very good")
    assert Reader(traced.to_html()).text.count("What makes the logit of") == 3


def test_names_of_classes_are_escaped_once(plain):
    texts, labels = labelled()
    names = {"neg": "</script><b>&lt;neg</b>", "pos": '\u202e"pos"'}
    classifier = train(texts, [names[label] for label in labels], model=plain, folds=0)
    traced = check_decision(classifier, plain, "the film very good")
    page = traced.to_html()
    reader = Reader(page)
    assert "Here it says" in reader.text and "\u202e" not in page
    assert "What makes the logit of" in reader.text and '⟨U+202E⟩"pos"' in reader.text
    assert names["neg"] in reader.text
    assert reader.tags.count("script") == 2


def test_a_classifier_for_another_width_or_with_a_pair_is_refused(plain, folder, tokenizer, encoder):
    texts, labels = labelled()
    classifier = train(texts, labels, model=plain, folds=0, layers=(-2, -1))
    classifier.features.layers = (-1,)
    with pytest.raises(ValueError, match="reads 48 columns, and this encoder gives 24"):
        minibert.trace(encoder, tokenizer, TEXT, classifier=classifier)
    with pytest.raises(ValueError, match="reads one text, and two were given"):
        minibert.trace(encoder, tokenizer, *PAIR, classifier=classifier)
    classifier.features.pooling = "pooler"
    with pytest.raises(ValueError, match="no pooler"):
        minibert.trace(minibert.load(folder, head="masked-lm"), tokenizer, TEXT, classifier=classifier)


# -- the page


@pytest.mark.parametrize("texts", [(TEXT,), PAIR])
def test_the_numbers_of_the_page_are_those_of_the_model(texts, encoder, tokenizer):
    batch = tokenizer(*texts)
    with torch.no_grad():
        out = encoder(
            batch.input_ids, token_type_ids=batch.token_type_ids, output_hidden_states=True, output_attentions=True
        )
    data = data_of(minibert.trace(encoder, tokenizer, *texts).to_html())
    S, D, H = data["S"], data["D"], data["H"]
    assert data["ids"] == batch.input_ids[0].tolist() and data["tokens"] == batch.tokens[0]
    for layer, probs in enumerate(out.attentions):
        kept = data["attention"][str(layer)]
        assert np.abs(unpacked_probs(kept["heads"], H, S, S) - probs[0].numpy()).max() <= 0.5 / 65535 + 1e-7
        assert np.abs(unpacked_probs(kept["mean"], S, S) - probs[0].mean(0).numpy()).max() <= 0.5 / 65535 + 1e-7
    for layer, state in enumerate(out.hidden_states):
        assert np.array_equal(unpacked_vectors(data["vectors"][f"hidden{layer}"], S, D), state[0].numpy().astype("<f2"))
        assert data["norms"][f"hidden{layer}"] == pytest.approx(state[0].norm(dim=-1).tolist(), rel=1e-4)
    turned = torch.cosine_similarity(out.hidden_states[0][0], out.hidden_states[1][0], dim=-1)
    assert len(data["cosines"]["attention0"]) == S
    assert not np.allclose(data["cosines"]["attention0"], turned)  # of the first half of the layer, not the whole


def test_another_text_has_other_numbers(encoder, tokenizer):
    one, other = (data_of(minibert.trace(encoder, tokenizer, text).to_html()) for text in ("the film", "the book"))
    assert one["attention"] != other["attention"]
    assert one["vectors"]["position"] == other["vectors"]["position"]


def test_the_table_has_every_token_with_its_id_and_its_place_in_the_text(encoder, tokenizer):
    traced = minibert.trace(encoder, tokenizer, "Film  IT")
    page = traced.to_html()
    rows = re.findall(r"<tr>(.*?)</tr>", page[page.index('class="ids"') : page.index('id="embeddings"')], re.DOTALL)[1:]
    cells = [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows]
    assert [row[1] for row in cells] == ["[CLS]", "film", "i", "##t", "[SEP]"]
    assert [int(row[2]) for row in cells] == traced.ids
    assert cells[1][4:] == ["0", "0–4", "Film"]
    assert cells[3][4:] == ["1", "7–8", "T"]


def test_every_link_leads_to_the_line_that_computes_the_step(plain, folder, tokenizer):
    pooled = minibert.trace(minibert.load(plain), tokenizer, TEXT)
    check_links(pooled.to_html(), source.STEPS.keys() - {"masked-lm", "wider embeddings"})
    masked = minibert.trace(minibert.load(folder, head="masked-lm"), tokenizer, "[MASK]")
    check_links(masked.to_html(), source.STEPS.keys() - {"pooler", "wider embeddings"})


def check_links(page: str, steps: set[str]) -> None:
    lines = dict(re.findall(r'<span id="([\w.]+-L\d+)" class="row"><i>\d+</i>(.*?)\n</span>', page, re.DOTALL))
    ids = set(Reader(page).ids)
    linked = {address for address in re.findall(r'href="#(.*?)"', page)}
    assert linked <= ids
    assert len(lines) == len(ids & set(lines)) > 200
    for step in steps:
        line = source.line_of(step)
        assert line.anchor in linked, step
        assert source.STEPS[step][1] in Reader(lines[line.anchor]).text, step


def test_annotated_pages_are_linked_where_there_are_any(encoder, tokenizer):
    traced = minibert.trace(encoder, tokenizer, TEXT)
    line = source.line_of("softmax")
    assert f'href="../built%20here/model.html#L{line.number}"' in traced.to_html(annotated="../built here")
    assert "model.html" not in traced.to_html()


def test_the_page_asks_nothing_of_the_network(encoder, tokenizer):
    reader = Reader(minibert.trace(encoder, tokenizer, TEXT).to_html())
    addresses = [value for one in reader.attributes for name, value in one.items() if name in ("src", "href")]
    assert all(address.startswith(("#", "data:,")) for address in addresses)
    assert len(reader.ids) == len(set(reader.ids))


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!-- <img src=x onerror=alert(1)> --> ]]> {{data}} {{script}} &amp; &lt;",
    "\"quotes\" 'single' `back` \\u003c ${x}",
    "nul \x00 bell \x07 escape \x1b delete \x7f next \x85 line \u2028 para \u2029",
    "مرحبا עברית \u202eoverride\u202c emoji 😀 👨‍👩‍👧",
]


@pytest.mark.filterwarnings("ignore::minibert.text.tokenizer.UnknownTokensWarning")
@pytest.mark.filterwarnings("ignore::minibert.text.tokenizer.TruncationWarning")
@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_becomes_part_of_the_page(text, encoder, tokenizer):
    harmless, hostile = (
        minibert.trace(encoder, tokenizer, *pair, model=pair[0]).to_html() for pair in (("a b", "c"), (text, text))
    )
    allowed = set(Reader(harmless).tags)
    reader = Reader(hostile)
    assert set(reader.tags) <= allowed
    assert reader.tags.count("script") == 2 and reader.tags.count("img") == 0
    assert data_of(hostile)["tokens"][0] == "[CLS]"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]", hostile)
    assert hostile.count("<!--") == 0


def test_a_text_of_any_direction_is_isolated(encoder, tokenizer):
    with pytest.warns(UnknownTokensWarning):
        page = minibert.trace(encoder, tokenizer, "مرحبا").to_html()
    assert '<blockquote class="sentence"><bdi dir="auto">مرحبا</bdi></blockquote>' in page


def test_in_jupyter_the_page_stands_in_a_frame(encoder, tokenizer):
    traced = minibert.trace(encoder, tokenizer, 'say "good"')
    (frame,) = (one for one in Reader(traced._repr_html_()).attributes if "srcdoc" in one)
    assert frame["srcdoc"] == traced.to_html()


def test_64_tokens_of_six_layers_and_twelve_heads_fit_in_6_megabytes(tokenizer):
    config = Config(vocab_size=100, hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=8)
    traced = minibert.trace(Encoder(config), tokenizer, " ".join(["film"] * 62))
    page = traced.to_html()
    assert len(traced.tokens) == 64
    assert 4_000_000 < len(page.encode()) < 6_000_000
    assert data_of(page)["layers"] == list(range(6)) and data_of(page)["heads"] == list(range(12))


def test_a_long_text_gets_fewer_heads_and_layers_and_says_so(encoder, tokenizer, monkeypatch):
    traced = minibert.trace(encoder, tokenizer, " ".join(["film"] * 78))
    assert choose(traced).message == (
        "Of the 80 tokens this page has the vectors of the first 64 tokens; the queries and keys of the first 24. "
        "Norms, mean and rollout are of all."
    )
    monkeypatch.setattr("minibert.tracing.data.LIMIT", 100_000)
    choice = choose(traced)
    assert choice.layers == [1] and choice.heads == [0, 1, 2]
    assert "this page has layers 1 of 0 to 1 (--layers chooses others)" in choice.message
    page = traced.to_html()
    assert choice.message in Reader(page).text
    data = data_of(page)
    assert list(data["attention"]) == ["1"]
    assert {"hidden0", "hidden1", "hidden2"} == {name for name in data["vectors"] if name.startswith("hidden")}
    assert len(unpacked_vectors(data["vectors"]["hidden2"], 64, 24)) == 64
    assert choose(traced, layers=[0, 1], heads=[2]).heads == [2]
    assert choose(traced, layers=[1, 0, 0]).layers == [0, 1]


def test_runs_of_numbers_are_written_short():
    assert numbered([0, 1, 2, 3]) == "0 to 3"
    assert numbered([0, 2, 3, 5, 6, 7]) == "0, 2, 3, 5 to 7"


@pytest.mark.parametrize(
    "choices, match",
    [
        ({"layers": [2]}, "layers has 2; the model has 2 layers: 0 to 1"),
        ({"heads": [-1]}, "heads has -1; the model has 3 heads: 0 to 2"),
        ({"heads": []}, "heads is empty; name at least one of 0 to 2"),
    ],
)
def test_layers_and_heads_that_are_not_there_are_refused(choices, match, encoder, tokenizer):
    with pytest.raises(ValueError, match=match):
        minibert.trace(encoder, tokenizer, TEXT).to_html(**choices)


# -- texts and models of other kinds


def test_distilbert_has_no_segments_and_a_pair_of_it_says_so(distilbert):
    traced = minibert.trace(minibert.load(distilbert), minibert.load_tokenizer(distilbert), *PAIR)
    assert traced.segment_embeddings is None and traced.pooled is None
    assert "no segments" in traced.notes[0]
    page = traced.to_html()
    assert "segment" not in data_of(page)["vectors"] and 'scope="col">segment' not in page
    assert sum(data_of(page)["attention"]["0"]["quadrants"]["mean"].values()) == pytest.approx(2)


def test_one_dimension_that_drowns_the_others_is_named_and_only_then(encoder, tokenizer):
    drowned = copy.deepcopy(encoder)
    with torch.no_grad():
        drowned.layers[-1].feed_forward_norm.weight[7] = 500.0
    words = "One of the 24 numbers drowns the others: dimension 7 alone holds 100 %"
    assert words in " ".join(Reader(minibert.trace(drowned, tokenizer, TEXT).to_html()).text.split())
    assert "drowns" not in minibert.trace(encoder, tokenizer, TEXT).to_html()


def test_the_framing_is_that_of_the_row(encoder: Encoder, tokenizer: Any) -> None:
    assert minibert.trace(encoder, tokenizer, TEXT).framing == "[CLS] text [SEP]"
    assert minibert.trace(encoder, tokenizer, *PAIR).framing == "[CLS] text A [SEP] text B [SEP]"


def test_no_header_of_a_table_is_empty(encoder, tokenizer):
    assert not re.search(r"<th[^>]*>\s*</th>", minibert.trace(encoder, tokenizer, TEXT).to_html())


def test_a_relative_with_narrow_tables_shared_layers_no_segments_and_no_pooler_is_traced(tokenizer):
    config = Config(
        vocab_size=100,
        embedding_size=8,
        hidden_size=24,
        num_hidden_layers=3,
        shared_layers=(0, 0, 0),
        num_attention_heads=3,
        intermediate_size=37,
        type_vocab_size=0,
    )
    encoder = Encoder(config, pooler=False).eval()
    traced = minibert.trace(encoder, tokenizer, *PAIR)
    assert len(encoder.layers) == 1 and len(traced.layers) == 3 and traced.pooled is None
    assert not torch.equal(traced.attentions[0], traced.attentions[2])
    page, data = traced.to_html(), data_of(traced.to_html())
    assert (data["E"], data["D"], data["sides"]) == (8, 24, traced.sides)
    assert len(unpacked_vectors(data["vectors"]["token"], data["S"], 8)) == data["S"]
    text = " ".join(Reader(page).text.split())
    assert "1 set of weights for all 3" in text and "wider embeddings" in text
    check_links(page, source.STEPS.keys() - {"segment embeddings", "pooler", "masked-lm"})


def test_an_empty_text_and_a_mask_that_nobody_fills_are_explained(encoder, tokenizer):
    empty = minibert.trace(encoder, tokenizer, "")
    assert empty.tokens == ["[CLS]", "[SEP]"]
    assert "The text is empty" in empty.notes[0]
    assert "(empty)" in empty.to_html()
    masked = minibert.trace(encoder, tokenizer, "the [MASK]")
    assert "no masked language model's task head" in masked.notes[0]
    assert masked.predictions == []


def test_a_text_that_is_too_long_is_cut_with_a_warning_or_refused(encoder, tokenizer):
    with pytest.warns(TruncationWarning):
        traced = minibert.trace(encoder, tokenizer, "film " * 100)
    assert len(traced.tokens) == 80
    assert "has 102 tokens, and 80 are read" in traced.notes[0]
    with pytest.raises(ValueError, match="102 tokens, more than max_length 80"):
        minibert.trace(encoder, tokenizer, "film " * 100, truncation="error")


def test_what_is_no_text_and_no_encoder_is_refused(encoder, tokenizer, folder, tmp_path):
    for given_text, match in ((None, "text is of type NoneType"), (["a"], "text is of type list")):
        with pytest.raises(TypeError, match=match):
            minibert.trace(encoder, tokenizer, given_text)
    with pytest.raises(TypeError, match="text_b is of type int"):
        minibert.trace(encoder, tokenizer, "a", 1)
    with pytest.raises(TypeError, match="encoder is of type str"):
        minibert.trace("name", tokenizer, "a")
    fresh = minibert.load(folder, head="masked-lm", new_head=True)
    assert isinstance(fresh, MaskedLM)
    with pytest.raises(ValueError, match="never trained"):
        minibert.trace(fresh, tokenizer, "the [MASK]")
    write_checkpoint(tmp_path, "bert", vocab_size=4)
    with pytest.raises(ValueError, match="vocab_size"):
        minibert.trace(minibert.load(tmp_path), tokenizer, "good")
