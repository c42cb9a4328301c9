from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from evoclaw.core.errors import ToolFailure
from evoclaw.core.messages import ErrorKind
from evoclaw.core.web import FetchedPage
from evoclaw.executors.url_guard import UrlGuard, UrlTarget
from evoclaw.executors.web_fetch import FetchLimits, WebFetcher, pinned

HERE = ("127.0.0.1",)
OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@dataclass
class Server:
    """A raw server: it answers as it likes, and remembers who came."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list[bytes])
    connections: int = 0
    sent: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


Answer = Callable[[Server, asyncio.StreamWriter, bytes], Awaitable[None]]


@asynccontextmanager
async def serving(
    answer: Answer | bytes,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
) -> AsyncGenerator[Server]:
    server = Server()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            request = await reader.readuntil(b"\r\n\r\n")
            server.requests.append(request)
            if isinstance(answer, bytes):
                writer.write(answer)
                await writer.drain()
            else:
                await answer(server, writer, request)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client had enough, or the test is over
        finally:
            writer.close()
            tasks.discard(task)

    listening = await asyncio.start_server(serve, host, port, ssl=tls)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def fetch(url: str, guard: UrlGuard | None = None, **limits: float) -> FetchedPage:
    fetcher = WebFetcher(guard or UrlGuard(HERE), limits=FetchLimits(**limits))  # pyright: ignore[reportArgumentType]
    async with asyncio.timeout(20):
        return await fetcher.fetch(url)


async def failure(url: str, guard: UrlGuard | None = None, **limits: float) -> ToolFailure:
    with pytest.raises(ToolFailure) as raised:
        await fetch(url, guard, **limits)
    return raised.value


def plain(body: bytes, *headers: str) -> bytes:
    extra = "".join(f"{line}\r\n" for line in headers).encode()
    return OK + extra + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def moved(location: str, status: int = 302) -> bytes:
    return (
        f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n"
        "Set-Cookie: track=1; Path=/\r\n\r\n"
    ).encode()


async def pouring(server: Server, writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send without end, as fast as the other side takes it."""
    while True:
        writer.write(data)
        await writer.drain()
        server.sent += len(data)


