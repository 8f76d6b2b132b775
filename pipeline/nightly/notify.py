"""What a night tells the outside: a command, a webhook, or both, once its line is written.

Neither can change what was decided: one that fails or hangs is logged, and ended after `timeout_s`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from gigabatch.pipeline.config.config import ConfigError, NotifySettings
from gigabatch.pipeline.nightly.codes import DRIFTED, FAILED, KEPT, PROMOTED, REFUSED
from gigabatch.pipeline.store.files import json_text

log = logging.getLogger(__name__)
KINDS = {PROMOTED: "promoted", KEPT: "kept", REFUSED: "refused", DRIFTED: "refused", FAILED: "failed"}
PAUSE_S = 2.0  # before a webhook is called again, and twice that before the next time
FROM_ENVIRONMENT = "env:"


def require_notice(settings: NotifySettings) -> None:
    """Raise `ConfigError` before any work where the webhook has no address: no such variable, no http or https URL."""
    if settings.webhook is not None:
        webhook_address(settings.webhook)


def notify(settings: NotifySettings, line: Mapping[str, Any]) -> None:
    """Tell a night's line, where `settings.on` names its kind.

    The command gets the line as JSON on its standard input, and GIGABATCH_EXIT_CODE, GIGABATCH_DECISION and
    GIGABATCH_RUN in its environment. The webhook gets a POST of the line as JSON with the decision as `text`, too,
    which is what Slack, Mattermost and Teams show.
    """
    if KINDS.get(int(line["exit_code"]), "stopped") not in settings.on:
        return
    content = json_text(dict(line))
    if settings.command:
        _run(settings, content, line)
    if settings.webhook is not None:
        _post(settings, json_text({"text": line["decision"], **line}))


def webhook_address(value: str) -> str:
    """The URL, or that of the environment where the setting is `env:NAME`.

    Raises
    ------
    ConfigError
        Where the variable is not set, or it is no http or https URL. The message does not repeat it: it may be secret.
    """
    url = value
    if value.startswith(FROM_ENVIRONMENT):
        name = value.removeprefix(FROM_ENVIRONMENT)
        url = os.environ.get(name, "")
        if not url:
            raise ConfigError(f"nightly.notify.webhook: the environment variable {name} is not set.")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ConfigError(
            "nightly.notify.webhook: it must be an http or https URL, or env:NAME of a variable with one."
        )
    return url


def _run(settings: NotifySettings, content: str, line: Mapping[str, Any]) -> None:
    told = {"EXIT_CODE": line["exit_code"], "DECISION": line["decision"], "RUN": line.get("run") or ""}
    environment = os.environ | {f"GIGABATCH_{name}": str(value).replace("\0", "") for name, value in told.items()}
    try:
        process = subprocess.Popen(
            settings.command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=environment, start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        log.error("nightly.notify.command %s could not be started: %s", settings.command[0], error)
        return
    try:
        _, said = process.communicate(content, timeout=settings.timeout_s)
        if process.returncode:
            log.error(
                "nightly.notify.command %s ended with %d: %s", settings.command[0], process.returncode, said[-500:]
            )
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its children, too, which would hold the pipe
        process.communicate()
        log.error("nightly.notify.command %s was ended after %g s", settings.command[0], settings.timeout_s)


def _post(settings: NotifySettings, content: str) -> None:
    assert settings.webhook is not None
    headers = {"Content-Type": "application/json", "User-Agent": "gigabatch"}
    try:
        url = webhook_address(settings.webhook)
    except ConfigError as error:  # the night that is refused for it is told by this, too
        log.error("nobody was called: %s", error)
        return
    for number in range(settings.retries + 1):
        if number:
            time.sleep(PAUSE_S * number)
        try:
            request = urllib.request.Request(url, content.encode(), headers, method="POST")
            with urllib.request.urlopen(request, timeout=settings.timeout_s):
                return
        except urllib.error.HTTPError as error:
            failed = f"answered {error.code}"
            if error.code < 500 and error.code != 429:  # it will not think better of it
                break
        except (OSError, ValueError, HTTPException) as error:
            failed = str(getattr(error, "reason", error))
    log.error("nightly.notify.webhook %s: %s", urlsplit(url).hostname, failed)
