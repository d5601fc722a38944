"""Official names of tensors into ours and back, by the tables of families/; every name has one place or a reason.

A weights file is a list of named tensors, and so is the state_dict of a torch module; only the names differ.
"""

from __future__ import annotations

from collections.abc import Iterable

from minibert.families import FAMILIES
from minibert.families.base import Family

# gamma and beta are what TensorFlow calls the weight and bias of LayerNorm; only these exact endings are meant.
LAYER_NORM_ENDINGS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))
WRAPPERS = ("module.", "_orig_mod.")  # DataParallel's and torch.compile's
# Tensors of official files that no module of ours needs, and why.
LEFT_OUT = {
    "embeddings.position_ids": "positions are counted, not stored",
    "embeddings.token_type_ids": "segments are given with each batch, not stored",
}


def bare_name(name: str) -> str:
    """The name without prefixes of wrappers and relatives, and with LayerNorm's gamma and beta as weight and bias."""
    prefixes = (*WRAPPERS, *(family.prefix for family in FAMILIES.values()))
    while prefix := next((p for p in prefixes if name.startswith(p)), ""):
        name = name.removeprefix(prefix)
    for old, new in LAYER_NORM_ENDINGS:
        if name == old or name.endswith("." + old):
            name = name.removesuffix(old) + new
    return name


def name_in_file(family: Family, ours: str, head: str = "", in_group: int = 1) -> str:
    """The official name, without prefix, of a tensor of our state_dict; `head` is that of the model.

    in_group: config.layers_in_group. Raises LookupError where the relative has no such tensor.
    """
    module, _, kind = ours.removeprefix("encoder.").rpartition(".")
    layer = module.split(".")[1] if module.startswith("layers.") else ""
    general = module.replace(f"layers.{layer}", "layers.{}", 1) if layer else module
    table = {**family.modules, **family.heads.get(head, {})}
    if general not in table:
        raise LookupError(f"{family.name} has no {module}")
    official = family.numbered(table[general], int(layer), in_group) if layer else table[general]
    return f"{official}.{kind}"


def full_name(family: Family, ours: str, head: str = "", in_group: int = 1) -> str:
    """The same as files have it: the encoder of a model with a task head stands under the relative's prefix."""
    return (family.prefix if ours.startswith("encoder.") else "") + name_in_file(family, ours, head, in_group)


def why_left_out(family: Family, name: str) -> str:
    """The reason why an official tensor has no place in the model being loaded; "" if none is known."""
    if name in LEFT_OUT:
        return LEFT_OUT[name]
    modules = [module for head in family.heads.values() for module in head.values()]
    modules += [family.modules["pooler.dense"]] if family.has_pooler else []
    if name in family.second_names or any(name.startswith(module + ".") for module in modules):
        return "belongs to a head that was not asked for"
    return ""


def layer_marks(family: Family) -> str:
    """What every tensor of a layer begins with: "encoder.layer." in BERT."""
    return family.official("layers.{}").partition("{}")[0]


def layers_in(family: Family, names: Iterable[str]) -> set[str]:
    """The official layers to which tensors of these bare names belong: {"encoder.layer.0", ...}."""
    marks, depth = layer_marks(family), family.official("layers.{}").count(".") + 1
    return {".".join(name.split(".")[:depth]) for name in names if name.startswith(marks)}
