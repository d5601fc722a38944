"""The parity ladder at the sizes that people use; minutes long, so only `make test-all` climbs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibert.checkpoints import hub
from minibert.parity import ladder
from minibert.parity.checkpoints import BERT_BASE, BERT_LARGE, DISTILBERT_BASE, RELATIVES, Size

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size", [DISTILBERT_BASE, BERT_BASE, *RELATIVES, BERT_LARGE], ids=lambda size: size.name)
def test_a_full_size_checkpoint_is_bit_identical_on_every_rung(size: Size) -> None:
    assert all(r.equal for r in ladder.climb_random(size).rows)


def test_the_real_checkpoint_is_bit_identical_with_every_head(minilm: Path) -> None:
    assert all(r.equal for r in ladder.climb_checkpoint(hub.locate(minilm)).rows)
