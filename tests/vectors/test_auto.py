"""pooling="auto", the default: vectors as the checkpoint's files state them, everywhere that makes vectors."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from support.words import as_before_2021, labelled, state_vectors, write_words_checkpoint

import minibert
from minibert import TextFeatures, embed
from minibert.prediction.frozen import Classifier, train

TEXTS = ["a very good film", "the awful meal", "", "good book " * 9]  # the last has more than 12 tokens
pytestmark = [
    pytest.mark.filterwarnings("ignore::minibert.text.tokenizer.TruncationWarning"),
]


@pytest.fixture
def stated(folder: Path) -> Path:
    """A checkpoint whose files state the normalized mean of at most 12 tokens."""
    return state_vectors(folder)


def assert_close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def documented(folder: Path, texts: list[str], max_length: int) -> NDArray[Any]:
    """Mean pooling and normalization as the page of all-MiniLM-L6-v2 writes them with transformers."""
    transformers = pytest.importorskip("transformers")
    tokenizer, model = (getattr(transformers, name).from_pretrained(folder) for name in ("AutoTokenizer", "AutoModel"))
    encoded = tokenizer(texts, padding=True, truncation=True, max_length=max_length, return_tensors="pt")
    with torch.no_grad():
        states = model.eval()(**encoded)[0]
    mask = encoded["attention_mask"].unsqueeze(-1).expand(states.size()).float()
    pooled = (states * mask).sum(1) / torch.clamp(mask.sum(1), min=1e-9)
    return F.normalize(pooled, p=2, dim=1).numpy()


# -- the vectors


def test_minilms_vectors_are_those_of_its_own_page_for_long_texts_too(minilm):
    texts = ["This is an example sentence", "Each sentence is converted", "a long text of words " * 80, ""]
    assert len(minibert.load_tokenizer(minilm)(texts[2]).tokens[0]) > 256
    assert_close(embed(texts, minilm), documented(minilm, texts, 256))


@pytest.mark.parametrize("version", [True, False])
@pytest.mark.parametrize(("inner", "module"), [("0_Transformer", "Transformer"), ("0_BERT", "BERT")])
def test_a_transformer_in_a_folder_of_its_own_is_found_and_gives_the_same_vectors(stated, inner, module, version, run):
    expected, tokens = embed(TEXTS, stated), minibert.load_tokenizer(stated).ids(TEXTS)
    as_before_2021(stated, inner, module)
    if not version:
        (stated / "config.json").unlink()
    for name in (stated, stated / inner):
        assert minibert.load(name).checkpoint.folder == stated / inner
        assert minibert.load_tokenizer(name).ids(TEXTS) == tokens
        assert np.array_equal(embed(TEXTS, name), expected)
        assert "pooling mean, normalized, at most 12 tokens" in run("inspect", name)


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("max", False), ("cls", True)])
def test_auto_is_what_the_files_state(folder, pooling, normalize, newer):
    state_vectors(folder, pooling, normalize, 12, newer)
    expected = embed(TEXTS, folder, pooling=pooling, normalize=normalize, max_length=12)
    assert_close(embed(TEXTS, folder), expected)


@pytest.mark.parametrize(
    ("settings", "resolved"),
    [
        ({}, ("mean", True, 12)),
        ({"normalize": False, "max_length": 5}, ("mean", False, 5)),
        ({"pooling": "max"}, ("max", False, None)),
        ({"pooling": "cls", "normalize": True}, ("cls", True, None)),
    ],
)
def test_an_explicit_setting_counts_before_that_of_the_files(stated, settings, resolved):
    recipe = minibert.Embedder(stated, **settings).recipe
    assert (recipe.pooling, recipe.normalize, recipe.max_length) == resolved


def test_a_tokenizer_that_was_given_counts_before_the_length_of_the_files(stated):
    tokenizer = minibert.load_tokenizer(stated, max_length=7)
    own = minibert.Embedder(stated, minibert.Recipe(), tokenizer=tokenizer)
    assert (own.tokenizer.max_length, own.recipe.max_length, own.recipe.how) == (7, None, "mean, normalized")


def test_an_encoder_follows_the_files_that_it_was_loaded_from(stated, tmp_path):
    tokenizer = minibert.load_tokenizer(stated, max_length=12)
    assert_close(embed(TEXTS, minibert.load(stated), tokenizer=tokenizer), embed(TEXTS, stated))
    for encoder in (minibert.Encoder(minibert.load(stated).config), write_words_checkpoint(tmp_path / "bare")):
        given = {"tokenizer": tokenizer} if isinstance(encoder, minibert.Encoder) else {}
        assert minibert.Embedder(encoder, **given).recipe.how == "cls"


def test_windows_are_averaged_before_the_length_becomes_1(stated):
    settings = {"pooling": "mean", "long": "windows", "max_length": 12}
    plain = embed(TEXTS, stated, **settings, normalize=False)
    vectors = embed(TEXTS, stated, long="windows")
    assert_close(vectors, plain / np.linalg.norm(plain, axis=1, keepdims=True))


# -- what is refused


def test_files_that_cannot_be_followed_are_an_error_that_names_the_way_out(stated):
    (stated / "modules.json").write_text("{")
    with pytest.raises(ValueError, match=r"modules.json.* pooling= and normalize="):
        embed(TEXTS, stated)
    assert len(embed(TEXTS, stated, pooling="cls")) == len(TEXTS)


def test_a_length_beside_a_tokenizer_or_beyond_the_model_is_refused(stated):
    tokenizer = minibert.load_tokenizer(stated)
    with pytest.raises(ValueError, match=r"max_length is 5\b.* 20\b"):
        embed(TEXTS, minibert.load(stated), tokenizer=tokenizer, max_length=5)
    with pytest.raises(ValueError, match=r"max_length is 600\b.* 20$"):
        embed(TEXTS, stated, max_length=600)


# -- what is stored


def test_a_pickle_and_a_fitted_transformer_keep_what_the_files_stated_at_that_time(stated):
    expected = embed(TEXTS, stated)
    features = TextFeatures(stated).fit(TEXTS)
    stored = [pickle.dumps(features), pickle.dumps(minibert.Embedder(stated))]
    (stated / "modules.json").unlink()
    assert_close(features.transform(TEXTS), expected)
    assert_close(pickle.loads(stored[0]).transform(TEXTS), expected)
    assert_close(pickle.loads(stored[1])(TEXTS), expected)
    assert features.pooling == "auto"  # the parameter stays, for clone
    assert TextFeatures(stated).fit(TEXTS).recipe_.pooling == "cls"


def test_a_saved_classifier_holds_the_resolved_settings_and_decides_alike(stated, tmp_path):
    how = {"pooling": "auto", "long": "windows", "stride": 3}
    classifier = train(*labelled(), model=str(stated), folds=0, **how)
    classifier.save(tmp_path / "saved")
    resolved = {"pooling": "mean", "normalize": True, "max_length": 12, "long": "windows", "stride": 3}
    assert classifier.details().items() >= resolved.items()
    (stated / "modules.json").unlink()
    assert_close(Classifier.load(tmp_path / "saved").predict_proba(TEXTS), classifier.predict_proba(TEXTS))


# -- the first numbers of a vector


@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_that_the_files_cut_are_those_of_sentence_transformers(folder, normalize, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    state_vectors(folder, normalize=normalize, newer=True)
    (folder / "config_sentence_transformers.json").write_text('{"truncate_dim": 5, "prompts": {"query": ""}}')
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    embedder = minibert.Embedder(folder)
    assert embedder.width == theirs.get_embedding_dimension() == 5
    for found in (embed(TEXTS, folder), TextFeatures(folder).fit_transform(TEXTS), embedder.encode(TEXTS)):
        assert_close(found, theirs.encode(TEXTS))
    assert_close(embedder.encode(TEXTS, normalize_embeddings=True), theirs.encode(TEXTS, normalize_embeddings=True))
    assert pickle.loads(pickle.dumps(embedder))(TEXTS).shape == (4, 5)
    for found in (embed(TEXTS, folder, dimensions=3), embedder.encode(TEXTS, truncate_dim=3)):
        assert_close(found, theirs.encode(TEXTS, truncate_dim=3))


def test_fine_tuning_keeps_the_number_of_dimensions(stated, tmp_path):
    (stated / "config_sentence_transformers.json").write_text('{"truncate_dim": 5}')
    pairs = [("the good film", "a fine film"), ("the bad book", "an awful book"), ("one meal", "a meal")]
    model = minibert.train.finetune("embed", pairs, model=stated, epochs=2, batch_size=3, out=tmp_path / "new")
    assert embed(TEXTS, model).shape == embed(TEXTS, tmp_path / "new").shape == (4, 5)


@pytest.mark.parametrize("value", ["5", 0.5, -1, [5], True])
def test_dimensions_that_cannot_be_are_refused_with_file_and_key(stated, value):
    (stated / "config_sentence_transformers.json").write_text(json.dumps({"truncate_dim": value}))
    with pytest.raises(ValueError, match=r"config_sentence_transformers\.json: truncate_dim is "):
        embed("a", stated)


# -- sentence-transformers' call


def test_encode_returns_vectors_as_sentence_transformers_does(stated):
    embedder = minibert.Embedder(stated, normalize=False)
    assert_close(embedder.encode(["a film", "a meal"]), embedder(["a film", "a meal"]))
    assert_close(embedder.encode("a film"), embedder(["a film"])[0])
    assert isinstance(embedder.encode("a film", convert_to_tensor=True), torch.Tensor)
    assert_close(embedder.encode(["a film"], batch_size=2, show_progress_bar=True), embedder(["a film"]))
    for name in ("prompt_name", "output_value", "pool"):
        with pytest.raises(TypeError, match=f"no argument {name}; "):
            embedder.encode(["a"], **{name: 1})


def test_texts_in_the_place_of_the_model_are_refused(stated):
    with pytest.raises(TypeError, match=r"model is \['a'\].*texts come before it"):
        embed(str(stated), ["a"])


def test_identities_differ_by_what_is_resolved(stated):
    recipes = [minibert.Recipe()]
    recipes += [minibert.Recipe("mean", normalize=normalize, max_length=12) for normalize in (True, False)]
    auto, same, other = (minibert.Embedder(stated, recipe).identity for recipe in recipes)
    assert auto == same != other
    assert (auto["pooling"], auto["max_length"]) == ("mean, normalized", 12)
