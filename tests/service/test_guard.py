"""What the service refuses: other names, other sites, no token, odd targets, paths, too much."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.runs.conftest import truth
from tests.service.conftest import ENVIRONMENT, TOKEN, Serving, service, wait_until, web_server

pytestmark = pytest.mark.slow

CANARY = "sk-canary-5c1f0d7e92"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service with a token."""
    folder = tmp_path_factory.mktemp("locked") / "runs"
    with service(folder, LOADGEN_API_TOKEN=TOKEN) as found:
        yield found


def valid(**more: Any) -> dict[str, Any]:
    return {"targets": [{"base_url": "http://127.0.0.1:9"}], **more}


def refused(serving: Serving, **more: Any) -> tuple[int, str]:
    answer = serving.post(**valid(**more))
    assert answer.status_code >= 400, answer.text
    return answer.status_code, answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "127.0.0.1.evil.example", "a b"]
)
def test_other_names_are_refused(serving: Serving, host: str) -> None:
    """A page whose name was made to point here learns nothing: DNS rebinding."""
    for path in ("/", "/api/runs", "/metrics", "/health"):
        answer = serving.client.get(path, headers={"host": host})
        assert answer.status_code in (400, 421)


def test_two_hosts_are_refused(serving: Serving) -> None:
    """Of two Host headers nobody can say which one holds."""
    port = int(serving.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n"
        )
        assert b" 400 " in connection.recv(1000).split(b"\r\n")[0]


def test_own_names_are_taken(serving: Serving) -> None:
    """localhost and the loopback addresses, with any port."""
    for host in ("localhost", "localhost:1", "127.0.0.1", "[::1]:8765", "LOCALHOST"):
        assert serving.client.get("/api/runs", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://[::"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH"])
def test_other_sites_start_and_stop_nothing(
    serving: Serving, method: str, headers: dict[str, str]
) -> None:
    """What a browser says comes from another site's page is refused."""
    path = "/api/runs" if method == "POST" else "/api/runs/x"
    answer = serving.client.request(method, path, json=valid(), headers=headers)
    assert answer.status_code == 403


def test_the_page_itself_may(serving: Serving) -> None:
    """Its own origin passes the guard."""
    headers = {"origin": serving.url, "sec-fetch-site": "same-origin"}
    answer = serving.client.post("/api/runs", json={}, headers=headers)
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_forms_are_refused(serving: Serving, kind: str) -> None:
    """Only JSON is taken, which no form of another site can send."""
    answer = serving.client.post(
        "/api/runs", content=json.dumps(valid()), headers={"content-type": kind}
    )
    assert answer.status_code == 415


def test_large_bodies_are_refused(serving: Serving) -> None:
    """Told in advance or not, a body over the limit ends there."""
    kind = {"content-type": "application/json"}
    stated = serving.client.post("/api/runs", content=b" " * (2 << 20), headers=kind)
    assert stated.status_code == 413

    def pieces() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 16)

    answer = serving.client.post("/api/runs", content=pieces(), headers=kind)
    assert answer.status_code == 413


def test_large_traces_are_refused(tmp_path: Path) -> None:
    """A trace over --max-trace-mib is refused, and leaves nothing behind."""
    with service(tmp_path / "runs", "--max-trace-mib", "1") as found:

        def pieces() -> Iterator[bytes]:
            for _ in range(40):
                yield b'{"timestamp":0,"input_length":5,"output_length":4}\n' * 1000

        kind = {"content-type": "application/jsonl"}
        answer = found.client.post("/api/traces", content=pieces(), headers=kind)
        assert answer.status_code == 413
        assert list((tmp_path / "runs" / ".traces").iterdir()) == []


