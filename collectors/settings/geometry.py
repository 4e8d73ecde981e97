"""KV bytes per token of a worker of the fleet file, from the model's config.json it names."""

import json

from collectors.settings.model import WorkerSettings
from scoring.geometry import kv_geometry


def configured_bytes_per_token(worker: WorkerSettings) -> float | None:
    """
    Return KV bytes of one token over all GPUs behind a rank as the fleet file gives them, or None when it does not.

    Raises:
        ValueError: The config.json cannot be read or is no model configuration; the text says what is wrong.
    """
    if worker.bytes_per_token is not None or worker.model_config_path is None:
        return worker.bytes_per_token
    path = worker.model_config_path
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"= {path}: cannot be read as JSON ({type(error).__name__})") from error
    if not isinstance(config, dict):
        raise ValueError(f"= {path}: is no model configuration (a JSON object)")
    try:
        return kv_geometry(config, worker.kv_dtype or "bf16", worker.tp or 1).bytes_per_token
    except ValueError as error:
        raise ValueError(f"= {path}: {error}") from error
