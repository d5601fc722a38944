"""How likely a masked language model finds a text: its pseudo-log-likelihood.

    PLL(text) = Σ_i log p(token i | all other tokens)        Salazar et al. 2020, "Masked Language Model Scoring", eq. 1

    a fine film    [CLS] [MASK] fine film [SEP]      log p(a)
                   [CLS] a [MASK] film [SEP]         log p(fine)
                   [CLS] a fine [MASK] [SEP]         log p(film)      their sum is the score of the text, in nats

A text of n tokens becomes n copies, each with one [MASK]. The fast engine reads them without padding. Its last layer
computes only the token at the [MASK], as it computes only [CLS] for a vector, and so does the head.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.heads import MaskedLM
from minibert.kernels.packing import TEXT_BUCKET, batches
from minibert.kernels.parts import with_parts
from minibert.quick import QUICK
from minibert.storage.hub import find_masked_lm
from minibert.tables.texts import RowError, as_name, as_texts
from minibert.tasks.masked_text import load_masked_lm
from minibert.text.tokenizer import Tokenizer, load_tokenizer
from minibert.utils.device import choose_device
from minibert.utils.files import AnyPath
from minibert.utils.printing import progress_bar
from minibert.vectors.engine import Engine
from minibert.vectors.recipe import Recipe

COPIED_TOKENS = 1 << 18  # in the copies that are held at once: as many as one text of 512 tokens has
LOGITS = 1 << 22  # held at once


class Score(NamedTuple):
    """The score of a text, which is the sum of its tokens' scores, and these scores; in nats."""

    score: float
    tokens: list[str]
    log_probabilities: list[float]


class Scorer:
    """A checkpoint with a trained masked-LM head, called with texts: `Scorer(name)(texts)`.

    model: a Hub name or a folder; or a loaded MaskedLM, which stays on its device, with its tokenizer. masked: False
    masks nothing, and [CLS] and [SEP] count too: as BabyBERTa's authors score. precision,
    batch_tokens, long: as in a Recipe, without "int8" and "windows". Raises ValueError for these and for a head that
    was never trained, TypeError for another model, and what load raises.
    """

    def __init__(
        self,
        model: AnyPath | MaskedLM,
        *,
        tokenizer: Tokenizer | None = None,
        device: str = "auto",
        masked: bool = True,
        long: str = "error",
        **recipe: Any,
    ) -> None:
        self.recipe = Recipe("cls", long=long, **recipe)
        self.masked = masked
        if self.recipe.precision == "int8" or long == "windows":
            raise ValueError("precision 'int8' and long 'windows' are for vectors; scores have neither")
        loaded: Any = model
        if not isinstance(model, MaskedLM):
            model = Checkpoint.open(as_name(model, "the texts come before it"))
            tokenizer = tokenizer or load_tokenizer(model)
            loaded = load_masked_lm(model, choose_device(device))
        if tokenizer is None:
            raise TypeError("a loaded model reads texts with its tokenizer; pass tokenizer=load_tokenizer(...)")
        if not loaded.head_is_trained:
            raise ValueError("the head 'masked-lm' was never trained, so its scores would mean nothing; train it first")
        self.model = loaded
        self.tokenizer = tokenizer
        self.quick = with_parts(loaded, QUICK)  # its task head
        self.engine = Engine(loaded.encoder, self.recipe.precision, keep_encoder=loaded is model)

    def __call__(self, texts: object) -> list[Score]:
        """Return the score of each text.

        Raises ValueError, with the row, for a text that has no tokens, too many, or a special token such as [MASK];
        TypeError for a row that is not a text.
        """
        rows = self.encode(as_texts(texts))
        scores: dict[int, Score] = {}
        with progress_bar(name="score", total=len(rows), unit="text") as bar:
            for numbers in batches([len(ids) ** 2 for ids in rows], COPIED_TOKENS):
                values = iter(self.log_probabilities([rows[number] for number in numbers]))
                for number in numbers:
                    tokens = self.tokenizer.convert_ids_to_tokens(rows[number][at] for at in self.places(rows[number]))
                    each = [next(values) for _ in tokens]
                    scores[number] = Score(sum(each), tokens, each)
                bar.update(len(numbers))
        return [scores[number] for number in range(len(rows))]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, [CLS] and [SEP] included. Raises ValueError for what has no score."""
        tokens = self.tokenizer.encode_texts(texts, long=self.recipe.long)
        self.tokenizer.warn(tokens.stats, self.tokenizer.max_length)
        for row, ids in enumerate(tokens.ids):
            special = self.tokenizer.control_ids.intersection(ids[1:-1])
            if special or len(ids) == 2:
                what = f"the special token {self.tokenizer.id_to_token(min(special))}" if special else "no tokens"
                raise RowError(row, f"has {what}; only words have a score, so change the text or leave it out")
        return tokens.ids

    def places(self, ids: Sequence[int]) -> range:
        """Return the positions of the tokens that count."""
        return range(1, len(ids) - 1) if self.masked else range(len(ids))

    @torch.inference_mode()
    def log_probabilities(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Return log p of each token that counts, with only that token masked; row after row."""
        places = [(ids, at) for ids in rows for at in self.places(ids)]  # N
        mask = self.tokenizer.mask_id
        copies = [[*ids[:at], mask if self.masked else ids[at], *ids[at + 1 :]] for ids, at in places]
        states = self.engine.vectors(copies, self.recipe, places=[at for _, at in places])  # (N,D)
        # Zeros round up N to a multiple of TEXT_BUCKET, as in kernels/packing.py.
        more = -len(places) % TEXT_BUCKET
        x = F.pad(torch.from_numpy(states), (0, 0, 0, more)).to(self.model.transform.weight)  # (N + more,D)
        labels = F.pad(torch.tensor([ids[at] for ids, at in places]), (0, more)).to(x.device)  # (N + more)
        size = max(1, LOGITS // self.model.config.vocab_size // TEXT_BUCKET) * TEXT_BUCKET
        log_p: list[float] = []
        for part, right in zip(torch.split(x, size), torch.split(labels, size), strict=True):
            logits = self.quick.predict_tokens(part).float()  # (n,D) -> (n,V)
            log_p += (-F.cross_entropy(logits, right, reduction="none")).tolist()
        return log_p[: len(places)]


def score(
    texts: object,
    model: AnyPath | MaskedLM | None = None,
    *,
    tokens: bool = False,
    **how: Any,
) -> list[Any]:
    """Return the pseudo-log-likelihood of each text, in nats: the higher, the likelier (Salazar et al. 2020).

    texts: list, tuple, 1-D array, Series or generator. model: a checkpoint with a masked-LM head, by Hub name or
    folder, or a loaded MaskedLM with tokenizer=; None: as hub.find_masked_lm chooses. tokens: a Score for each text,
    with the scores of its tokens, in place of a number. how: device, precision, batch_tokens and long, as for Scorer.
    Every token lowers the score, so compare texts of about the same length. Raises what Scorer and its call raise.
    """
    scores = Scorer(find_masked_lm() if model is None else model, **how)(texts)
    return list(scores) if tokens else [of_text.score for of_text in scores]
