"""One head switched off, or one token masked: the model runs again, and the page shows what changes.

A head is switched off by zeros in its place, before the heads are projected together:

    Attention(x) = Concat(head_0, ..., 0, ..., head_H-1) Wᴼ + b

Row h of a batch of H copies of the text is computed without head h, so that one pass serves all heads of a layer.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import Tensor

from minibert.fields import EncoderOutput
from minibert.heads import MaskedLM
from minibert.hooks import Inputs, forward
from minibert.model import Encoder
from minibert.prediction.frozen import Classifier
from minibert.prediction.reader import Reader
from minibert.tasks.masked_text import best_tokens
from minibert.text.tokenizer import Tokenizer
from minibert.tracing.journey import Ablation, Effect, Filled, Journey, decide
from minibert.utils.inference import inference

MOST = 8192  # tokens that pass through the model for each kind of change
MASKED = 64  # the first tokens of a classifier's text, which are masked even if that is more
GUESSES = 5  # at a masked token


def ablate(
    model: Encoder | MaskedLM, tokenizer: Tokenizer, journey: Journey, classifier: Classifier | Reader | None
) -> Ablation:
    """Return the traced text with each head switched off in turn, and with each token masked in turn.

    A masked LM also guesses at each masked token, with all heads and without each. What would take more than MOST
    tokens is left out: heads, tokens at the end of a long text, and the guesses without a head at later tokens.
    """
    encoder = model.encoder if isinstance(model, MaskedLM) else model
    ids = torch.tensor([journey.ids])
    batch = Inputs(ids, torch.ones_like(ids), torch.tensor([journey.segments]))
    S = len(journey.tokens)
    L = len(journey.layers)
    H = journey.config.num_attention_heads
    most = MOST // S if classifier is None else max(MOST // S, MASKED)
    places = [place for place, word in enumerate(journey.word_ids) if word is not None][:most]
    effect = effect_on(journey, classifier)
    with inference(model):
        heads = [] if L * H * S > MOST else [effect(without_heads(encoder, batch, layer)) for layer in range(L)]
        masked: dict[int, Effect] = {}
        filled: dict[int, Filled] = {}
        filled_without: dict[int, list[list[Filled]]] = {}
        for place in places:
            ids = batch.input_ids.clone()
            ids[0, place] = tokenizer.mask_id
            changed = replace(batch, input_ids=ids)
            out = encode(encoder, changed)
            (masked[place],) = effect(out)
            if not isinstance(model, MaskedLM):
                continue
            token = journey.ids[place] if journey.ids[place] != tokenizer.mask_id else None
            (filled[place],) = filled_at(model, tokenizer, out, place, token)
            if (len(filled_without) + 1) * L * H * S <= MOST:
                token = filled[place].id
                filled_without[place] = [
                    filled_at(model, tokenizer, without_heads(encoder, changed, layer), place, token)
                    for layer in range(L)
                ]
    return Ablation(heads, masked, filled, filled_without)


@contextmanager
def heads_off(encoder: Encoder, layer: int) -> Iterator[None]:
    """Put zeros in place of head h of this layer in row h of this thread's next forward pass, of H rows."""
    H = encoder.config.num_attention_heads
    own = encoder.config.architecture.order
    calls = count()
    turn = own[:layer].count(own[layer])  # a shared layer is called repeatedly
    thread = threading.get_ident()
    keep = (1 - torch.eye(H))[:, None, :, None]  # (row H, 1, head H, 1)

    def zero(_: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if threading.get_ident() != thread or next(calls) != turn:
            return given
        context = given[0].view(*given[0].shape[:2], H, -1)  # (H,S,D) -> (H,S,H,W)
        return ((context * keep.to(context)).flatten(2),)

    attention: Any = encoder.layers[own[layer]].attention
    hook = attention.output.register_forward_pre_hook(zero)
    try:
        yield
    finally:
        hook.remove()


def encode(encoder: Encoder, batch: Inputs) -> EncoderOutput:
    """Return the encoder's output for a batch, with the attention written out as in the trace."""
    out: EncoderOutput = forward(encoder, batch, {"output_hidden_states": True, "output_attentions": True})
    return out


def without_heads(encoder: Encoder, batch: Inputs, layer: int) -> EncoderOutput:
    """Return the output for a batch of one row, as H rows: row h without head h of this layer."""
    H = encoder.config.num_attention_heads
    with heads_off(encoder, layer):
        return encode(encoder, Inputs(*(x.expand(H, -1) for x in vars(batch).values())))


def effect_on(journey: Journey, classifier: Classifier | Reader | None) -> Callable[[EncoderOutput], list[Effect]]:
    """Return the effects of changes on this text, from the changed outputs: one for each row."""
    whole = journey.hidden_states[-1].double()  # (S,D)

    def effects(out: EncoderOutput) -> list[Effect]:
        states = [state.cpu() for state in out.hidden_states or ()]  # L + 1 of (rows,S,D)
        pooled = None if out.pooler_output is None else out.pooler_output.cpu()
        last = states[-1].double()
        cosines = torch.cosine_similarity(last, whole, dim=-1)  # (rows,S)
        means = torch.cosine_similarity(last.mean(dim=1), whole.mean(dim=0), dim=-1)  # (rows)
        return [
            Effect(cosines[row].tolist(), means[row].item(), probability(row, states, pooled))
            for row in range(len(last))
        ]

    def probability(row: int, states: Sequence[Tensor], pooled: Tensor | None) -> float | None:
        if classifier is None or journey.decision is None:
            return None
        own = None if pooled is None else pooled[row]
        changed = decide(classifier, journey.config, tuple(state[row] for state in states), own)
        return float(changed.probabilities[journey.decision.decided])

    return effects


def filled_at(model: MaskedLM, tokenizer: Tokenizer, out: EncoderOutput, place: int, token: int | None) -> list[Filled]:
    """Return for each row the guesses at this place, and the probability of a token; None: of the likeliest one."""
    logits = model.predict_tokens(out.last_hidden_state[:, place : place + 1])[:, 0].cpu()  # (rows,V)
    probs = logits.float().softmax(dim=-1)
    own = int(probs[0].argmax()) if token is None else token
    guesses = best_tokens(logits, tokenizer, min(GUESSES, logits.shape[-1]))
    return [
        Filled(own, tokenizer.token_text(own), probs[row, own].item(), likeliest)
        for row, likeliest in enumerate(guesses)
    ]


def as_data(value: Any) -> Any:
    """Return effects and guesses for the page's scripts: lists in the order of the fields, numbers to six decimals."""
    if isinstance(value, dict):
        return {str(key): as_data(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_data(item) for item in value]
    return round(value, 6) if isinstance(value, float) else value