PATHS = (
    *("/api/runs", "/api/runs/x", "/api/runs/x/events", "/api/traces", "/api/settings"),
    *("/metrics", "/openapi.json"),
)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_told_without_the_token(locked: Serving, path: str) -> None:
    """Without the token, or with another, the answer is 401, whatever is asked."""
    wrong = TOKEN[:-1] + "x"
    for headers in (
        {},
        {"authorization": f"Bearer {wrong}"},
        {"cookie": f"loadgen_session={TOKEN}"},
    ):
        assert locked.client.get(path, headers=headers).status_code == 401
    told = locked.client.get(path, headers={"authorization": f"Bearer {TOKEN}"})
    assert told.status_code in (200, 404)


def test_nothing_is_done_without_the_token(locked: Serving) -> None:
    """Nor is anything started, stopped or uploaded."""
    assert locked.client.post("/api/runs", json=valid()).status_code == 401
    assert locked.client.delete("/api/runs/x").status_code == 401
    kind = {"content-type": "application/jsonl"}
    assert locked.client.post("/api/traces", content=b"{}", headers=kind).status_code == 401
    assert locked.client.get("/health").status_code == 200


def test_the_page_logs_in(locked: Serving) -> None:
    """A cookie that scripts cannot read, that is not the token, opens the API."""
    with httpx.Client(base_url=locked.url) as browser:
        assert browser.post("/api/login", json={"token": "wrong"}).status_code == 401
        answer = browser.post("/api/login", json={"token": TOKEN})
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=lax" in cookie.lower()  # a report's links come from no origin of its own
        assert TOKEN not in cookie
        assert browser.get("/api/runs").status_code == 200


def test_metrics_may_be_open(tmp_path: Path) -> None:
    """--open-metrics lets a Prometheus in that has no token, and into nothing else."""
    with service(tmp_path / "runs", "--open-metrics", LOADGEN_API_TOKEN=TOKEN) as found:
        assert found.client.get("/metrics").status_code == 200
        assert found.client.get("/api/runs").status_code == 401


@pytest.mark.parametrize("token", [None, "", "short", "with a space inside it"])
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "a-name"])
def test_it_is_not_open_by_accident(tmp_path: Path, host: str, token: str | None) -> None:
    """On an address that others reach it does not start without a good token."""
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", "serve", "--host", host, "--port", "0"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=ENVIRONMENT
        | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
        | ({} if token is None else {"LOADGEN_API_TOKEN": token}),
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "LOADGEN_API_TOKEN" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://[::ffff:169.254.169.254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://0.0.0.0:8000",
        "http://[::]:8000",
        "http://224.0.0.1/",
        "http://255.255.255.255/",
        "http://100.100.100.200/",
    ],
)
def test_addresses_that_no_load_test_reaches(serving: Serving, url: str) -> None:
    """Metadata, link-local, unspecified and multicast addresses, in every disguise."""
    answer = serving.post(targets=[{"base_url": url}])
    assert answer.status_code == 403, answer.text
    assert "no load test" in answer.json()["error"]["message"]


def test_only_listed_targets(tmp_path: Path, quick: str) -> None:
    """With LOADGEN_ALLOWED_TARGETS no other target is asked, neither at once nor at its turn."""
    port = quick.rpartition(":")[2]
    with service(tmp_path / "runs", LOADGEN_ALLOWED_TARGETS=f"127.0.0.1:{port}") as found:
        assert found.wait(found.start(quick))["state"] == "finished"
        answer = found.post(targets=[{"base_url": "http://127.0.0.1:9"}])
        assert answer.status_code == 403
        assert "LOADGEN_ALLOWED_TARGETS" in answer.json()["error"]["message"]


