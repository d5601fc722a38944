"""Parity without transformers: stored references of the real checkpoint, and published values of official ones.

golden.json holds, for each stage of all-MiniLM-L6-v2 as transformers computed it, a checksum of every bit and a few
values. A CPU whose float32 results agree with the one that made the file agrees in the checksum; another CPU sums in
another order, and there the stored values decide, within TOLERANCE of the largest value of the stage. The report says
for each stage which of the two it was. tests/make_golden.py writes the file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from minibert.checkpoints.hub import locate, locate_locally
from minibert.checkpoints.load import load
from minibert.parity.stages import Batch, Place, record

CHECKPOINT = "all-MiniLM-L6-v2"
KEPT = 8  # values of each stage, evenly spread from the first to the last
TOLERANCE = 4e-6  # as a share of the largest value; other instruction sets of one CPU strayed by up to 1e-6

# What transformers' own tests and documents expect of official checkpoints, to the digits that they give.
ROW = [0, 345, 232, 328, 740, 140, 1695, 69, 6078, 1588, 2]  # the first token is masked
PAIR = [101, 1045, 2001, 24907, 999, 102, 1045, 10749, 2300, 1024, 1040, 102]  # "I was thirsty!", "I drank water :D"
PUBLISHED_ROW = {
    "distilbert-base-uncased": [[-0.1639, 0.3299, 0.1648], [-0.1746, 0.3289, 0.1710], [-0.1884, 0.3357, 0.1810]],
    "bert-base-uncased": [[0.4249, 0.1008, 0.7531], [0.3771, 0.1188, 0.7467], [0.4152, 0.1098, 0.7108]],
    "albert/albert-base-v2": [[-0.6513, 1.5035, -0.2766], [-0.6515, 1.5046, -0.2780], [-0.6512, 1.5049, -0.2784]],
    "google/electra-small-discriminator": [
        [0.4471, 0.6821, -0.3265],
        [0.4627, 0.5255, -0.3668],
        [0.4532, 0.3313, -0.4344],
    ],
}
FIRST_THREE, LAST_FEATURE = (slice(3), slice(3)), (slice(None), -1)  # of tokens and features
# Of RoBERTa and its kin: a row without padding, which values, what they are, and within what.
PUBLISHED_KIN: dict[str, tuple[list[int], Any, list[Any], float]] = {
    "FacebookAI/roberta-base": (
        [0, 31414, 232, 328, 740, 1140, 12695, 69, 46078, 1588, 2],
        FIRST_THREE,
        [[-0.0231, 0.0782, 0.0074], [-0.1854, 0.0540, -0.0175], [0.0548, 0.0799, 0.1687]],
        1e-4,
    ),
    "FacebookAI/xlm-roberta-base": (  # "The dog is cute and lives in the garden house"
        [0, 581, 10269, 83, 99942, 136, 60742, 23, 70, 80583, 18276, 2],
        LAST_FEATURE,
        [-0.0101, 0.1218, -0.0803, 0.0801, 0.1327, 0.0776, -0.1215, 0.2383, 0.3338, 0.3106, 0.0300, 0.0252],
        1e-3,
    ),
    "almanach/camembert-base": (  # "J'aime le camembert !"
        [5, 121, 11, 660, 16, 730, 25543, 110, 83, 6],
        FIRST_THREE,
        [[-0.0254, 0.0235, 0.1027], [0.0606, -0.1811, -0.0418], [-0.1561, -0.1127, 0.2687]],
        1e-4,
    ),
}
PUBLISHED_TOKENS = [[33.8802, -4.3103, 22.7761], [4.6539, -2.8098, 13.6253], [1.8228, -3.6898, 8.8600]]  # roberta-base
PUBLISHED = (*PUBLISHED_ROW, *PUBLISHED_KIN)
PUBLISHED_CLS = [-0.23, 0.37, -0.34, -0.35, -0.91, 0.01, 0.67, 0.64, 0.1, -0.32]
PUBLISHED_POOLER = [-0.9803, -0.7672, -0.9958, 0.9636, 0.9004, -0.5488, 0.9910, 0.6867, -0.9878, -1.0000]


@dataclass(frozen=True)
class Finding:
    """One stored reference checked: how it was compared, and how it came out."""

    checkpoint: str
    what: str
    shape: tuple[int, ...]
    how: str  # "checksum", "values" or "not checked"
    largest: float  # largest difference of the stored values, as a share of the stage's largest value
    ok: bool
    note: str = ""


def checksum(tensor: Tensor) -> str:
    """The first 16 hexadecimal digits of the sha256 of the float32 values in memory order."""
    return hashlib.sha256(tensor.detach().to("cpu", torch.float32).contiguous().numpy().tobytes()).hexdigest()[:16]


def sample(tensor: Tensor) -> list[float]:
    """KEPT values, evenly spread from the first to the last."""
    flat = tensor.detach().to("cpu", torch.float32).flatten()
    kept: list[float] = flat[torch.linspace(0, len(flat) - 1, KEPT).round().long()].tolist()
    return kept


def entry(place: Place, tensor: Tensor) -> dict[str, Any]:
    """What golden.json keeps of one stage."""
    return {
        "stage": place.stage,
        "layer": place.layer,
        "shape": list(tensor.shape),
        "sha256": checksum(tensor),
        "values": sample(tensor),
        "largest": largest(tensor),
    }


def largest(tensor: Tensor) -> float:
    """The largest absolute value, padding's lowest number aside."""
    finite = tensor[tensor != torch.finfo(torch.float32).min]
    return float(finite.abs().max())


