"""`--service URL` of `run` and `compare`: the same run, done by a service, with the same output."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from loadgen.config import RoundsConfig, RunConfig
from loadgen.errors import ConfigError
from loadgen.flags import flag_of, take
from loadgen.progress import Progress
from loadgen.report_cli import print_json
from loadgen.service_client import Outcome, describe, drive, service_at, upload


def run_at_service(arguments: argparse.Namespace, config: RunConfig) -> int:
    """Send `config` to the service and follow its run; the exit code is the run's."""
    if said := take(RoundsConfig, arguments):
        raise ConfigError(f"{flag_of(next(iter(said)))}: a service does one round; leave it out")
    service = service_at(arguments.service)
    body = _body(arguments, config)
    if config.trace is not None:
        body["trace"] = upload(service, config.trace)
    if arguments.dry_run:
        print_json(describe(service, body))
        return 0
    outcome = drive(service, body, Progress(quiet=arguments.quiet))
    _show(outcome, service.url, as_json=arguments.json)
    return outcome.exit_code


def _body(arguments: argparse.Namespace, config: RunConfig) -> dict[str, Any]:
    """What was said, and no default: the service refuses what is not for a client to say."""
    said = config.model_dump(mode="json", exclude_unset=True)
    body = {key: value for key, value in said.items() if value not in ({}, None)}
    body["targets"] = [
        target.model_dump(mode="json", exclude_none=True) for target in config.targets
    ]
    body["kind"] = "compare" if len(config.targets) > 1 else "run"
    body.pop("trace", None)
    if config.trace is not None:
        body.pop("generate", None)
    if arguments.api_key is not None or arguments.api_key_file is not None:
        body["api_key"] = os.environ[config.request.api_key_env]  # by run_flags.keep_api_key
        body.get("request", {}).pop("api_key_env", None)
    return body


def _show(outcome: Outcome, url: str, *, as_json: bool) -> None:
    where = f"{url}/api/runs/{outcome.run_id}/report"
    if as_json:
        shown = {"run_id": outcome.run_id, "report": where, **(outcome.detail["summary"] or {})}
        if outcome.detail["comparison"]:
            shown["comparison"] = outcome.detail["comparison"]
        print_json(shown)
        return
    sys.stdout.write(outcome.text)
    print(f"report: {where}")