def test_the_run_itself_is_held_to_the_list(quick: str, tmp_path: Path) -> None:
    """A name that passed, and has another address when it is connected to, is refused there."""
    port = quick.rpartition(":")[2]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "loadgen", "run", "--base-url", f"http://localhost:{port}"),
            *("--ready-timeout", "0", "--quiet", "--result-dir", str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        env=ENVIRONMENT | {"LOADGEN_ALLOWED_TARGETS": "10.0.0.0/8"},
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "LOADGEN_ALLOWED_TARGETS" in done.stderr


class _Redirect(BaseHTTPRequestHandler):
    to = ""

    def do_GET(self) -> None:
        self.send_response(307)
        self.send_header("location", self.to + self.path)
        self.send_header("content-length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - the base class's own name

    def log_message(self, *_: Any) -> None:
        pass


def test_redirects_are_not_followed(serving: Serving) -> None:
    """A target that sends elsewhere is not ready; where it points is never asked."""
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)

        do_POST = do_GET  # noqa: N815 - the base class's own name

    with web_server(Elsewhere) as elsewhere:
        handler = type("To", (_Redirect,), {"to": elsewhere})
        with web_server(handler) as url:
            run_id = serving.start(url, request={"model": "m"}, load={"ready_timeout": 0})
            found = serving.wait(run_id)
    assert found["state"] == "failed"
    assert asked == []


@pytest.mark.parametrize(
    "run_id",
    [
        *("..", "%2e%2e", "..%2f..%2fetc", "%2fetc%2fpasswd", ".traces", ".service.lock"),
        *("x%00", "a%0d%0ab", "x" * 300),
    ],
)
@pytest.mark.parametrize("part", ["", "/report", "/records", "/events", "/export/vllm"])
def test_a_run_is_no_path(serving: Serving, run_id: str, part: str) -> None:
    """Nothing but the name of a run directory finds anything."""
    answer = serving.client.get(f"/api/runs/{run_id}{part}")
    assert answer.status_code in (404, 307, 405)
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "name", ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "app.py", ".hidden.js"]
)
def test_the_page_is_its_files_alone(serving: Serving, name: str) -> None:
    """No file outside the page's folder is served."""
    assert serving.client.get(f"/page/{name}").status_code == 404


@pytest.mark.parametrize(
    "said",
    [
        {"request": {"tokenizer": "/etc"}},
        {"request": {"transport": "httpx"}},
        {"request": {"api_key_env": "LD_PRELOAD"}},
        {"request": {"api_key_env": "LOADGEN_API_TOKEN"}},
        {"request": {"header": {"X-A": "1\r\nX-B: 2"}}},
        {"output": {"result_dir": "/tmp/x"}},
        {"output": {"run_dir": "/tmp/x"}},
        {"output": {"metrics_port": 1}},
        {"output": {"metrics_host": "0.0.0.0"}},
        {"generate": {"lengths_from": "/etc/passwd"}},
        {"generate": {"rate_profile": "trace:/etc/passwd"}},
        {"generate": {"num_prompts": 50_000_000}},
        {"trace": "/etc/passwd"},
        {"trace": "../../x"},
        {"trace": "0" * 64},
        {"kind": "selfcheck"},
        {"no_such_key": 1},
        {"api_key": "a\nb"},
        {"api_key": 5},
        {"keep": "yes"},
        {"generate": None},
        {"targets": "x"},
    ],
    ids=lambda said: json.dumps(said)[:50],
)
def test_what_is_not_for_a_client_to_say(serving: Serving, said: dict[str, Any]) -> None:
    """Paths, ports, other variables, and whatever no model knows: refused in one line."""
    status, text = refused(serving, **said)
    assert status == 422
    assert "\n" not in text


def test_a_model_is_no_directory(tmp_path: Path, serving: Serving, quick: str) -> None:
    """The model's name is a name to the service, also where it is a folder with a tokenizer."""
    (tmp_path / "tokenizer.json").write_text("broken")
    run_id = serving.start(quick, request={"model": str(tmp_path)})
    assert serving.wait(run_id)["state"] == "finished"


