"""Whether a service can start as it is asked to, told before torch is imported."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from gigabatch.pipeline.config.serving import ServeSettings
from gigabatch.pipeline.serving.errors import ServingError

TOKEN_VARIABLE = "GIGABATCH_TOKEN"
SHORTEST_TOKEN = 16
PACKAGES = "fastapi", "prometheus_client", "uvicorn"  # of the extra serve, without which nothing is answered


def asked_settings(settings: ServeSettings, host: str | None, port: int | None, workers: int | None) -> ServeSettings:
    """The configuration's settings, with what the command line says instead; `ServingError` where that cannot be."""
    flags = {"host": host, "port": port, "workers": workers}
    try:
        return ServeSettings(**{**settings.model_dump(), **{k: v for k, v in flags.items() if v is not None}})
    except ValidationError as error:
        found = "; ".join(
            f"serve.{item['loc'][0]}: {item['msg']} (found {item['input']!r})"
            if item["loc"]
            else f"serve: {item['msg']}"
            for item in error.errors()
        )
        raise ServingError(f"{found}.") from error


def require_packages() -> None:
    """Raise `ServingError` where a package is not installed that every service needs."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise ServingError(f"serve: needs {', '.join(missing)}: pip install 'gigabatch[serve]'.")


def require_start(settings: ServeSettings, folders: Sequence[Path], insecure: bool) -> str | None:
    """The token. Raises `ServingError` where nobody may listen like that, none of `folders` is there, or the port is
    taken, which would else be found when all workers have loaded a bundle."""
    token = read_token(settings)
    require_safe(settings, token, insecure)
    if not any(os.path.lexists(folder) for folder in folders):
        names = " nor ".join(map(str, folders))
        raise ServingError(
            f"serve: there is no run {names}. Train first (gigabatch train), promote a run (gigabatch runs lists them, "
            "gigabatch promote ID), or give another with --run."
        )
    require_free(settings)
    return token


def require_free(settings: ServeSettings) -> None:
    """Raise `ServingError` where nothing can listen at the address; nothing listens there after it either."""
    family = address_family(settings)
    try:
        with socket.socket(family) as probe:  # as `socket.create_server` makes them
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind((settings.host, settings.port))
    except OSError as error:
        raise cannot_listen(settings, error) from error


def address_family(settings: ServeSettings) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in settings.host else socket.AF_INET


def cannot_listen(settings: ServeSettings, error: OSError) -> ServingError:
    return ServingError(f"serve: cannot listen at {settings.host}:{settings.port} ({error}).")


def read_token(settings: ServeSettings) -> str | None:
    """From the variable GIGABATCH_TOKEN, or the file; None where neither is set. Never from the command line, which
    other users of the machine can read."""
    given = os.environ.get(TOKEN_VARIABLE)
    where = TOKEN_VARIABLE
    if settings.token_file is not None:
        if given is not None:
            raise ServingError(f"serve: both {TOKEN_VARIABLE} and serve.token_file are set. Remove one of them.")
        where = str(settings.token_file)
        try:
            given = settings.token_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ServingError(f"serve.token_file: {settings.token_file} cannot be read ({error}).") from error
    if given is None:
        return None
    if len(given) < SHORTEST_TOKEN or not all("!" <= letter <= "~" for letter in given):
        raise ServingError(
            f"serve: the token in {where} must be at least {SHORTEST_TOKEN} printable ASCII characters without spaces. "
            "For example: openssl rand -hex 32."
        )
    return given


def require_safe(settings: ServeSettings, token: str | None, insecure: bool) -> None:
    """Raise `ServingError` where strangers could ask without a token, unless that is said to be wanted."""
    if token is None and not insecure and not is_loopback(settings.host):
        raise ServingError(
            f"serve: {settings.host} can be reached from other machines, and no token is set. Set {TOKEN_VARIABLE} or "
            "serve.token_file, listen at 127.0.0.1, or say --insecure."
        )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address; a name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
