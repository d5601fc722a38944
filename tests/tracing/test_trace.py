"""A trace has the model's own tensors bit for bit; its page has the trace's numbers, and no text becomes part of it."""

import base64
import html
import inspect
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.words import write_words_checkpoint

import minibert
from minibert.tasks.masked_text import fill_mask
from minibert.tracing import numbers
from minibert.tracing import page as pages
from minibert.tracing.journey import Journey, merge_words, quadrants, rollout
from minibert.tracing.trace import Trace
from minibert.utils import templates

TEXT = "the film very lovely it good"  # "it" is two pieces
PAIR = ("the film", "a very dull play")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT of a few words with a masked language model's head, for up to 80 tokens."""
    return write_words_checkpoint(tmp_path_factory.mktemp("mlm"), head="masked-lm", max_position_embeddings=80)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> minibert.Encoder:
    return minibert.load(folder)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return minibert.load_tokenizer(folder)


def data_of(page: str) -> Any:
    """The numbers of a page, read as a browser reads them."""
    return json.loads(re.findall(r'<script type="application/json" id="trace-data">(.*?)</script>', page, re.DOTALL)[0])


def unpacked(text: str, dtype: str, *shape: int) -> Any:
    return np.frombuffer(base64.b64decode(text), dtype=dtype).reshape(shape)


