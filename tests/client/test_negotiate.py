"""What is settled with targets before a run, against servers that take less than vLLM does."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trustme

from loadgen.client import negotiate as negotiate_module
from loadgen.client.client import Client
from loadgen.client.negotiate import Agreement, negotiate
from loadgen.client.openai import CHAT, COMPLETIONS, Feature
from loadgen.clock import monotonic
from loadgen.config import LoadConfig, RequestConfig, TargetConfig
from loadgen.errors import ConfigError, TargetNotReady
from loadgen.live import LiveCounters
from loadgen.truth import TruthConfig, TruthServer
from loadgen.truth_faults import Fault

pytestmark = pytest.mark.anyio

USAGE = {Feature.STREAM_USAGE, Feature.CONTINUOUS_USAGE}
LENGTH = {Feature.IGNORE_EOS, Feature.MIN_TOKENS}


@pytest.fixture
def anyio_backend() -> object:
    """uvloop, as a run has it."""
    return ("asyncio", {"use_uvloop": True})


async def settle(
    *configs: dict[str, Any], has_messages: bool = False, path: str = "", **request: Any
) -> Agreement:
    """Negotiate with truth servers of these configurations."""
    async with AsyncExitStack() as stack:
        config = RequestConfig(**request)
        clients = []
        for number, fields in enumerate(configs):
            truth = TruthConfig(**{"ttft_ms": 2.0, "itl_ms": 1.0} | fields)
            server = await stack.enter_async_context(TruthServer(truth))
            target = TargetConfig(name=f"t{number}", base_url=server.base_url + path)
            clients.append(await stack.enter_async_context(Client(target, config, LiveCounters())))
        return await negotiate(clients, config, LoadConfig(), has_messages=has_messages)


async def test_a_server_that_takes_everything() -> None:
    """Completions with usage in each chunk and lengths held; the model is the only one served."""
    agreement = await settle({"model": "m", "max_model_len": 4096})
    (options,) = agreement.options
    (info,) = agreement.targets
    assert (options.endpoint, options.model) == (COMPLETIONS, "m")
    assert options.features == USAGE | LENGTH
    assert agreement.length_is_held
    assert info.max_model_len == 4096
    assert info.server == "loadgen-truth"


@pytest.mark.parametrize(
    ("refused", "left"),
    [
        ({"ignore_eos", "min_tokens"}, USAGE),
        ({"stream_options"}, LENGTH),
        ({"stream_options.continuous_usage_stats"}, {Feature.STREAM_USAGE} | LENGTH),
        ({"ignore_eos", "min_tokens", "stream_options"}, set()),
    ],
    ids=" ".join,
)
async def test_a_refused_field_is_not_sent(refused: set[str], left: set[Feature]) -> None:
    """What a server refuses is left out, and what it takes besides is kept."""
    agreement = await settle({"reject": frozenset(refused)})
    assert agreement.options[0].features == left


async def test_a_comparison_sends_what_all_take() -> None:
    """The fields of a comparison are the same for every target: the intersection."""
    agreement = await settle({}, {"reject": frozenset({"ignore_eos"})})
    first, second = agreement.options
    assert first.features == second.features == USAGE | {Feature.MIN_TOKENS}


async def test_usage_that_never_comes_is_not_counted_on() -> None:
    """A server that takes stream_options and tells nothing is not taken to tell usage."""
    agreement = await settle({"usage": "never"})
    assert not agreement.options[0].features & USAGE


async def test_usage_that_comes_once_is_not_continuous() -> None:
    """A server that ignores continuous_usage_stats is not taken to tell each chunk's tokens."""
    agreement = await settle({"usage": "last"})
    assert agreement.options[0].features & USAGE == {Feature.STREAM_USAGE}


