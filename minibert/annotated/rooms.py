"""The rooms of the annotated source in reading order, and the tutorials that belong to each."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

FOLDER = "../../tutorials"  # seen from build/annotated, where `make annotated` writes


TITLES = {
    "1_first_contact": "1. First contact",
    "2_through_the_encoder": "2. A token's way through the encoder",
    "3_wordpiece": "3. WordPiece by hand",
    "4_official_weights": "4. Official weights",
    "5_is_it_right": "5. How do we know it is right",
    "6_what_is_in_a_vector": "6. What is in a vector",
    "7_reading_attention": "7. Reading attention",
    "8_making_it_fast": "8. Making it fast",
    "9_fine_tuning": "9. Fine-tuning",
    "10_the_family": "10. The family",
    "11_pretraining": "11. Pretraining",
    "12_distillation": "12. Distillation",
}


class Tutorial(NamedTuple):
    """A notebook, or the part of it under one heading."""

    name: str  # of its file, without .ipynb
    heading: str = ""  # as it stands in the notebook, without #

    @property
    def title(self) -> str:
        """9. Fine-tuning; with the heading, where there is one."""
        return TITLES[self.name] + (f": {self.heading}" if self.heading else "")

    @property
    def address(self) -> str:
        """Where a page of the annotated source finds it; Jupyter's anchor of a heading has - for each space."""
        anchor = f"#{quote(self.heading.replace(' ', '-'))}" if self.heading else ""
        return f"{FOLDER}/{self.name}.ipynb{anchor}"


FIRST, ENCODER, VECTORS = Tutorial("1_first_contact"), "2_through_the_encoder", Tutorial("6_what_is_in_a_vector")
WORDPIECE, WEIGHTS, FAST = Tutorial("3_wordpiece"), Tutorial("4_official_weights"), Tutorial("8_making_it_fast")
TUNING, FAMILY = Tutorial("9_fine_tuning"), Tutorial("10_the_family")
PRETRAINING, DISTILLATION = Tutorial("11_pretraining"), Tutorial("12_distillation")

# Room -> the tutorials that take it apart.
ROOMS: dict[str, tuple[Tutorial, ...]] = {
    "config": (WEIGHTS, FAMILY),
    "model": (Tutorial(ENCODER), Tutorial("5_is_it_right"), Tutorial("7_reading_attention")),
    "pretraining_heads": (PRETRAINING, FAMILY),
    "heads": (VECTORS, TUNING),
    "families/bert": (FAMILY, WEIGHTS),
    "families/distilbert": (FAMILY, DISTILLATION),
    "checkpoints/load": (WEIGHTS,),
    "text/wordpiece": (WORDPIECE,),
    "text/masking": (PRETRAINING,),
    "vectors/pooling": (FIRST, VECTORS),
    "kernels/matmul": (FAST,),
    "kernels/int8": (FAST,),
    "kernels/calibration": (FAST,),
    "vectors/engine": (FAST,),
    "train/loop": (TUNING, PRETRAINING),
    "train/student": (DISTILLATION,),
    "train/distillation": (DISTILLATION,),
}
NAMES = {room.rpartition("/")[2]: room for room in ROOMS}  # as prose calls them: wordpiece.pieces, engine.py
