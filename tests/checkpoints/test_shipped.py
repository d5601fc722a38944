"""weights/minibert-novels, the checkpoint that comes with the source: its files, and what it has learned.

The ten sentences were chosen before the checkpoint was trained. Each has one word that a reader expects.
"""

import gzip
import math
import os
import re
from hashlib import sha256
from itertools import islice
from pathlib import Path

import grammar
import pytest
import torch
from support.models import open_upstream
from transformers import AutoModelForMaskedLM, AutoTokenizer

import minibert
from minibert.pretraining_heads import MaskedLM
from minibert.tasks.base import Example
from minibert.tasks.masked_text import fill_mask
from minibert.text.masking import Masking
from minibert.text.tokenizer import Tokenizer
from minibert.train.batches import masked
from minibert.train.objectives import OBJECTIVES
from minibert.train.pretraining import baselines

FOLDER = Path(__file__).parents[2] / "weights" / "minibert-novels"
DATA = Path(os.environ.get("MINIBERT_DATA", ""))
needs_zorro = pytest.mark.skipif(not (DATA / "zorro").is_dir(), reason="needs $MINIBERT_DATA/zorro")

EASY = {
    "He opened the [MASK] and walked into the room.": "door",
    "She looked out of the [MASK] at the rain.": "window",
    "The horses ran along the [MASK].": "road",
    "He took off his [MASK] and bowed to the ladies.": "hat",
    "She had two brothers and three [MASK].": "sisters",
    "It was ten o'clock at [MASK].": "night",
    "The king and the [MASK] sat upon their thrones.": "queen",
    "A letter came by the [MASK] this morning.": "post",
    "The ship sailed across the [MASK].": "sea",
    "She wiped the tears from her [MASK].": "eyes",
}


@pytest.fixture(scope="module")
def model() -> MaskedLM:
    found = minibert.load(FOLDER, head="masked-lm")
    assert isinstance(found, MaskedLM)
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return minibert.load_tokenizer(FOLDER)


def test_the_files_are_those_that_the_model_card_names():
    card = (FOLDER / "README.md").read_text("utf-8")
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        assert sha256((FOLDER / name).read_bytes()).hexdigest() in card, name
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 16e6


def test_transformers_loads_it_bit_equal(model, tokenizer):
    theirs = open_upstream(AutoModelForMaskedLM, FOLDER)
    batch = tokenizer(list(EASY))
    assert AutoTokenizer.from_pretrained(FOLDER)(list(EASY)).input_ids == tokenizer.ids(list(EASY))
    with torch.no_grad():
        logits = model(**batch).logits
        assert logits.dtype == torch.float32 and torch.equal(logits, theirs(**batch).logits)
        weight = model.transform.weight.data
        kept = weight[0, 0].item()
        weight[0, 0] = kept + 1e-3  # a control: a change of one weight shows
        changed = model(**batch).logits
        weight[0, 0] = kept
    assert not torch.equal(changed, logits)


def test_it_names_the_words_that_the_model_card_says_and_no_others(model, tokenizer):
    """Among its first five guesses. The other one of the ten is a failure, and the card says so."""
    found = {text: [guess.token for guess in fill_mask(text, model, 5, tokenizer=tokenizer)[0]] for text in EASY}
    named = [EASY[text] for text, tokens in found.items() if EASY[text] in tokens]
    assert named == [word for word in EASY.values() if word != "queen"]


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "novels").is_dir(), reason="needs $MINIBERT_DATA/novels")
def test_its_loss_on_held_out_novels_is_far_below_that_of_a_bigram(model, tokenizer):
    """The bigram counts 30,000 sentences here; README's counts more of them."""
    with gzip.open(DATA / "novels" / "train.txt.gz", "rt", encoding="utf-8") as file:
        counted = tokenizer.ids([line.strip() for line in islice(file, 30_000) if 1 < len(line) < 300])
    lines = (DATA / "novels" / "heldout.txt").read_text("utf-8").splitlines()
    held_out = [line for line in lines[1000:1300] if 1 < len(line) < 300]
    masking = Masking.of(tokenizer)
    rows = [
        masked(Example(ids, [0] * len(ids), {}), masking, n)
        for n, ids in enumerate(tokenizer.ids(held_out))
        if len(ids) > 2
    ]
    without = baselines([[ids[1:-1]] for ids in counted], len(tokenizer.vocab), rows)
    score = OBJECTIVES["mlm"]().score(model, rows)
    assert without["bigram"] < without["unigram"]
    assert score["masked_lm_loss"] < without["bigram"] - math.log(3), "a third of the bigram's perplexity"


@pytest.mark.slow
@needs_zorro
def test_its_grammar_is_that_of_the_model_card(model, tokenizer):
    """25 pairs of each of the twelve paradigms."""
    pairs = grammar.read_pairs(DATA / "zorro", 25)
    sentences = [sentence for found in pairs.values() for pair in found for sentence in pair]
    scores = minibert.score(sentences, model, tokenizer=tokenizer)
    mean = grammar.measure(pairs, dict(zip(sentences, scores, strict=True)))["mean"]
    assert mean.pairs == 300
    stated = re.search(r"mean of the twelve paradigms \| ([\d.]+)", (FOLDER / "README.md").read_text("utf-8"))
    assert stated and abs(mean.accuracy - float(stated[1])) < 2 * mean.standard_error
