"""What is in a checkpoint: its source, its sizes, and what loading did with every tensor. Downloads nothing."""

from dataclasses import fields

import torch
from torch import Tensor

from minibert.checkpoints.checkpoint import Checkpoint
from minibert.checkpoints.load import load
from minibert.checkpoints.sentence_files import read_stated
from minibert.storage import hub
from minibert.utils.printing import Figures, block, table

SHOWN = 5  # names of tensors in one group


def inspect(name: str) -> Figures:
    """Return figures of one local checkpoint. Raises FileNotFoundError if it is not local, and what `load` raises."""
    source = hub.locate_locally(name)
    if source is None:
        raise FileNotFoundError(hub.not_found(name, f"`minibert download {name}` fetches it"))
    checkpoint = Checkpoint(*source)
    encoder, report = load(checkpoint, report=True)
    known = hub.known(name)
    return {
        "name": name,
        "origin": source.origin,
        "folder": str(source.folder),
        **{key: getattr(known, key, None) for key in ("hub_id", "revision", "licence")},
        "sha256": checkpoint.weights_sha256,
        "equals_manifest": checkpoint.weights_sha256 == known.sha256 if known else None,
        "dtypes": list(report.dtypes),
        "config": {
            key: value
            for part in (encoder.config, encoder.config.architecture)
            for key, value in ((field.name, getattr(part, field.name)) for field in fields(part))
            if value is None or isinstance(value, int | float | str | tuple)
        },
        "max_tokens": encoder.config.max_tokens,
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "pooler": None if encoder.pooler is None else trained(encoder.pooler.dense.weight, encoder.pooler.dense.bias),
        "report": {
            "loaded": list(report.loaded),
            "ignored": report.ignored,
            "missing": report.missing,
            "wrong_shape": report.wrong_shape,
        },
        "vectors": stated_vectors(checkpoint),
        "tensors": [
            {
                "name": stored.name,
                "dtype": stored.dtype,
                "shape": list(stored.shape),
                "in_minibert": report.loaded.get(stored.name),
            }
            for stored in checkpoint.tensors.values()
        ],
    }


def stated_vectors(checkpoint: Checkpoint) -> str | None:
    """Return what the checkpoint's files state about its vectors, or why they cannot be followed; None if nothing."""
    try:
        stated = read_stated(checkpoint)
    except (ValueError, TypeError, FileNotFoundError) as error:
        return str(error)
    return None if stated is None else f"{stated}, which pooling auto follows"


def trained(weight: Tensor, bias: Tensor) -> Figures:
    """Return whether a linear layer, weight (out, in) and bias (out), looks trained, by three numbers.

    Biases begin at exactly 0, and the first step of training moves them. A matrix begins as independent numbers of a
    normal distribution: their kurtosis is 3 (2.4 if it is truncated), and the largest singular value lies at the edge
    σ (√out + √in). Training adds directions, which exceed that edge, and long training single large weights, which
    raise the kurtosis; after a short one only the biases tell for certain. The layer looks untrained if every bias is
    0 and neither number exceeds what chance allows.
    """
    out, width = weight.shape
    weight = weight.detach().double()
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


def checkpoint_text(figures: Figures) -> str:
    """Return the figures of one checkpoint as text."""
    config, report = figures["config"], figures["report"]
    manifest = {True: "equal to the manifest's", False: "NOT the manifest's", None: "not in the manifest"}
    distinct = len(set(config["order"]))
    E = config["embedding_size"]
    local = [window for window in config["windows"] if window is not None]
    special = {  # what a relative of BERT has changed
        f"tables {E} wide": config["hidden_size"] != E,
        f"{distinct} distinct layers for {config['num_hidden_layers']} steps": config["num_hidden_layers"] > distinct,
        f"positions from {config['first_position']}, of real tokens only": not config["padding_has_position"],
        f"{config.get('task_type_vocab_size')} tasks": config.get("use_task_id"),
        f"rotary positions; {len(local)} of the layers see a window of {max(local, default=0)}": config[
            "rotary_thetas"
        ],
    }
    lines = [
        block("checkpoint", figures["name"]),
        block("found in", figures["origin"], figures["folder"]),
        block("sha256", figures["sha256"], manifest[figures["equals_manifest"]]),
        block(
            "type",
            f"{config['model_type']}, {figures['parameters']:,} parameters, stored as {', '.join(figures['dtypes'])}",
        ),
        block(
            "sizes",
            f"{config['num_hidden_layers']} layers, hidden size {config['hidden_size']}, "
            f"{config['num_attention_heads']} heads, feed-forward {config['intermediate_size']}",
            f"{config['vocab_size']:,} tokens, {figures['max_tokens']} positions, "
            f"{config['type_vocab_size']} segments, {config['hidden_act']}",
            *(words for words, true in special.items() if true),
        ),
    ]
    if figures["hub_id"]:
        origin = f"{figures['hub_id']}, revision {figures['revision'][:12]}, licence {figures['licence']}"
        lines.insert(1, block("Hub", origin))
    if figures["pooler"]:
        lines.append(pooler_text(figures["pooler"]))
    if figures["vectors"]:
        lines.append(block("vectors", figures["vectors"]))
    for name, group in report.items():
        reasons = [f"{key} ({why})" for key, why in group.items()] if name in ("ignored", "wrong_shape") else []
        shown = [*reasons[:SHOWN], "..."] if len(reasons) > SHOWN else reasons
        lines.append(block(name.replace("_", " "), f"{len(group)} tensors", *shown))
    return "\n".join(lines)


def pooler_text(pooler: Figures) -> str:
    """Return the figures of a pooler as text."""
    verdict = "trained" if pooler["looks_trained"] else "untrained: its output is a random mixture of [CLS]"
    return block(
        "pooler",
        f"looks {verdict}",
        f"{pooler['biases_not_zero']} of {pooler['biases']} biases are not exactly 0; kurtosis of the weights "
        f"{pooler['kurtosis']:.2f} (at random: 3)",
        f"largest singular value {pooler['largest_singular_value_over_edge']:.2f} of a random matrix's",
    )


def tensors_text(figures: Figures) -> str:
    """Return each tensor: its name, dtype and shape in the file, and its name in minibert's model."""
    rows = [
        [tensor["name"], tensor["dtype"], " x ".join(map(str, tensor["shape"])), tensor["in_minibert"] or "not loaded"]
        for tensor in figures["tensors"]
    ]
    return table([["in the file", "dtype", "shape", "in minibert"], *rows], left=4)


def known_checkpoints() -> list[Figures]:
    """Return the manifest, and where each of its checkpoints is on this machine."""
    rows = []
    for checkpoint in hub.KNOWN.values():
        row = {key: getattr(checkpoint, key) for key in ("name", "hub_id", "licence", "megabytes", "sha256")}
        try:
            source = hub.locate_locally(checkpoint.name)
            where = {"origin": source and source.origin, "folder": str(source.folder) if source else None}
        except (ValueError, FileNotFoundError) as error:
            source = None
            where = {"origin": f"damaged: {error}", "folder": None}
        rows.append(row | where | {"available": source is not None})
    return rows


def known_text(known: list[Figures]) -> str:
    """Return the manifest as text."""
    rows = [
        [row["name"], f"{row['megabytes']} MB", row["licence"], row["origin"] or f"minibert download {row['name']}"]
        for row in known
    ]
    return table([["checkpoint", "size", "licence", "where"], *rows], left=4)