async def test_a_server_that_ignores_ignore_eos_is_not_held_to_lengths() -> None:
    """Where answers stop early all the same, short answers are no fault."""
    from loadgen.truth_faults import Fault

    agreement = await settle({"fault": Fault("short", after_tokens=3)})
    assert not agreement.options[0].features & LENGTH
    assert not agreement.length_is_held


async def test_of_two_fields_that_hold_a_length_one_may_do() -> None:
    """A server that ends early unless min_tokens forbids it, and ignores ignore_eos, is held."""
    agreement = await settle({"eos_after": 3, "ignore": frozenset({"ignore_eos"})})
    assert agreement.options[0].features >= LENGTH
    assert agreement.length_is_held


async def test_a_field_that_is_left_over_is_tried_alone() -> None:
    """Where one target heeds only what another refuses, no length is taken to be held."""
    heeds_one = {"eos_after": 3, "ignore": frozenset({"min_tokens"})}
    refuses_it = {"reject": frozenset({"ignore_eos"})}
    for configs in ((heeds_one, refuses_it), (refuses_it, heeds_one)):
        agreement = await settle(*configs)
        assert not agreement.options[0].features & LENGTH
        assert agreement.options[0].features >= USAGE
        assert not agreement.length_is_held


@pytest.mark.parametrize(
    "config",
    [
        {"reject": frozenset({"ignore_eos", "min_tokens"})},
        {"eos_after": 3, "ignore": frozenset({"ignore_eos", "min_tokens"})},
    ],
    ids=["refused", "ignored"],
)
async def test_lengths_that_must_be_held_and_cannot(config: dict[str, Any]) -> None:
    """With --ignore-eos the run does not start, and the line names the target."""
    with pytest.raises(TargetNotReady, match=r"--ignore-eos: t1 ") as caught:
        await settle({}, config, ignore_eos=True)
    assert "\n" not in str(caught.value)


async def test_min_tokens_alone_is_enough_for_ignore_eos() -> None:
    """--ignore-eos asks for held lengths, by whichever field the targets take."""
    agreement = await settle({"reject": frozenset({"ignore_eos"})}, ignore_eos=True)
    assert agreement.length_is_held


async def test_lengths_need_not_be_held() -> None:
    """--no-ignore-eos sends neither field."""
    agreement = await settle({}, ignore_eos=False)
    assert not agreement.options[0].features & LENGTH


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
async def test_the_base_url_may_have_its_version_or_not(path: str) -> None:
    """`/v1` and even an endpoint at the end of the base URL change nothing."""
    assert (await settle({}, path=path)).options[0].endpoint == COMPLETIONS


async def test_only_the_newer_name_of_the_limit() -> None:
    """A chat server that refuses max_tokens is asked with max_completion_tokens."""
    agreement = await settle({"reject": frozenset({"max_tokens"})}, endpoint="/v1/chat/completions")
    assert Feature.MAX_COMPLETION_TOKENS in agreement.options[0].features


async def test_the_newer_name_goes_to_all_targets() -> None:
    """Where one target takes only max_completion_tokens, every target is sent that."""
    agreement = await settle(
        {"reject": frozenset({"max_tokens"})}, {}, endpoint="/v1/chat/completions"
    )
    assert all(Feature.MAX_COMPLETION_TOKENS in o.features for o in agreement.options)


async def test_no_common_name_of_the_limit_is_refused() -> None:
    """Two servers that share no name for the limit cannot be sent the same bytes."""
    with pytest.raises(TargetNotReady, match="same requests"):
        await settle(
            {"reject": frozenset({"max_tokens"})},
            {"reject": frozenset({"max_completion_tokens"})},
            endpoint="/v1/chat/completions",
        )


async def test_messages_go_to_chat() -> None:
    """A trace with chat messages is sent to the chat endpoint, and to no other."""
    assert (await settle({}, has_messages=True)).options[0].endpoint == CHAT
    with pytest.raises(ConfigError, match="chat messages"):
        await settle({}, has_messages=True, endpoint="/v1/completions")


