"""A model as lint is given it: a config's values or file, a folder, or a model on the hub."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gacprof.checkpoint.containers import weights_in
from gacprof.checkpoint.inventory import Inventory
from gacprof.checkpoint.scan import HUB_NAME, format_beside, scan
from gacprof.core.errors import ConfigError
from gacprof.core.files import read_object


def read_model(
    config: str | Path | Mapping[str, Any],
) -> tuple[str, Mapping[str, Any], Inventory | None]:
    """Return a model's name, its config with a format's file beside it, and a folder's headers."""
    if isinstance(config, Mapping):
        return "config", checked_config("config", config), None
    name, path = str(config), Path(config)
    stored: Inventory | None = None
    if not path.exists() and path.suffix != ".json" and HUB_NAME.fullmatch(name):
        stored = scan(name)
        return name, checked_config(name, stored.config), stored
    if path.is_dir():
        stored = scan(path) if weights_in(path) else None
        path = path / "config.json"
    try:
        values = read_object(path)
        if "quantization_config" not in values:
            values = {**format_beside(path.parent), **values}
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there: download the config.json first") from None
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON of a config: {error}") from None
    return name, checked_config(name, values), stored


def checked_config(name: str, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config. Raises :class:`ConfigError` for an empty one."""
    if not values:
        raise ConfigError(f"{name} holds no config: give a config.json or a folder with one")
    return values