class Reader(HTMLParser):
    """Elements with their attributes, and the text, of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements = []
        self.text = ""
        self.feed(page)
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str | None]:
        return [attributes[name] for _, attributes in self.elements if name in attributes]


# -- the data


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("texts", [(TEXT,), PAIR, ("",)])
def test_the_tensors_are_the_models_own_bit_for_bit(texts, attention, folder, tokenizer):
    encoder, batch = minibert.load(folder, attention=attention).train(), tokenizer(*texts)
    traced = minibert.trace(encoder, tokenizer, *texts)
    assert all(module.training and not module._forward_hooks for module in encoder.modules())
    with torch.no_grad():
        out = encoder.eval()(**batch, output_hidden_states=True, output_attentions=True)
    for ours, theirs in ((traced.hidden_states, out.hidden_states), (traced.attentions, out.attentions)):
        assert all(torch.equal(one, other[0]) for one, other in zip(ours, theirs, strict=True)) and len(ours) >= 2


@pytest.mark.parametrize(
    ("word_ids", "sides", "words"),
    [
        ([None, 0, None, 0, 0, None], [0, 0, 0, 1, 1, 1], [0, 1, 2, 3, 3, 4]),
        ([None, None, 0, None], [0, 0, 1, 1], [0, 1, 2, 3]),  # the first text is empty
        ([None, 0, None, None], [0, 0, 0, 1], [0, 1, 2, 3]),  # the second
        ([None, 0, 0, None, None, 0, None], [0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 2, 3, 4, 5]),  # two ends between them
    ],
)
def test_pieces_of_a_word_have_one_number_and_the_first_end_parts_two_texts(word_ids, sides, words):
    row = SimpleNamespace(word_ids=word_ids, tokens=word_ids, text_b="second", sides=sides)
    assert (Journey.sides.fget(row), Journey.words.fget(row)) == (sides, words)


@pytest.mark.parametrize("words", [[0, 1, 2], [0, 0, 0], [0, 1, 1, 2, 2, 2, 3]])
def test_merged_attention_sums_keys_and_averages_queries(words):
    probs = torch.rand(3, len(words), len(words)).softmax(dim=-1)
    _, starts, counts = np.unique(words, return_index=True, return_counts=True)
    by_hand = np.add.reduceat(np.add.reduceat(probs.numpy(), starts, axis=2), starts, axis=1) / counts[:, None]
    assert np.allclose(merge_words(probs, words), by_hand, atol=1e-6) and np.allclose(by_hand.sum(axis=-1), 1)


def test_rollout_is_the_product_of_the_layers_and_the_shares_of_a_pair_add_up_for_each_text():
    layers = torch.rand(2, 3, 5, 5).softmax(dim=-1)
    one, both = (0.5 * probs.mean(0) + 0.5 * torch.eye(5) for probs in layers)
    assert all(map(torch.allclose, rollout(list(layers)), (one, both @ one)))
    shares = quadrants(torch.tensor([[0.5, 0.25, 0.25], [0.75, 0.25, 0.0], [0.0, 0.5, 0.5]]), [0, 0, 1])
    assert shares == pytest.approx({"A→A": 0.875, "A→B": 0.125, "B→A": 0.5, "B→B": 0.5})
    assert quadrants(torch.eye(2), [0, 0]) == {"A→A": 1.0}


def test_masks_are_guessed_as_fill_mask_guesses_them(folder, tokenizer):
    model, text = minibert.load(folder, head="masked-lm"), "the [MASK] is [MASK]"
    traced = minibert.trace(model, tokenizer, text)
    assert [one.guesses for one in traced.predictions] == fill_mask(text, model, 10, tokenizer=tokenizer)
    assert [traced.tokens[one.place] for one in traced.predictions] == ["[MASK]", "[MASK]"]


# -- the page


@pytest.mark.parametrize(("texts", "row"), [((TEXT,), "[CLS] text [SEP]"), (PAIR, "[CLS] text A [SEP] text B [SEP]")])
def test_the_numbers_of_the_page_and_the_places_of_special_tokens_are_those_of_the_model(
    texts, row, encoder, tokenizer
):
    traced = minibert.trace(encoder, tokenizer, *texts)
    page = traced.to_html()
    assert re.search(rf"equation ?{re.escape(row)} ?computed at", Reader(page).text)
    assert Reader(traced._repr_html_()).values("srcdoc") == [page]  # in Jupyter it stands in a frame
    data = data_of(page)
    S, D, H = data["S"], data["D"], data["H"]
    assert data["ids"] == traced.ids and data["tokens"] == traced.tokens
    for layer, probs in enumerate(traced.attentions):
        for name, shape, matrix in (("heads", (H, S, S), probs), ("mean", (S, S), probs.mean(0))):
            shown = unpacked(data["attention"][str(layer)][name], "<u2", *shape) / 65535
            assert np.abs(shown - matrix.numpy()).max() <= 0.5 / 65535 + 1e-7
    for layer, state in enumerate(traced.hidden_states):
        shown = unpacked(data["vectors"][f"hidden{layer}"], "<f2", S, D)
        assert np.array_equal(shown, state.numpy().astype("<f2"))
        assert data["norms"][f"hidden{layer}"] == pytest.approx(state.norm(dim=-1).tolist(), rel=1e-4)
    turned = torch.cosine_similarity(traced.hidden_states[0], traced.layers[0]["attention norm"], dim=-1)
    assert data["cosines"]["attention0"] == pytest.approx(turned.tolist(), rel=1e-4)  # of the first half of the layer


def test_the_page_has_the_queries_and_keys_of_the_chosen_heads_alone(encoder, tokenizer):
    traced = minibert.trace(encoder, tokenizer, TEXT)
    whole, part = (
        numbers.page_data(traced, numbers.select(traced, heads=heads))["pairs"]["1"] for heads in (None, [2])
    )
    assert len(whole["queries"]) == pytest.approx(3 * len(part["queries"]), abs=4) and whole["log_sums"] is None


@pytest.fixture(scope="module")
def modern(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A ModernBERT and its tokenizer: norms first, rotation, and layers 1 and 2 read two tokens to each side."""
    folder = tmp_path_factory.mktemp("modern")
    sizes = {"num_hidden_layers": 4, "local_attention": 4, "initializer_range": 0.3}
    write_words_checkpoint(folder, "modernbert", "masked-lm", **sizes)
    return minibert.load(folder, head="masked-lm"), minibert.load_tokenizer(folder)


