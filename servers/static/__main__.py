"""`python -m servers.static`: serve a model in static batches.

Reads the options, loads the tokenizer, starts the model's process and serves HTTP until SIGTERM or
SIGINT, which let running and waiting requests finish within `--drain-timeout`. Exit code 2 with one
line where the model cannot be loaded, 0 after an orderly stop.
"""

import logging
import os
import signal
import sys

import uvicorn

from servers.lifetime import die_with_parent, stated_parent
from servers.static.app import Service, create_app, engine_config
from servers.static.guard import Guard
from servers.static.metrics import Metrics
from servers.static.model_process import Child, ModelProcess, State
from servers.static.prompts import ModelFilesError, Prompts
from servers.static.settings import Settings, parse

_KEEP_ALIVE_S = 75
_MAX_HEADER_BYTES = 64 << 10

log = logging.getLogger("static")


def build(settings: Settings, prompts: Prompts, child: Child) -> Service:
    """Wire the parts together; nothing is started yet."""
    metrics = Metrics(settings.batch_size, settings.max_queue)

    def on_state(state: State) -> None:
        metrics.ready.set(state is State.READY)
        detail = ""
        if state is State.READY:
            metrics.info.info(
                {
                    "model_name": settings.served_model_name,
                    "release": settings.release,
                    **model.description,
                }
            )
            detail = f": {model.description}, pid {model.pid}"
        elif state is State.RESTARTING:
            metrics.restarts.inc()
        elif state is State.DEAD:
            detail = f": {model.failure}"
        log.info("model %s%s", state.value, detail)

    cores = len(os.sched_getaffinity(0))
    model = ModelProcess(engine_config(settings, prompts, cores), on_state, child)
    return Service(settings, prompts, model, metrics)


def main() -> int:
    """Serve until stopped; returns the exit code."""
    die_with_parent(stated_parent())
    settings = parse()
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    child = Child()
    try:
        prompts = Prompts(settings.model, settings.max_model_len)
    except ModelFilesError as error:
        print(f"static: {error}", file=sys.stderr)
        return 2
    service = build(settings, prompts, child)

    def stop(*signal_and_frame: object) -> None:
        server.should_exit = True

    app = create_app(service, on_dead=stop)
    config = uvicorn.Config(
        Guard(
            app,
            settings.max_body_bytes,
            settings.api_key,
            lambda status: service.metrics.by_status[status].inc(),
        ),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(settings.drain_timeout_s),
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
    )
    server = uvicorn.Server(config)
    for signum in (signal.SIGTERM, signal.SIGINT):
        # For a signal that comes before uvicorn has set its own handlers. Once it has drained,
        # uvicorn raises the signal again: that must not turn an orderly stop into a crash.
        signal.signal(signum, stop)
    server.run()
    if service.model.failure and not service.model.description:
        print(f"static: the model cannot be loaded: {service.model.failure}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
