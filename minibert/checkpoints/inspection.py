"""What is in a checkpoint: where it was found, its sizes, and what became of every tensor. Downloads nothing."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from minibert.checkpoints import hub
from minibert.checkpoints.load import LoadReport, load
from minibert.checkpoints.tensor_files import weights_sha256
from minibert.config import Config
from minibert.printing import block, table

Figures = dict[str, Any]
SHOWN = 5  # names of tensors in one group


def inspect(name: str) -> Figures:
    """Figures of one checkpoint on this machine. Raises FileNotFoundError where it is not, and what `load` raises."""
    source = hub.locate_locally(name)
    if source is None:
        way_out = f"{name} is not on this machine; `minibert download {name}` fetches it"
        raise FileNotFoundError(way_out if hub.known(name) else hub.not_found(name))
    encoder, report = load(source.folder, report=True)
    checkpoint = hub.known(name)
    digest = weights_sha256(source.folder)
    return {
        "name": name,
        "origin": source.origin,
        "folder": str(source.folder),
        "hub_id": checkpoint.hub_id if checkpoint else None,
        "revision": checkpoint.revision if checkpoint else None,
        "licence": checkpoint.licence if checkpoint else None,
        "sha256": digest,
        "equals_manifest": digest == checkpoint.sha256 if checkpoint else None,
        "dtypes": list(report.dtypes),
        "config": sizes(encoder.config),
        "max_tokens": encoder.config.max_tokens,
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "pooler": None if encoder.pooler is None else trained(encoder.pooler.dense.weight, encoder.pooler.dense.bias),
        "report": groups(report),
    }


def sizes(config: Config) -> Figures:
    """The fields of the config that are one value."""
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    return {name: value for name, value in values.items() if not isinstance(value, dict)}


def trained(weight: Tensor, bias: Tensor) -> Figures:
    """Whether a linear layer, weight (out, in) and bias (out), looks trained, by three numbers.

    Biases begin at exactly 0, and the first step of training moves them. A matrix begins as independent numbers of a
    normal distribution: their kurtosis is 3, and the largest singular value lies at the edge σ (√out + √in). What is
    learned are directions, which stand out beyond that edge, and single large weights, which raise the kurtosis.
    It looks untrained where no bias has moved and neither number is above what chance allows.
    """
    weight, (out, width) = weight.detach().double(), weight.shape
    sigma = weight.std(correction=0).clamp(min=1e-30)
    kurtosis = float(((weight - weight.mean()) / sigma).pow(4).mean())
    gram = weight @ weight.T if out <= width else weight.T @ weight  # its eigenvalues: singular values squared
    edge = float(torch.linalg.eigvalsh(gram)[-1].clamp(min=0).sqrt() / (sigma * (out**0.5 + width**0.5)))
    moved = int(bias.count_nonzero())
    by_chance = kurtosis < 3 + 5 * (24 / weight.numel()) ** 0.5 and edge < 1 + 2 * min(out, width) ** (-2 / 3)
    return {
        "looks_trained": bool(moved) or not by_chance,
        "biases": bias.numel(),
        "biases_not_zero": moved,
        "kurtosis": kurtosis,
        "largest_singular_value_over_edge": edge,
    }


def groups(report: LoadReport) -> Figures:
    """What became of the tensors, in four groups."""
    return {
        "loaded": list(report.loaded),
        "ignored": dict(report.ignored),
        "missing": list(report.missing),
        "wrong_shape": dict(report.wrong_shape),
    }


def checkpoint_text(figures: Figures) -> str:
    """One checkpoint for people."""
    config, report = figures["config"], figures["report"]
    manifest = {True: "equal to the manifest's", False: "NOT the manifest's", None: "not in the manifest"}
    stored = ", ".join(figures["dtypes"])
    lines = [
        block("checkpoint", figures["name"]),
        block("found in", figures["origin"], figures["folder"]),
        block("sha256", figures["sha256"], manifest[figures["equals_manifest"]]),
        block("type", f"{config['model_type']}, {figures['parameters']:,} parameters, stored as {stored}"),
        block(
            "sizes",
            f"{config['num_hidden_layers']} layers, hidden size {config['hidden_size']}, "
            f"{config['num_attention_heads']} heads, feed-forward {config['intermediate_size']}",
            f"{config['vocab_size']:,} tokens, {figures['max_tokens']} positions, "
            f"{config['type_vocab_size']} segments, {config['hidden_act']}",
            *changed(config),
        ),
        *([block("pooler", *pooler_lines(figures["pooler"]))] if figures["pooler"] else []),
        *(block(name.replace("_", " "), *group_lines(report[name])) for name in report),
    ]
    if figures["hub_id"]:
        origin = f"{figures['hub_id']}, revision {figures['revision'][:12]}, licence {figures['licence']}"
        lines.insert(1, block("Hub", origin))
    return "\n".join(lines)


def changed(config: Figures) -> list[str]:
    """What a relative has otherwise than BERT, if anything, in words."""
    distinct, uses = len(set(config["shared_layers"])), len(config["shared_layers"])
    words = []
    if config["embedding_size"] != config["hidden_size"]:
        words.append(f"tables {config['embedding_size']} wide")
    if distinct < uses:
        words.append(f"{distinct} layer{'s' * (distinct > 1)} for {uses} steps")
    if not config["padding_has_position"]:
        words.append(f"positions from {config['first_position']}, of tokens that are not padding")
    if config["task_vocab_size"]:
        words.append(f"{config['task_vocab_size']} tasks")
    return ["; ".join(words)] if words else []


def pooler_lines(pooler: Figures) -> list[str]:
    """Whether the pooler looks trained, and the three numbers."""
    verdict = "looks trained" if pooler["looks_trained"] else "looks untrained: what it gives is [CLS] mixed at random"
    return [
        verdict,
        f"{pooler['biases_not_zero']} of {pooler['biases']} biases are not exactly 0; kurtosis of the weights "
        f"{pooler['kurtosis']:.2f} (at random: 3)",
        f"largest singular value {pooler['largest_singular_value_over_edge']:.2f} of a random matrix's",
    ]


def group_lines(group: list[str] | dict[str, str]) -> list[str]:
    """How many tensors, and the first of those that need an explanation."""
    lines = [f"{len(group)} tensor{'s' * (len(group) > 1)}" if group else "none"]
    if isinstance(group, dict):
        lines += [f"{name} ({why})" for name, why in list(group.items())[:SHOWN]]
        lines += ["..."] if len(group) > SHOWN else []
    return lines


def known_checkpoints() -> list[Figures]:
    """The manifest, and where each checkpoint is on this machine."""
    return [
        {
            "name": checkpoint.name,
            "hub_id": checkpoint.hub_id,
            "licence": checkpoint.licence,
            "megabytes": checkpoint.megabytes,
            "sha256": checkpoint.sha256,
            **whereabouts(checkpoint.name),
        }
        for checkpoint in hub.KNOWN.values()
    ]


def whereabouts(name: str) -> Figures:
    """Where a checkpoint is on this machine, if it is."""
    try:
        source = hub.locate_locally(name)
    except (ValueError, FileNotFoundError) as error:
        return {"available": False, "origin": f"damaged: {error}", "folder": None}
    if source is None:
        return {"available": False, "origin": None, "folder": None}
    return {"available": True, "origin": source.origin, "folder": str(source.folder)}


def known_text(known: list[Figures]) -> str:
    """The manifest for people."""
    rows = [
        [row["name"], f"{row['megabytes']} MB", row["licence"], row["origin"] or f"minibert download {row['name']}"]
        for row in known
    ]
    return table([["checkpoint", "size", "licence", "where"], *rows], left=4)