def test_the_queries_and_keys_of_a_page_give_its_attention_where_positions_turn_them_and_windows_end(modern):
    traced = minibert.trace(*modern, TEXT)
    data = data_of(traced.to_html())
    S, H, W = data["S"], data["H"], data["D"] // data["H"]
    assert S > 6 and data["reach"] == {"1": 2, "2": 2}
    distance = np.abs(np.arange(S)[:, None] - np.arange(S))
    for layer, probs in enumerate(traced.attentions):
        q, k = (
            torch.from_numpy(unpacked(data["pairs"][str(layer)][name], "<f2", H, S, W).astype("f4"))
            for name in ("queries", "keys")
        )
        scores = (q @ k.mT / W**0.5).masked_fill(
            torch.from_numpy(distance > data["reach"].get(str(layer), S)), -torch.inf
        )
        assert torch.allclose(scores.softmax(dim=-1), probs, atol=2e-3), layer
        unturned = (traced.layers[layer][name].reshape(S, H, W).transpose(0, 1) for name in ("query", "key"))
        assert not torch.allclose(q, next(unturned), atol=2e-3)  # what a page without rotation would show


def test_where_norms_come_first_the_two_sums_of_a_layer_lead_from_state_to_state(modern):
    traced = minibert.trace(*modern, TEXT)
    data = data_of(traced.to_html())

    def vectors(name):
        return unpacked(data["vectors"][name], "<f2", data["S"], data["D"]).astype("f4")

    for layer in range(3):
        middle = vectors(f"middle{layer}")
        assert np.allclose(vectors(f"hidden{layer}") + vectors(f"attention{layer}"), middle, atol=0.02)
        assert np.allclose(middle + vectors(f"feed_forward{layer}"), vectors(f"hidden{layer + 1}"), atol=0.02)
    assert not np.allclose(vectors("middle3") + vectors("feed_forward3"), vectors("hidden4"), atol=0.1)  # final norm


def test_the_texts_of_a_page_are_those_of_the_models_own_order(modern, encoder, tokenizer):
    pages_of_both = (Reader(minibert.trace(*one, TEXT).to_html()).text for one in (modern, (encoder, tokenizer)))
    first, after = (text.partition("Rounding and source The links")[0] for text in pages_of_both)  # source: of all
    for own, others in (
        ("x = LayerNorm(token) ", "x = LayerNorm(token + segment + position)"),
        ("x = x + Attention(LayerNorm(x)); x = x + FFN(LayerNorm(x))", "x = LayerNorm(x + Attention(x))"),
        ("FFN(x) = (activation(x W₁) * (x V)) W₂ ", "FFN(x) = activation(x W₁ + b₁) W₂ + b₂"),
        ("In layers 1, 2 a token reads only the 2 tokens to each side of it; in the others", "Residual and norm again"),
        ("final norm modernbert.py", "position embeddings model.py"),
    ):
        assert own in first and own not in after and others in after and others not in first


def test_the_table_has_every_token_with_its_id_and_its_place_in_the_text(encoder, tokenizer):
    page = minibert.trace(encoder, tokenizer, "Film  IT").to_html()
    rows = re.findall(r"<tr>(.*?)</tr>", page[page.index('class="ids"') : page.index('id="embeddings"')], re.DOTALL)[1:]
    cells = [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row)] for row in rows]
    assert [row[1] for row in cells] == ["[CLS]", "film", "i", "##t", "[SEP]"]
    assert [int(row[2]) for row in cells] == tokenizer.ids(["Film  IT"])[0]
    assert cells[1][4:] == ["0", "0–4", "Film"] and cells[3][4:] == ["1", "7–8", "T"]


