"""What a check found, for people and as figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minibert.checking.numbers import differences

COLUMNS, ROWS = 64, 16  # of a heat map
SHADES = " .:-=+*#%@"  # from right to a million times the bound


@dataclass(frozen=True)
class Report:
    """Whether everything is right, and if not the first stage that is not, and why."""

    ok: bool
    stage: str | None  # the first that is wrong or not written
    layer: int | None  # of that stage, from 0
    causes: tuple[str, ...]  # the likeliest first
    largest: float  # the largest difference
    lines: tuple[str, ...]  # for people

    @property
    def figures(self) -> dict[str, Any]:
        """The report as JSON."""
        largest = self.largest if math.isfinite(self.largest) else None
        return {
            "ok": self.ok,
            "stage": self.stage,
            "layer": self.layer,
            "causes": list(self.causes),
            "largest": largest,
        }

    def __str__(self) -> str:
        return "\n".join([*self.lines, *(f"cause: {cause}" for cause in self.causes)])


def heat_map(found: Tensor, expected: Tensor, bound: float) -> list[str]:
    """Return which numbers of a text differ, as lines: a row for each token, a sign for its largest difference.

    found, expected: (B,S,D), of which the text with the largest difference is drawn; of other shapes nothing is.
    """
    if found.dim() != 3:
        return []
    apart = differences(found, expected) / bound  # (B,S,D)
    text = int(apart.flatten(1).amax(dim=1).argmax())
    used = int(apart[text].amax(dim=1).nonzero().max()) + 1  # without padding at the end
    rows = apart[text][: min(used, ROWS)]  # (S,D)
    columns = torch.stack([part.amax(dim=1) for part in rows.tensor_split(min(COLUMNS, rows.shape[1]), dim=1)], dim=1)
    levels = columns.clamp(min=1e-9).log10().mul(1.5).ceil().clamp(0, len(SHADES) - 1).int()
    lines = ["".join(SHADES[level] for level in row) for row in levels.tolist()]
    more = f", its first {ROWS} tokens" * (used > ROWS)
    head = f"text {text}{more}; a row per token, its {found.shape[2]} numbers from left to right; blank is right:"
    return [head, *(f"  {number:>2} |{line}|" for number, line in enumerate(lines))]
