"""The pseudo-log-likelihood of a text is the sum that a plain loop with transformers makes, for every relative."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from support.emulated_device import emulated_device
from support.models import write_checkpoint
from support.tokenizers import CLASSES, write_saved
from support.words import OTHER, write_words_checkpoint

import minibert
from minibert.tasks import scoring
from minibert.tasks.scoring import Score, Scorer
from minibert.utils.device import has_bfloat16

TEXTS = ["the good film", "very", "a dull play, the awful meal", "the lovely book very very bad", "the good film"]
BOUND = 1e-4


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Random checkpoints by family, each written once."""
    found = {}

    def folder_of(family):
        if family not in found:
            folder = tmp_path_factory.mktemp(family)
            if family in CLASSES:
                size = len(write_saved(folder, family))
                write_checkpoint(folder, family, "masked-lm", vocab_size=size, max_position_embeddings=40)
            else:
                write_words_checkpoint(folder, family, "masked-lm", max_position_embeddings=40)
                transformers.BertTokenizer.from_pretrained(folder).save_pretrained(folder)
            found[family] = folder
        return found[family]

    return folder_of


@pytest.fixture
def bert(folder_of: Callable[[str], Path]) -> Path:
    return folder_of("bert")


def plain_loop(folder: Path, texts: Sequence[str], masked: bool = True, special: bool = False) -> list[list[float]]:
    """log p of each token of each text, with [CLS] and [SEP] too, each masked or not, one after the other."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    found = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt").input_ids
        found.append([])
        for place in range(ids.shape[1]) if special else range(1, ids.shape[1] - 1):
            copy = ids.clone()
            if masked:
                copy[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                found[-1].append(float(model(copy).logits[0, place].log_softmax(-1)[ids[0, place]]))
    return found


def apart(found: Sequence[Score], expected: Sequence[Sequence[float]]) -> float:
    """The largest difference of any score, of a text or of a token."""
    pairs = [(one.score, sum(values)) for one, values in zip(found, expected, strict=True)]
    for one, values in zip(found, expected, strict=True):
        pairs += zip(one.log_probabilities, values, strict=True)
    return max(abs(a - b) for a, b in pairs)


# -- equality


@pytest.mark.parametrize("family", ["bert", "distilbert", "electra", *CLASSES])
def test_scores_are_those_of_a_plain_loop_and_a_scorer_that_masks_nothing_would_be_caught(family, folder_of):
    expected = plain_loop(folder_of(family), TEXTS)
    assert apart(Scorer(folder_of(family))(TEXTS), expected) < BOUND
    unmasked = [Score(sum(one), [], one) for one in plain_loop(folder_of(family), TEXTS, masked=False)]
    assert apart(unmasked, expected) > 100 * BOUND


def test_without_masks_the_scores_are_those_of_the_text_as_it_is(bert):
    found = Scorer(bert, masked=False)(TEXTS)
    assert apart(found, plain_loop(bert, TEXTS, masked=False, special=True)) < BOUND
    assert [one.tokens[0] for one in found] == ["[CLS]"] * len(TEXTS)


def test_texts_in_any_order_batch_and_portion_get_the_same_scores(bert, monkeypatch):
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(OTHER, size=size)) for size in generator.integers(1, 30, size=60)]
    expected = plain_loop(bert, texts)
    assert apart(Scorer(bert)(texts), expected) < BOUND
    monkeypatch.setattr(scoring, "COPIED_TOKENS", 500)
    monkeypatch.setattr(scoring, "LOGITS", 100)
    assert apart(Scorer(bert, batch_tokens=64)(texts), expected) < BOUND
    assert apart(Scorer(bert)(texts[::-1]), expected[::-1]) < BOUND
    assert Scorer(bert)([]) == []


def test_score_gives_a_number_a_text_or_the_tokens_too_for_a_folder_or_a_loaded_model(bert):
    scores, tokenizer = minibert.score(TEXTS, bert), minibert.load_tokenizer(bert)
    model = minibert.load(bert, head="masked-lm").train()
    assert all(isinstance(one, float) and one < 0 for one in scores)
    assert minibert.score(np.array(TEXTS), model=model, tokenizer=tokenizer) == pytest.approx(scores, abs=BOUND)
    assert model.training  # as it was
    for one, text, number in zip(minibert.score(TEXTS, bert, tokens=True), TEXTS, scores, strict=True):
        assert one.tokens == tokenizer.tokenize(text)
        assert one.score == sum(one.log_probabilities) == pytest.approx(number, abs=BOUND)


@pytest.mark.skipif(not has_bfloat16(torch.device("cpu")), reason="this CPU does not multiply bfloat16")
def test_bfloat16_is_near(bert):
    assert minibert.score(TEXTS, bert, precision="bfloat16") == pytest.approx(minibert.score(TEXTS, bert), rel=0.02)


def test_on_a_gpu_the_scores_are_those_of_the_cpu(bert):
    expected = minibert.score(TEXTS, bert, device="cpu")
    with emulated_device():
        assert minibert.score(TEXTS, bert, device="gpu") == pytest.approx(expected, abs=BOUND)


# -- what has no score


@pytest.mark.parametrize(
    ("texts", "settings", "error", "message"),
    [
        (["a film", ""], {}, ValueError, r"row 1\b"),
        (["a film", " \u200b"], {}, ValueError, r"row 1\b"),
        (["a [MASK]"], {}, ValueError, r"row 0 .*\[MASK\]"),
        (["a", "a [SEP] b"], {}, ValueError, r"row 1 .*\[SEP\]"),
        (["a", "good " * 39], {}, ValueError, r"row 1 .*41.*max_length 40"),
        (["a", None], {}, TypeError, r"row 1 .*None"),
        (["a"], {"precision": "int8"}, ValueError, r"'int8'.*'windows'"),
        (["a"], {"long": "windows"}, ValueError, r"'int8'.*'windows'"),
        (["a"], {"batch_tokens": 0}, ValueError, "batch_tokens is 0"),
    ],
)
def test_what_has_no_score_is_refused(texts, settings, error, message, bert):
    with pytest.raises(error, match=message):
        minibert.score(texts, bert, **settings)


def test_a_long_text_is_cut_on_request(bert):
    with pytest.warns(minibert.text.tokenized.TruncationWarning):
        [cut] = minibert.score(["good " * 50], bert, long="cut")
    assert [cut] == pytest.approx(minibert.score(["good " * 38], bert), abs=BOUND)


def test_a_model_without_a_trained_head_is_refused(bert, tmp_path):
    headless = write_words_checkpoint(tmp_path / "headless")
    with pytest.raises(ValueError, match=r"headless.*'masked-lm'.*minibert-novels"):
        minibert.score(TEXTS, headless)
    tokenizer, fresh = minibert.load_tokenizer(bert), minibert.load(bert, head="masked-lm", new_head=True)
    with pytest.raises(ValueError, match=r"'masked-lm'.*never trained"):
        minibert.score(TEXTS, fresh, tokenizer=tokenizer)
    with pytest.raises(TypeError, match="tokenizer="):
        minibert.score(TEXTS, minibert.load(bert, head="masked-lm"))
    with pytest.raises(TypeError, match="Encoder"):
        minibert.score(TEXTS, minibert.load(bert))