@pytest.mark.filterwarnings("ignore::minibert.text.tokenizer.UnknownTokensWarning")
@pytest.mark.filterwarnings("ignore::minibert.text.tokenizer.TruncationWarning")
@pytest.mark.parametrize(
    "text",
    [
        "</script><script>alert(1)</script>",
        "<!-- <img src=x onerror=alert(1)> --> ]]> {{data}} {{script}} &amp; &lt;",
        "\"quotes\" 'single' `back` \\u003c ${x}",
        "nul \x00 bell \x07 escape \x1b delete \x7f next \x85 line \u2028 para \u2029",
        "مرحبا עברית \u202eoverride\u202c emoji 😀 👨‍👩‍👧",
    ],
)
def test_no_text_becomes_part_of_the_page_which_needs_no_network(text, encoder, tokenizer):
    harmless, hostile = (
        minibert.trace(encoder, tokenizer, *pair, model=pair[0]).to_html() for pair in (("a b", "c"), (text, text))
    )
    reader, tags = Reader(hostile), [tag for tag, _ in Reader(hostile).elements]
    assert set(tags) <= {tag for tag, _ in Reader(harmless).elements}
    assert (tags.count("script"), tags.count("img"), reader.values("src")) == (2, 0, [])
    assert all(address.startswith(("#", "data:,")) for address in reader.values("href"))
    assert len(reader.values("id")) == len(set(reader.values("id"))) and data_of(hostile)["tokens"][0] == "[CLS]"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e]|<!--", hostile)
    assert f'<bdi dir="auto">{html.escape(pages.seen(text[:5]))}'.replace("&quot;", "&#34;")[:22] in hostile


def test_a_long_text_gets_fewer_heads_and_layers_and_says_so(encoder, tokenizer, monkeypatch):
    traced = minibert.trace(encoder, tokenizer, " ".join(["film"] * 78))
    assert numbers.select(traced).message == (
        "Of the 80 tokens this page has the vectors of the first 64 tokens; the queries and keys of the first 24. "
        "Norms, mean and rollout are of all."
    )
    monkeypatch.setattr("minibert.tracing.numbers.LIMIT", 100_000)
    selection, page = numbers.select(traced), traced.to_html()
    assert "layers 1 of 0 to 1 (--layers" in selection.message in Reader(page).text
    data = data_of(page)
    assert (list(data["attention"]), data["layers"], data["heads"]) == (["1"], [1], [0, 1, 2])
    assert {"hidden0", "hidden1", "hidden2"} == {name for name in data["vectors"] if name.startswith("hidden")}
    assert len(unpacked(data["vectors"]["hidden2"], "<f2", 64, 24)) == 64
    assert numbers.select(traced, layers=[1, 0, 0], heads=[2])[:2] == ([0, 1], [2])


def test_64_tokens_of_six_layers_and_twelve_heads_fit_in_6_megabytes(tokenizer, monkeypatch):
    monkeypatch.setattr("minibert.tracing.ablation.MOST", 0)  # its numbers are few, and take long
    config = minibert.Config(
        vocab_size=100, hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=8
    )
    page = minibert.trace(minibert.Encoder(config), tokenizer, " ".join(["film"] * 62)).to_html()
    assert 4_000_000 < len(page.encode()) < 6_000_000
    assert (data_of(page)["layers"], data_of(page)["heads"]) == (list(range(6)), list(range(12)))


# -- the links to the source


NORM_FIRST = {"rotation", "final norm"}  # steps of ModernBERT


def check_links(traced: Trace, absent: set[str]) -> None:
    page = traced.to_html()
    lines = dict(re.findall(r'<span id="([\w.]+-L\d+)" class="row"><i>\d+</i>(.*?)\n</span>', page, re.DOTALL))
    linked = set(re.findall(r'href="#(.*?)"', page))
    assert linked <= set(Reader(page).values("id"))
    for step in pages.STEPS.keys() - absent:
        anchor = "{}-L{}".format(*pages.line_of(step, traced.config.architecture))
        assert anchor in linked and pages.STEPS[step][2] in Reader(lines[anchor]).text, step


def test_every_link_leads_to_the_line_that_computes_the_step(folder, tokenizer, encoder, modern, tmp_path):
    pooled = minibert.trace(minibert.load(write_words_checkpoint(tmp_path)), tokenizer, TEXT)
    masked = minibert.trace(minibert.load(folder, head="masked-lm"), tokenizer, "[MASK]")
    for traced, absent in ((pooled, "masked-lm"), (masked, "pooler")):
        check_links(traced, {absent, "projected embeddings"} | NORM_FIRST)
    absent = {"segment embeddings", "position embeddings", "pooler"}
    check_links(minibert.trace(*modern, "[MASK]"), absent | {"projected embeddings"})
    address = f'href="../built%20here/model.html#L{pages.line_of("softmax", encoder.config.architecture)[1]}"'
    assert address in pooled.to_html(annotated="../built here") and "model.html" not in pooled.to_html()