def test_the_services_keys_go_to_listed_targets_alone(tmp_path: Path, quick: str) -> None:
    """A key named by its variable is refused where any target may be asked."""
    body = {"targets": [{"base_url": quick}], "request": {"api_key_env": "LOADGEN_KEY_A"}}
    with service(tmp_path / "open", LOADGEN_KEY_A=CANARY) as found:
        assert found.post(**body).status_code == 403
    with (
        truth("--ttft-ms", "5", "--itl-ms", "1", "--api-key", CANARY) as url,
        service(
            tmp_path / "listed", LOADGEN_KEY_A=CANARY, LOADGEN_ALLOWED_TARGETS="127.0.0.1"
        ) as found,
    ):
        body["targets"] = [{"base_url": url}]
        body["generate"] = {"num_prompts": 5, "request_rate": 50, "output_len": 3}
        done = found.wait(found.post(**body).json()["id"])
        assert done["state"] == "finished", done["error"]
        without = found.wait(found.start(url))
        assert without["state"] == "failed"
        assert_nowhere(CANARY, found, tmp_path, [done["id"], without["id"]])


def test_a_key_sent_once_is_never_told(tmp_path: Path) -> None:
    """Given in the body, in a header, in the URL or in a label, it is in no answer, file or log."""
    with (
        truth("--ttft-ms", "5", "--itl-ms", "1", "--api-key", CANARY) as url,
        service(tmp_path / "runs") as found,
    ):
        ids = [
            found.start(url, api_key=CANARY, output={"label": f"with {CANARY}"}),
            found.start(url, request={"header": {"Authorization": f"Bearer {CANARY}"}}),
            found.start(url.replace("//", f"//u:{CANARY}@") + f"?api_key={CANARY}"),
            found.start(url, request={"extra_body": {"api_key": CANARY}}),
        ]
        states = [found.wait(run_id)["state"] for run_id in ids]
        assert states[:2] == ["finished", "finished"]
        assert_nowhere(CANARY, found, tmp_path, ids)


def assert_nowhere(secret: str, found: Serving, folder: Path, ids: list[str]) -> None:
    """In no answer about these runs, and in no file below the folder."""
    paths = ["/api/runs", "/metrics", "/api/settings", "/openapi.json", "/"]
    for run_id in ids:
        url = f"/api/runs/{run_id}"
        paths += [url, f"{url}/events", f"{url}/report", f"{url}/report?format=text"]
        paths += [f"{url}/records", f"{url}/records?format=csv", f"{url}/export/vllm"]
    paths.append(f"/api/runs/compare?a={ids[0]}&b={ids[-1]}")
    for path in paths:
        answer = found.client.get(path)
        assert secret.encode() not in answer.content, path
        assert secret not in str(answer.headers)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    for file in files:
        assert secret.encode() not in file.read_bytes(), file


def test_every_answer_has_its_policy(serving: Serving) -> None:
    """A strict policy, no sniffing, no frames, no cross-origin reads; refusals included."""
    for path in ("/", "/api/runs", "/api/runs/none", "/health", "/metrics", "/nowhere"):
        headers = serving.client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
    refused = serving.client.get("/", headers={"host": "evil.example"}).headers
    assert "default-src 'none'" in refused["content-security-policy"]


def test_the_queue_is_bounded(tmp_path: Path, slow: str) -> None:
    """Beyond --max-queue the answer is 429, with when to come again."""
    with service(tmp_path / "runs", "--max-queue", "2") as found:
        first = found.start(slow, requests=200, rate=5)
        found.wait(first, "running")
        found.start(slow)
        found.start(slow)
        answer = found.post(targets=[{"base_url": slow}])
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) > 0
        found.client.delete(f"/api/runs/{first}")
        found.client.delete(f"/api/runs/{first}")


def test_old_runs_are_pruned(tmp_path: Path, quick: str) -> None:
    """The oldest go, and never one that is kept, waits or runs, or that others started."""
    with service(tmp_path / "runs", "--keep-runs", "2") as found:
        ids = [found.start(quick, requests=2, keep=number == 0) for number in range(4)]

        def left() -> set[str]:
            rows = found.client.get("/api/runs").json()["runs"]
            return {row["id"] for row in rows if row["state"] == "finished"}

        wait_until(lambda: left() == {ids[0], ids[2], ids[3]}, "the others are left", 60)

        def there() -> set[str]:
            return {path.name for path in found.runs.iterdir() if path.name[0] != "."}

        wait_until(lambda: there() == left(), "nothing of them is on disk", 10)  # after the list


