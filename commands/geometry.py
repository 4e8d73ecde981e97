"""
`kvscope geometry`: how many KV bytes a token of a model takes, and how many tokens a GPU's memory holds.

Takes a Hugging Face config.json (or a folder with one) or a model name of the built-in table.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commands import refuse
from scoring.geometry import MODELS, GeometryError, KvGeometry, capacity_tokens, config_named, kv_geometry

HELP = "KV bytes per token of a model, from its config.json or by name, and what a GPU's memory holds."
MOST_BYTES = 16 * 1024 * 1024
"""A config.json is a few kilobytes; a file beyond this is something else."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `kvscope geometry`."""
    parser.add_argument("model", nargs="?", help="path of a config.json, or a model name such as llama-3.1-8b")
    parser.add_argument("--list", action="store_true", help="list the models known by name")
    parser.add_argument("--kv-dtype", default="bf16", help="bf16, fp16, fp8 (e4m3, e5m2), int8, fp4, nvfp4, int4, auto")
    parser.add_argument("--tp", type=int, default=1, metavar="N", help="GPUs the layers are split over (default 1)")
    parser.add_argument("--dcp", type=int, default=1, metavar="N", help="GPUs a sequence's tokens are split over")
    parser.add_argument("--gib", type=float, metavar="GIB", help="KV memory of one GPU in GiB: adds capacity_tokens")
    parser.add_argument("--block-size", type=int, default=1, metavar="TOKENS", help="allocation unit (default 1)")
    parser.add_argument("--sequences", type=int, default=0, metavar="N", help="sequences whose state the GiB also hold")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="adds the bytes of one sequence of this length")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the geometry; 3 when the configuration or an argument cannot be right."""
    if args.list:
        print("\n".join(MODELS))
        return 0
    if args.model is None:
        return refuse("geometry", "name a model or the path of a config.json (--list shows the names)")
    try:
        geometry = kv_geometry(_config(args.model), args.kv_dtype, args.tp, dcp=args.dcp)
        figures = _figures(geometry, args)
    except (ValueError, OSError) as error:
        return refuse("geometry", f"{args.model[:200]}: {error}")
    print(json.dumps(figures, indent=2) if args.json else _as_text(figures))
    return 0


def _config(model: str) -> Mapping[str, Any]:
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ValueError("the folder has no config.json")
    if not path.is_file():
        if path.suffix == ".json":
            raise ValueError("there is no such file")
        return config_named(model)
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"the file is larger than {MOST_BYTES:,} bytes: this is no config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8-sig"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply to be a config.json") from error
    if not isinstance(config, dict):
        raise GeometryError("config", f"a config.json is an object with keys, this is a {type(config).__name__}")
    return config


def _figures(geometry: KvGeometry, args: argparse.Namespace) -> dict[str, Any]:
    figures: dict[str, Any] = {
        "bytes_per_token": _plain(geometry.bytes_per_token),
        "bytes_per_token_per_gpu": _plain(geometry.bytes_per_token_per_gpu),
        "unique_bytes_per_token": _plain(geometry.unique_bytes_per_token),
        "growth_bytes_per_token": _plain(geometry.growth_bytes_per_token),
        "state_bytes_per_sequence": _plain(geometry.state_bytes_per_sequence),
        "window_bytes_per_sequence": _plain(geometry.window_bytes_per_sequence),
        "window_layers": geometry.window_layers,
        "window_tokens": geometry.window_tokens,
        "kv_layers": geometry.kv_layers,
        "family": geometry.family,
        "kv_dtype": geometry.kv_dtype,
        "tp": geometry.tp,
        "explanation": geometry.explanation,
    }
    if args.context is not None:
        if args.context < 0:
            raise ValueError(f"--context must be >= 0 tokens, not {args.context}")
        figures["sequence_bytes"] = _plain(geometry.sequence_bytes(args.context))
    if args.block_size < 1 or args.sequences < 0:
        raise ValueError("--block-size must be at least 1 token and --sequences at least 0")
    if args.gib is not None:
        figures["capacity_tokens"] = capacity_tokens(geometry, args.gib, args.block_size, sequences=args.sequences)
    return figures


def _plain(value: float) -> float:
    """Return whole bytes as an int, so that they print without a point."""
    return int(value) if float(value).is_integer() else value


def _as_text(figures: Mapping[str, Any]) -> str:
    lines = []
    for name, value in figures.items():
        if name == "explanation":
            continue
        shown = "none" if value is None else f"{value:,}" if isinstance(value, int | float) else value
        lines.append(f"{name:<26} {shown}")
    return "\n".join([*lines, "", *figures["explanation"].replace(". ", ".\n").split("\n")])