def test_colouring_leaves_the_source_as_it_is_and_without_pygments_there_is_none(monkeypatch):
    code = inspect.getsource(pages)
    shown = "\n".join(templates.coloured(code)) + "\n"
    assert html.unescape(re.sub("<.*?>", "", shown)) == code and "<span" in shown
    monkeypatch.setitem(sys.modules, "pygments", None)
    assert html.unescape("\n".join(templates.coloured(code)) + "\n") == code


# -- texts and models of other kinds


def test_a_family_without_segments_is_traced_and_a_pair_of_it_says_so(tmp_path):
    distilbert = write_words_checkpoint(tmp_path, "distilbert")
    traced = minibert.trace(minibert.load(distilbert), minibert.load_tokenizer(distilbert), *PAIR)
    page = traced.to_html()
    assert "no segments" in traced.notes[0] and 'scope="col">segment' not in page
    assert sum(data_of(page)["attention"]["0"]["quadrants"]["mean"].values()) == pytest.approx(2)
    check_links(traced, {"projected embeddings", "segment embeddings", "pooler", "masked-lm"} | NORM_FIRST)


def test_narrow_embeddings_and_shared_layers_are_traced(tokenizer):
    config = minibert.Config(
        model_type="albert",
        vocab_size=100,
        embedding_size=8,
        hidden_size=24,
        num_attention_heads=3,
        num_hidden_layers=3,
        intermediate_size=37,
    )
    traced = minibert.trace(minibert.Encoder(config, pooler=False).eval(), tokenizer, *PAIR)
    page = traced.to_html()
    assert len(traced.layers) == 3 and not torch.equal(traced.attentions[0], traced.attentions[2])
    assert len(unpacked(data_of(page)["vectors"]["token"], "<f2", len(traced.tokens), 8)) == len(traced.tokens)
    assert "1 set of weights for all 3" in Reader(page).text
    check_links(traced, {"pooler", "masked-lm"} | NORM_FIRST)


@pytest.mark.parametrize(
    ("text", "note"),
    [("", "The text is empty"), ("the [MASK]", "no masked language model's task head"), ("film " * 100, "80 are read")],
)
@pytest.mark.filterwarnings("ignore::minibert.text.tokenizer.TruncationWarning")
def test_what_is_particular_about_a_text_is_noted(text, note, encoder, tokenizer):
    traced = minibert.trace(encoder, tokenizer, text)
    assert note in traced.notes[0] and traced.predictions == []
    assert note in Reader(traced.to_html()).text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"text": None}, "text and text_b"),
        ({"text": ["a"]}, "text and text_b"),
        ({"text_b": 1}, "text and text_b"),
        ({"encoder": "name"}, "text and text_b"),
        ({"text": "film " * 100, "truncation": "error"}, r"\b102\b.*max_length 80"),
    ],
)
def test_a_request_that_cannot_be_traced_is_refused(arguments, message, encoder, tokenizer):
    with pytest.raises((TypeError, ValueError), match=message):
        minibert.trace(**({"encoder": encoder, "tokenizer": tokenizer, "text": "a"} | arguments))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        *(("to_html", {"layers": [2]}), ("to_html", {"heads": [-1]}), ("to_html", {"heads": []})),
        *(("attention", {"layer": layer, "head": 0}) for layer in (2, -3)),
        *(("attention", {"layer": 0, "head": head}) for head in (3, -1, "best")),
    ],
)
def test_layers_and_heads_that_the_model_lacks_are_refused(method, arguments, encoder, tokenizer):
    with pytest.raises(ValueError, match=r"\[.*\]|layers 0 to 1\b"):
        getattr(minibert.trace(encoder, tokenizer, TEXT), method)(**arguments)
