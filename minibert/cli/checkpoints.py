"""The commands about checkpoints: `minibert download`, `inspect`, `convert` and `export`."""

from argparse import ArgumentParser

from minibert.cli.shared import DEFAULT_MODEL, Arguments, add_overwrite
from minibert.utils.files import user_path
from minibert.utils.printing import Figures, block, printable


def download_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=f"a Hub name, such as {DEFAULT_MODEL}")


def download(args: Arguments) -> Figures:
    """Fetch a checkpoint into weights/, unless it is here already."""
    from minibert.storage import hub

    source = hub.locate_locally(args.model)
    folder = source.folder if source else hub.fetch(args.model)
    state = f"here already, from {source.origin}" if source else "downloaded"
    print(printable(f"{args.model} is {state}: {folder}"))
    return {"model": args.model, "folder": str(folder), "downloaded": source is None}


def inspect_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL", help="a Hub name or a folder (default: all that are known)")
    add("--tensors", action="store_true", help="also each tensor: name, dtype, shape, and its name in minibert")


def inspect(args: Arguments) -> Figures:
    """Print what is in a checkpoint on this machine, or which known checkpoints are here; download nothing."""
    from minibert.checkpoints import inspection

    if args.model is None:
        if args.tensors:
            raise ValueError("--tensors is about one checkpoint; name it")
        known = inspection.known_checkpoints()
        print(inspection.known_text(known))
        return {"checkpoints": known}
    figures = inspection.inspect(args.model)
    print(inspection.checkpoint_text(figures))
    if args.tensors:
        print(inspection.tensors_text(figures))
    return figures


def convert_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="with pytorch_model.bin and config.json")
    add("--out", required=True, type=user_path, metavar="FOLDER2", help="a new folder")
    add_overwrite(parser)
    add("--model-type", metavar="TYPE", help="such as bert, if config.json states none")


def convert(args: Arguments) -> Figures:
    """Write a checkpoint whose weights are a pickle as safetensors; a pickle that would run code is refused."""
    from minibert.checkpoints import convert

    done = convert.convert(args.folder, args.out, model_type=args.model_type, overwrite=args.overwrite)
    print(block("read", f"{done['folder']}: {', '.join(done['read'])}"))
    for name, why in done["left_out"].items():
        print(block("left out", f"{name}: {why}"))
    written = f"{', '.join(done['written'])}; {done['tensors']} tensors, model_type {done['model_type']}"
    print(block("written", f"{done['out']}: {written}"))
    return done


def export_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="NAME", help="a Hub name or a folder")
    add("--out", required=True, type=user_path, metavar="FILE.onnx", help="the file")
    heads = "a task head that the checkpoint has, or encoder (default: its head of fine-tuning, else encoder)"
    add("--head", metavar="HEAD", help=heads)
    add_overwrite(parser)


def export(args: Arguments) -> Figures:
    """Write a checkpoint as an ONNX file that takes texts of any number and length, and compare it with the model."""
    from minibert.checkpoints import export

    exported = export.export(args.model, args.out, head=args.head, overwrite=args.overwrite)
    print(block("inputs", ", ".join(exported["inputs"])))
    print(block("outputs", ", ".join(exported["outputs"])))
    print(block("compared", f"with the model, by onnxruntime: largest difference {exported['difference']:.1e}"))
    print(block("written", f"{args.out}: {args.out.stat().st_size / 1e6:.1f} MB"))
    return exported
