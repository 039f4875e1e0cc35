"""How the tools in a build's pod reach registries: the same RegistryConfig, in each tool's own words."""

from __future__ import annotations

import json
from collections.abc import Mapping

from kfp_mindspore.images.builders.cluster_layout import (
    BUILDKITD_FILE,
    CA_FILE,
    REGISTRIES_CONF_FILE,
    REGISTRY_FILE,
    SETTINGS_FOLDER,
)
from kfp_mindspore.images.registry.configuration import RegistryConfig


def write_registry_files(registry: RegistryConfig, hosts: tuple[str, ...]) -> dict[str, str]:
    """Return the files by which Buildah, BuildKit and the append builder reach registries; no login is in them.

    Args:
        registry: How registries are reached.
        hosts: Registries that the build reads from and pushes to.
    """
    written = {
        REGISTRIES_CONF_FILE: write_registries_conf(registry),
        BUILDKITD_FILE: write_buildkitd_toml(registry, hosts),
        REGISTRY_FILE: json.dumps(
            {
                "insecure": list(registry.insecure),
                "mirrors": dict(registry.mirrors),
                "timeout_seconds": registry.timeout_seconds,
                "attempts": registry.attempts,
                "own_ca": registry.ca_file is not None,
            },
            sort_keys=True,
        ),
    }
    if registry.ca_file is not None:
        written[CA_FILE] = registry.ca_file.read_text()
    return written


def read_registry_settings(settings: Mapping[str, object]) -> dict[str, object]:
    """Return RegistryConfig's arguments from the parsed REGISTRY_FILE."""
    arguments = {key: settings[key] for key in ("mirrors", "timeout_seconds", "attempts")}
    insecure = settings["insecure"]
    assert isinstance(insecure, list)
    return {**arguments, "insecure": tuple(insecure)}


def write_registries_conf(registry: RegistryConfig) -> str:
    """Return containers-registries.conf: insecure hosts, and mirrors in the place of their hosts."""
    blocks = ["unqualified-search-registries = []"]
    for host in sorted({*registry.insecure, *registry.mirrors}):
        place = registry.mirrors.get(host, host).rstrip("/")
        lines = ["[[registry]]", f"prefix = {_quote(host)}", f"location = {_quote(place)}"]
        if registry.is_insecure(place.partition("/")[0]):
            lines.append("insecure = true")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def write_buildkitd_toml(registry: RegistryConfig, hosts: tuple[str, ...]) -> str:
    """Return BuildKit's daemon configuration: plain HTTP, authorities and mirrors by host."""
    blocks = []
    places = {place.partition("/")[0] for place in registry.mirrors.values()}
    for host in sorted({*registry.insecure, *registry.mirrors, *hosts, *places}):
        lines = [f"[registry.{_quote(host)}]"]
        if host in registry.mirrors:
            lines.append(f"mirrors = [{_quote(registry.mirrors[host].rstrip('/'))}]")
        if registry.is_insecure(host):
            lines.append("http = true")
        if registry.ca_file is not None:
            lines.append(f"ca = [{_quote(f'{SETTINGS_FOLDER}/{CA_FILE}')}]")
        if len(lines) > 1:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n" if blocks else ""


def _quote(text: str) -> str:
    # A basic string of TOML is one of JSON.
    return json.dumps(text)
