"""What a folder holds: a frozen classifier, a fine-tuned task, a masked LM, or an encoder.

One function decides, for `minibert predict`, `evaluate`, `serve` and `trace`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from minibert.checkpoints.load import has_head
from minibert.files import read_json
from minibert.heads import MaskedLM
from minibert.tasks import TASKS
from minibert.tasks.frozen import CLASSIFIER_FILE

REPORT = "training.json"  # in each folder that train/ writes
FolderKind = Literal["frozen", "task", "masked-lm", "encoder"]


def folder_kind(folder: str | os.PathLike[str]) -> FolderKind:
    """frozen: of `minibert classify train`; task: of `minibert finetune`; else a checkpoint with or without masked LM,
    as that of `minibert finetune mask` is.

    folder: for a checkpoint also a name on the Hub. Raises FileNotFoundError or ValueError where it is none of these.
    """
    place = Path(folder)
    if (place / CLASSIFIER_FILE).exists():
        return "frozen"
    if (place / REPORT).is_file() and read_json(place / REPORT).get("task") in TASKS.keys() - {"mask"}:
        return "task"
    return "masked-lm" if has_head(os.fspath(folder), MaskedLM.name) else "encoder"
