"""Process-wide torch settings that a drafter must not change, because they affect other results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import torch


class Setting(NamedTuple):
    """A process-wide setting: how to read and write it. shown: formats a value for messages."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    shown: bool = True


def _set_default_device(device: torch.device) -> None:
    # None restores the default CPU; a device context would slow every torch call.
    torch.set_default_device(None if device == torch.device("cpu") else device)


# The hooks' context restores the grad and inference modes.
TORCH_SETTINGS: Final = (
    Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Setting("the default device", torch.get_default_device, _set_default_device),
    Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    Setting("the deterministic debug mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    Setting("the float32 matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
)


def read(settings: Sequence[Setting] = TORCH_SETTINGS) -> list[Any]:
    """Current values, for `restore`."""
    return [setting.read() for setting in settings]


def restore(before: Sequence[Any], settings: Sequence[Setting] = TORCH_SETTINGS) -> str | None:
    """Restore settings that changed since `read`; returns their description, None if none changed."""
    after = read(settings)
    if after == [*before]:
        return None
    rows = [row for row in zip(settings, before, after, strict=True) if row[1] != row[2]]
    for setting, old, _ in rows:
        setting.write(old)
    return "changed " + " and ".join(
        f"{setting.name} from {old} to {new}" if setting.shown else setting.name for setting, old, new in rows
    )
