"""Relatives that nobody published, each in one file as in minibert/families, and their upstreams, written by hand."""

from minibert.families.base import Family
from support.relatives.lean import LEAN
from support.relatives.parallel import PARALLEL

RELATIVES: dict[str, Family] = {family.name: family for family in (LEAN, PARALLEL)}