def stored() -> dict[str, Any]:
    """The content of golden.json."""
    content: dict[str, Any] = json.loads((resources.files("minibert") / "data" / "golden.json").read_text("utf-8"))
    return content


def batch_of(content: dict[str, Any]) -> Batch:
    """The batch of golden.json."""
    return Batch(*(torch.tensor(content[name]) for name in ("input_ids", "attention_mask", "token_type_ids")))


def check_golden(content: dict[str, Any], encoder: Any) -> list[Finding]:
    """Compare every stage of the encoder with its stored reference."""
    tensors = record(encoder, batch_of(content))
    findings = []
    for kept in content["stages"]:
        place = Place(kept["stage"], kept["layer"])
        ours = tensors.get(place)
        shape = tuple(kept["shape"])
        if ours is None or ours.numel() != torch.Size(shape).numel():
            findings.append(Finding(CHECKPOINT, str(place), shape, "values", float("inf"), False, "no such tensor"))
        elif checksum(ours) == kept["sha256"]:
            findings.append(Finding(CHECKPOINT, str(place), shape, "checksum", 0.0, True))
        else:
            apart = max(abs(a - b) for a, b in zip(sample(ours), kept["values"], strict=True)) / kept["largest"]
            findings.append(Finding(CHECKPOINT, str(place), shape, "values", apart, apart <= TOLERANCE))
    return findings


def check_published() -> list[Finding]:
    """Compare the official checkpoints that are on this machine with published values; name those that are not."""
    findings = []
    for name in PUBLISHED:
        if locate_locally(name) is None:
            note = f"not on this machine; `minibert download {name}` fetches it"
            findings.append(Finding(name, "published values", (3, 3), "not checked", 0.0, True, note))
            continue
        if name in PUBLISHED_KIN:
            findings += check_kin(name)
            continue
        encoder, expected = load(name), PUBLISHED_ROW[name]
        with torch.no_grad():
            row = encoder(torch.tensor([ROW]), attention_mask=(torch.arange(len(ROW)) > 0).long()[None])
        findings.append(published(name, "last hidden state", row.last_hidden_state[0, 1:4, 1:4], expected, 1e-4))
        if name == "bert-base-uncased":
            with torch.no_grad():
                pair = encoder(torch.tensor([PAIR]), token_type_ids=torch.tensor([[0] * 6 + [1] * 6]))
            findings.append(published(name, "[CLS] of a pair", pair.last_hidden_state[0, 0, :10], PUBLISHED_CLS, 6e-3))
            findings.append(published(name, "pooler of a pair", pair.pooler_output[0, :10], PUBLISHED_POOLER, 1e-4))
    return findings


def check_kin(name: str) -> list[Finding]:
    """RoBERTa, XLM-R or CamemBERT."""
    ids, which, expected, within = PUBLISHED_KIN[name]
    with torch.no_grad():
        states = load(name)(torch.tensor([ids])).last_hidden_state[0]
        findings = [published(name, "last hidden state", states[which], expected, within)]
        if name == "FacebookAI/roberta-base":
            tokens = load(name, head="masked-lm")(torch.tensor([ids])).logits[0]
            findings.append(published(name, "masked LM", tokens[FIRST_THREE], PUBLISHED_TOKENS, 1e-4))
    return findings


def published(checkpoint: str, what: str, ours: Tensor, expected: list[Any], within: float) -> Finding:
    """Compare with published values, which are rounded."""
    apart = float((ours - torch.tensor(expected)).abs().max())
    return Finding(checkpoint, f"published: {what}", tuple(ours.shape), "values", apart, apart <= within)


def check_all() -> list[Finding]:
    """Stored references, then published values."""
    return check_golden(stored(), load(locate(CHECKPOINT, download=False).folder)) + check_published()