async def test_a_wrong_key_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that wants a key says so before the run, and the key is not repeated."""
    monkeypatch.setenv("OPENAI_API_KEY", "canary-0123456789")
    with pytest.raises(TargetNotReady, match="OPENAI_API_KEY") as caught:
        await settle({"api_key": "right"})
    assert "canary" not in str(caught.value)


async def test_the_key_that_is_wanted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a target with a key of its own that is its own variable, and no other."""
    monkeypatch.setenv("KEY_A", "canary-0123456789")
    async with TruthServer(TruthConfig(api_key="right")) as server:
        target = TargetConfig(name="a", base_url=server.base_url, api_key_env="KEY_A")
        async with Client(target, RequestConfig(), LiveCounters()) as client:
            with pytest.raises(TargetNotReady, match="set KEY_A to an API key"):
                await negotiate([client], RequestConfig(), LoadConfig(), has_messages=False)


async def test_a_named_key_that_is_not_set_is_told() -> None:
    """--api-key-env of a variable that is not there is a mistake, not a run without a key."""
    with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
        await settle({}, api_key_env="NO_SUCH_KEY")


async def test_a_certificate_that_nobody_vouches_for_is_told() -> None:
    """TLS that fails is told as such at once, with the flag that skips it, and not waited for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    async with TruthServer(TruthConfig(), ssl_context=context) as server:
        target = TargetConfig(base_url=server.base_url)
        config = RequestConfig()
        async with Client(target, config, LiveCounters()) as client:
            with pytest.raises(TargetNotReady, match="--insecure"):
                await negotiate([client], config, LoadConfig(ready_timeout=60))


async def test_a_proxy_that_is_not_used_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing answers and the environment names a proxy, the line says who would use it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    config = RequestConfig()
    async with Client(
        TargetConfig(base_url="http://127.0.0.1:9"), config, LiveCounters()
    ) as client:
        with pytest.raises(TargetNotReady, match="--transport httpx"):
            await negotiate([client], config, LoadConfig(ready_timeout=0))


@pytest.mark.parametrize("size", [1, 1 << 20])
async def test_a_list_of_models_that_never_ends(serve: Any, size: int) -> None:
    """Drip by drip it is given up in the time that it has; in a flood, at a bound of its bytes."""

    async def script(peer: Any) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            await peer.send(b" " * size)
            await asyncio.sleep(0.05 if size == 1 else 0)

    config = RequestConfig()
    async with serve(script) as server:
        target = TargetConfig(name="t", base_url=server.url)
        async with Client(target, config, LiveCounters()) as client:
            begun_s = monotonic()
            with pytest.raises(TargetNotReady, match=r"whole answer|over 16777216 bytes"):
                await negotiate([client], config, LoadConfig(ready_timeout=0.5))
            assert monotonic() - begun_s < 10


@pytest.mark.parametrize("busy", range(6))
async def test_a_server_that_is_busy_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, busy: int
) -> None:
    """Whichever question it answers with 503 is asked again: what is settled is what it takes."""
    asked = 0
    ask = Client.ask

    async def one_busy(client: Client, request: Any, answer: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked != busy + 1:
            return await ask(client, request, answer)
        answer.response(503, (), monotonic())
        answer.end(monotonic(), is_whole=True)
        return None, ""

    monkeypatch.setattr(Client, "ask", one_busy)
    (options,) = (await settle({"model": "m"})).options
    assert (options.endpoint, options.features) == (COMPLETIONS, USAGE | LENGTH)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_stays_busy(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """It is given up after a while, and no property is made of that."""
    monkeypatch.setattr(negotiate_module, "_PATIENCE_S", 0.5)
    fault = Fault.read({"kind": "status", "status": status})
    with pytest.raises(TargetNotReady, match=f"{status} for 0.5 s.*come again later"):
        await settle({"fault": fault, "fault_from": 1})
