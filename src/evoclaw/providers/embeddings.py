"""Embeddings by a model server of this machine or network, for `/v1/embeddings`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, Usage
from evoclaw.providers.errors import AttemptFailed, unreadable_reply
from evoclaw.providers.exchange import ModelServer, endpoint_url
from evoclaw.providers.http import Http, RetryPolicy
from evoclaw.providers.registry import Dialect, find_endpoint


class EmbeddingServer:
    """Makes embeddings with one model; what it answers is passed on as it is."""

    def __init__(self, name: str, http: Http, env: Mapping[str, str]) -> None:
        """Find the server of `prefix/model`.

        Raises `ConfigError` if the name is invalid, or if the server needs a key: embeddings are
        not counted in any budget, so only those of your own server are offered.
        """
        found = find_endpoint(name, env)
        if found.endpoint.dialect not in (Dialect.OPENAI, Dialect.OLLAMA):
            raise ConfigError(f"embedding_model {name!r}: this provider makes no embeddings")
        if found.endpoint.keys and not found.moved:
            raise ConfigError(
                f"embedding_model {name!r} is a hosted model, whose cost no budget would count; "
                "name one of your own server, such as ollama/nomic-embed-text"
            )
        path = "/v1/embeddings" if found.endpoint.dialect is Dialect.OLLAMA else "/embeddings"
        key = next((env[name] for name in found.endpoint.keys if env.get(name)), "")
        headers = {"Authorization": f"Bearer {key.strip()}"} if key else {}
        url = endpoint_url(found.base_url, path)
        self._server = ModelServer(
            found.prefix, found.model, url, http, RetryPolicy(), None, headers
        )

    async def __call__(self, request: Mapping[str, JSON]) -> bytes:
        """The server's answer to a request, as JSON; raises `ProviderError`."""
        body = msgspec.json.encode({**request, "model": self._server.model})
        try:
            return await self._answer(body)
        except AttemptFailed as error:
            # Not repeated: OpenAI's clients repeat requests themselves.
            failure = self._server.without_keys(error)
            raise failure.to_error(self._server.full_name, Usage()) from None

    async def _answer(self, body: bytes) -> bytes:
        answer = await self._server.http.post(self._server.url, self._server.headers, body)
        try:
            pieces: list[bytes] = []
            while piece := await answer.read():
                pieces.append(piece)
        finally:
            answer.close()
        found = b"".join(pieces)
        try:
            msgspec.json.decode(found, type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise unreadable_reply(found) from None
        return found