class Changing:
    """A resolver that says something else each time."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers, self.asked = list(answers), list[str]()

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


# What comes back.


async def test_a_fetched_page_has_status_content_type_and_final_url() -> None:
    async with serving(plain(b"hello")) as server:
        page = await fetch(server.url("/a?b=c#part"))

    assert page == FetchedPage(server.url("/a?b=c"), 200, "text/plain", b"hello")
    assert server.requests[0].startswith(b"GET /a?b=c HTTP/1.1\r\n")


async def test_a_fetch_ignores_netrc_credentials_and_proxy_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with serving(plain(b"proxied")) as proxy, serving(plain(b"direct")) as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url())
        page = await fetch(server.url())

    assert page.body == b"direct" and proxy.connections == 0
    sent = server.requests[0].lower()
    assert b"authorization" not in sent and b"cookie" not in sent


async def test_cookies_are_not_stored_and_extra_headers_are_dropped_on_redirect() -> None:
    async def answer(server: Server, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(moved("/next") if b"GET /start" in request else plain(b"there"))

    async with serving(answer) as server:
        fetcher = WebFetcher(UrlGuard(HERE))
        page = await fetcher.fetch(server.url("/start"), headers={"Authorization": "Bearer key"})

    assert page.body == b"there" and page.url == server.url("/next")
    first, second = server.requests
    assert b"Bearer key" in first
    assert b"Bearer" not in second and b"Cookie" not in second


async def test_compressed_bodies_are_decompressed() -> None:
    text = b"some words, again and again. " * 100
    raw = zlib.compressobj(wbits=-15)
    bodies = {
        "gzip": [gzip.compress(text), gzip.compress(text[:50]) + gzip.compress(text[50:])],
        "x-gzip": [gzip.compress(text)],
        "deflate": [zlib.compress(text), raw.compress(text) + raw.flush()],
        "Identity": [text],
    }
    for encoding, packed in bodies.items():
        for body in packed:
            async with serving(plain(body, f"Content-Encoding: {encoding}")) as server:
                assert (await fetch(server.url())).body == text


async def test_a_chunked_body_is_reassembled() -> None:
    answer = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serving(answer) as server:
        assert (await fetch(server.url())).body == b"abcde"


async def test_an_error_response_includes_its_start_and_retry_after() -> None:
    async def answer(server: Server, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\n\r\n")
        await pouring(server, writer, b"slow down " * 1000)

    async with serving(answer) as server:
        page = await fetch(server.url())

    assert (page.status, page.retry_after, len(page.body)) == (429, "7", 64 << 10)


# Row 61: where it may go.


async def test_fault_61_a_denied_address_is_never_connected_to() -> None:
    async with serving(plain(b"secret")) as server:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "①②⑦.⓪.⓪.①"):
            refused = await failure(server.url(host=host), UrlGuard())
            assert refused.kind is ErrorKind.PERMISSION_DENIED, host
            assert "was not contacted" in refused.message
        for host in ("127.1", "2130706433", "0x7f.1", "0177.0.0.1", "%31%32%37.0.0.1"):
            assert (
                await failure(server.url(host=host), UrlGuard())
            ).kind is ErrorKind.INVALID_PARAMS

    assert server.connections == 0


async def test_fault_61_a_redirect_to_a_private_address_is_not_followed() -> None:
    async with serving(plain(b"secret"), host="127.0.0.2") as inside:
        targets = [
            inside.url(host="127.0.0.2"),
            f"//127.0.0.2:{inside.port}/",
            inside.url(host="inner.example"),
            "file:///etc/passwd",
            "gopher://127.0.0.2/",
            f"http://user:pass@127.0.0.2:{inside.port}/",
        ]
        for target in targets:
            resolve = Changing(["127.0.0.2"])
            async with serving(moved(target)) as outside:
                refused = await failure(outside.url(), UrlGuard(HERE, resolve=resolve))
            assert refused.kind in (ErrorKind.PERMISSION_DENIED, ErrorKind.INVALID_PARAMS), target
            assert outside.connections == 1

        assert inside.connections == 0


async def test_fault_61_dns_rebinding_reaches_only_the_checked_address() -> None:
    resolve = Changing(["127.0.0.1"], ["127.0.0.2"])
    guard = UrlGuard(HERE, resolve=resolve)
    async with (
        serving(plain(b"public")) as public,
        serving(plain(b"secret"), host="127.0.0.2", port=public.port) as inside,
    ):
        page = await fetch(public.url(host="rebind.example"), guard)

        assert page.body == b"public" and resolve.asked == ["rebind.example"]
        assert b"Host: rebind.example:" in public.requests[0]

        refused = await failure(public.url(host="rebind.example"), guard)
        assert refused.kind is ErrorKind.PERMISSION_DENIED
        assert inside.connections == 0 and public.connections == 1


async def test_fault_61_a_redirect_to_the_same_host_is_checked_again() -> None:
    resolve = Changing(["127.0.0.1"], ["127.0.0.2"])
    async with (
        serving(moved("/again")) as public,
        serving(plain(b"secret"), host="127.0.0.2", port=public.port) as inside,
    ):
        refused = await failure(public.url(host="rebind.example"), UrlGuard(HERE, resolve=resolve))

        assert refused.kind is ErrorKind.PERMISSION_DENIED
        assert inside.connections == 0 and len(resolve.asked) == 2


async def test_fault_61_one_denied_address_among_allowed_ones_refuses_the_host() -> None:
    async with serving(plain(b"public")) as public:
        for mixed in (["127.0.0.1", "127.0.0.2"], ["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "::1"]):
            guard = UrlGuard(HERE, resolve=Changing(mixed))
            refused = await failure(public.url(host="mixed.example"), guard)
            assert refused.kind is ErrorKind.PERMISSION_DENIED

    assert public.connections == 0


async def test_fault_61_the_connector_opens_sockets_to_checked_addresses_only() -> None:
    import aiohttp

    async with serving(plain(b"secret"), host="127.0.0.2") as inside:
        connector = pinned(UrlTarget("http://good.example/", ("127.0.0.1",)))
        async with aiohttp.ClientSession(connector=connector) as session:
            # A literal needs no resolver: this way in must be shut as well.
            with pytest.raises(ToolFailure, match="no policy has checked it"):
                await session.get(inside.url(host="127.0.0.2"))

        assert inside.connections == 0


async def test_the_second_allowed_address_is_tried_when_the_first_fails() -> None:
    async with serving(plain(b"here"), host="127.0.0.2") as server:
        guard = UrlGuard(("127.0.0.0/24",), resolve=Changing(["127.0.0.1", "127.0.0.2"]))
        assert (await fetch(server.url(host="two.example"), guard)).body == b"here"


async def test_tls_uses_the_host_name_not_the_pinned_address(tmp_path: Path) -> None:
    names: list[str] = []
    server_side, client_side = certificates(tmp_path, "pinned.example")
    server_side.sni_callback = lambda _, name, __: names.append(name)

    async with serving(plain(b"safe"), tls=server_side) as server:
        guard = UrlGuard(HERE, resolve=Changing(["127.0.0.1"]))
        url = f"https://pinned.example:{server.port}/"
        async with asyncio.timeout(30):
            page = await WebFetcher(guard, tls=client_side).fetch(url)
            with pytest.raises(ToolFailure, match="cannot be trusted"):
                await WebFetcher(guard, tls=client_side).fetch(url.replace("pinned", "other"))
            with pytest.raises(ToolFailure, match="cannot be trusted"):
                await WebFetcher(guard).fetch(url)

    assert page.body == b"safe" and names[0] == "pinned.example"
    assert b"Host: pinned.example:" in server.requests[0]


def certificates(folder: Path, name: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "both.pem").write_bytes(secret + made.public_bytes(pem))
    (folder / "ca.pem").write_bytes(made.public_bytes(pem))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "both.pem")
    return server, ssl.create_default_context(cafile=str(folder / "ca.pem"))


# Row 62: what it may cost.


async def test_fault_62_an_endless_body_is_aborted() -> None:
    async def answer(server: Server, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(OK + b"\r\n")
        await pouring(server, writer, b"x" * 65_536)

    async with serving(answer) as server:
        refused = await failure(server.url(), wire_bytes=1 << 20)

        assert refused.kind is ErrorKind.TOO_LARGE and "1,048,576 bytes" in refused.message
        assert server.sent < 32 << 20


async def test_fault_62_a_body_with_too_large_a_content_length_is_not_read() -> None:
    head = OK + b"Content-Length: 99999999\r\n\r\n"
    async with serving(head) as server:
        refused = await failure(server.url())

    assert refused.kind is ErrorKind.TOO_LARGE and "announces 99,999,999" in refused.message


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_fault_62_a_decompression_bomb_is_refused_before_it_fills_memory(
    encoding: str,
) -> None:
    import tracemalloc

    packer = zlib.compressobj(9, wbits=31 if encoding == "gzip" else 15)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
    assert len(bomb) < 200_000
    async with serving(plain(bomb, f"Content-Encoding: {encoding}")) as server:
        tracemalloc.start()
        refused = await failure(server.url(), body_bytes=1 << 40)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert refused.kind is ErrorKind.TOO_LARGE and "more than 100 times" in refused.message
    assert peak < 24 << 20


async def test_fault_62_a_decompressed_body_is_limited_in_bytes() -> None:
    body = gzip.compress(bytes(3 << 20))
    async with serving(plain(body, "Content-Encoding: gzip")) as server:
        refused = await failure(server.url(), body_bytes=2 << 20, ratio=1 << 20)

    assert refused.kind is ErrorKind.TOO_LARGE and "unpacks to more" in refused.message


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
async def test_fault_62_an_unrequested_content_encoding_is_refused(encoding: str) -> None:
    async with serving(plain(b"\x0b\x02\x80", f"Content-Encoding: {encoding}")) as server:
        refused = await failure(server.url())

    assert refused.kind is ErrorKind.EXECUTION_FAILED and "not supported" in refused.message
    assert b"Accept-Encoding: gzip, deflate\r\n" in server.requests[0]


async def test_fault_62_the_number_of_redirects_is_limited() -> None:
    async def answer(server: Server, writer: asyncio.StreamWriter, request: bytes) -> None:
        number = int(request.split(b" ")[1].strip(b"/") or 0)
        writer.write(moved(f"/{number + 1}") if number < 50 else plain(b"the end"))

    async with serving(answer) as server:
        refused = await failure(server.url("/0"))
        assert refused.kind is ErrorKind.EXECUTION_FAILED
        assert "More than 5 redirects" in refused.message and server.connections == 6
        assert (await fetch(server.url("/45"))).body == b"the end"


async def test_fault_62_a_redirect_loop_is_detected_at_once() -> None:
    async with serving(moved("/#elsewhere")) as server:
        refused = await failure(server.url())

    assert "in a circle" in refused.message and server.connections == 1


async def test_fault_62_a_slow_dripping_server_times_out() -> None:
    async def answer(server: Server, writer: asyncio.StreamWriter, request: bytes) -> None:
        body = b"/body" in request
        writer.write(OK + (b"Content-Length: 1000\r\n\r\n" if body else b"X-Slow: "))
        while True:
            await asyncio.sleep(0.05)
            writer.write(b"x")
            await writer.drain()

    async with serving(answer) as server:
        for path in ("/body", "/head"):
            began = asyncio.get_running_loop().time()
            refused = await failure(server.url(path), seconds=0.4)
            assert refused.kind is ErrorKind.TIMEOUT and "within 0.4 s" in refused.message
            assert asyncio.get_running_loop().time() - began < 5


async def test_fault_62_a_dns_lookup_that_never_answers_times_out() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    refused = await failure("http://slow.example/", UrlGuard(resolve=resolve), seconds=0.1)

    assert refused.kind is ErrorKind.TIMEOUT


async def test_fault_62_a_body_shorter_than_its_content_length_is_an_error() -> None:
    async with serving(OK + b"Content-Length: 100\r\n\r\nhalf") as server:
        refused = await failure(server.url())

    assert (
        refused.kind is ErrorKind.EXECUTION_FAILED and "incomplete or malformed" in refused.message
    )


async def test_fault_62_bytes_beyond_the_content_length_never_enter_the_page() -> None:
    async with serving(OK + b"Content-Length: 4\r\n\r\nhalf and much more") as server:
        try:
            assert (await fetch(server.url())).body == b"half"
        except ToolFailure as refused:
            # The parser saw the rest together with the page.
            assert refused.kind is ErrorKind.EXECUTION_FAILED


async def test_fault_62_a_truncated_or_corrupt_compressed_body_is_an_error() -> None:
    whole = gzip.compress(b"words " * 1000)
    for body in (whole[:-10], b"not packed at all", whole + b"trailing rubbish"):
        async with serving(plain(body, "Content-Encoding: gzip")) as server:
            assert "is damaged" in (await failure(server.url())).message


@pytest.mark.parametrize(
    "line", [b"X-A: b\r\n", b"X-Long: " + b"a" * 4_000 + b"\r\n", b"a" * 65_536]
)
async def test_fault_62_endless_headers_are_refused(line: bytes) -> None:
    async def answer(server: Server, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(OK)
        await pouring(server, writer, line)

    async with serving(answer) as server:
        refused = await failure(server.url(), seconds=10)

        assert refused.kind is ErrorKind.EXECUTION_FAILED, refused.message
        assert server.sent < 16 << 20


@pytest.mark.parametrize(
    "answer",
    [b"", b"garbage\r\n\r\n", b"HTTP/1.1 abc OK\r\n\r\n", OK + b"Content-Length: -5\r\n\r\n",
     OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
     OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc"],
)  # fmt: skip
async def test_a_malformed_http_response_is_an_error(answer: bytes) -> None:
    async with serving(answer) as server:
        assert (await failure(server.url())).kind is ErrorKind.EXECUTION_FAILED


async def test_an_unreachable_server_is_an_error() -> None:
    async with serving(b"") as server:
        pass
    refused = await failure(server.url())

    assert refused.kind is ErrorKind.EXECUTION_FAILED and "cannot be reached" in refused.message


async def test_a_cancelled_fetch_leaves_no_connection() -> None:
    begun, gone = asyncio.Event(), asyncio.Event()

    async def answer(server: Server, writer: asyncio.StreamWriter, request: bytes) -> None:
        try:
            writer.write(OK + b"\r\n")
            begun.set()
            await pouring(server, writer, b"x" * 1000)
        finally:
            gone.set()

    async with serving(answer) as server:
        task = asyncio.create_task(fetch(server.url(), wire_bytes=1 << 40))
        async with asyncio.timeout(30):
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await gone.wait()
