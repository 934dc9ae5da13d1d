"""What several commands share."""

from __future__ import annotations


def parse_settings(options: list[str]) -> dict[str, str]:
    """KEY=VALUE pairs of --set."""
    settings = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key:
            raise ValueError(f"--set takes KEY=VALUE, not {option!r}")
        settings[key.strip()] = value.strip()
    return settings