def test_one_service_a_folder(serving: Serving) -> None:
    """A second one on the same folder does not start: it would start the runs twice."""
    done = subprocess.run(
        [sys.executable, "-m", "loadgen", "serve", "--port", "0", "--result-dir", serving.runs],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "another service" in done.stderr


def test_an_unfinished_upload_keeps_nobody_waiting(serving: Serving, quick: str) -> None:
    """While a trace comes, or does not, others have their dry runs and uploads."""
    port = int(serving.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as upload:
        upload.sendall(
            b"POST /api/traces HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n"
            b"content-type: application/jsonl\r\n\r\n{"
        )
        body = {"targets": [{"base_url": quick}], "generate": {"num_prompts": 7}}
        query = {"dry_run": "true"}
        answer = serving.client.post("/api/runs", params=query, json=body, timeout=30)
        assert answer.status_code == 200


def test_a_body_must_come(serving: Serving) -> None:
    """One that does not is given up in some 20 s, with 408."""
    port = int(serving.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=40) as login:
        login.sendall(
            b"POST /api/login HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 1000\r\n"
            b"content-type: application/json\r\n\r\n{"
        )
        assert b" 408 " in login.recv(1000).split(b"\r\n")[0]


def test_many_idle_connections_shut_nobody_out(serving: Serving) -> None:
    """However many there are, a request is answered."""
    port = int(serving.url.rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    try:
        answer = httpx.get(f"{serving.url}/health")
        assert answer.status_code == 200
    finally:
        for connection in idle:
            connection.close()


def test_cookies_of_other_applications(locked: Serving) -> None:
    """What others on the same host have set, in whatever form, keeps nobody out."""
    with httpx.Client(base_url=locked.url) as browser:
        browser.post("/api/login", json={"token": TOKEN})
        ours = f"loadgen_session={browser.cookies['loadgen_session']}"
    for other in ('a={"x": [1, 2]}', "b[c]=d", "@x=1"):
        headers = {"cookie": f"{other}; {ours}"}
        assert locked.client.get("/api/runs", headers=headers).status_code == 200


def test_a_long_name_is_no_file(serving: Serving) -> None:
    """Nor is it an error of the service."""
    assert serving.client.get(f"/page/{'x' * 300}.js").status_code == 404


def test_watchers_have_places(serving: Serving, slow: str) -> None:
    """32 watch at once, also when all come at the same time; places are given back."""
    run_id = serving.start(slow, requests=100, rate=1)
    port = int(serving.url.rpartition(":")[2])
    request = f"GET /api/runs/{run_id}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    for _ in range(2):
        watching = [socket.create_connection(("127.0.0.1", port)) for _ in range(50)]
        try:
            for connection in watching:
                connection.sendall(request)
            answers = [connection.recv(12)[9:] for connection in watching]
            assert (answers.count(b"200"), answers.count(b"429")) == (32, 18)
        finally:
            for connection in watching:
                connection.close()

        def is_free() -> bool:
            return "loadgen_service_watchers 0.0" in serving.client.get("/metrics").text

        wait_until(is_free, "places are given back", 10)
    for _ in range(2):
        serving.client.delete(f"/api/runs/{run_id}")


def test_a_trace_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """As a full disk is of a run: 507 and a line, and not a bug of the service."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".traces").touch()
    with service(tmp_path / "runs") as found:
        headers = {"content-type": "application/jsonl"}
        answer = found.client.post("/api/traces", content=b"{}", headers=headers)
        assert answer.status_code == 507
        assert "cannot be written" in answer.json()["error"]["message"]
