"""A Litestar application that starts fast: what a route needs is prepared by its first request.

Litestar reads the signature of every handler when it is registered, compiles a model of it, and
does the same for a handler of `OPTIONS` that it adds to each path. For the whole API that takes
longer than everything else that `evoclaw up` does, and most routes are never requested.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from litestar import Litestar, Router
from litestar.handlers import HTTPRouteHandler
from litestar.plugins import PluginProtocol
from litestar.plugins.core import MsgspecDIPlugin
from litestar.routes import HTTPRoute


class LazyApp(Litestar):
    """Routes of msgspec types; add them with `register_all`."""

    @staticmethod
    def _get_default_plugins(plugins: list[PluginProtocol]) -> list[PluginProtocol]:
        """Only msgspec: importing pydantic and attrs, if they are installed, takes 0.1 s."""
        return [*plugins, MsgspecDIPlugin()]

    def register_all(self, handlers: Iterable[HTTPRouteHandler]) -> None:
        """Add routes; each is prepared by its first request."""
        for handler in handlers:
            Router.register(self, handler)
        for route in self.routes:
            if isinstance(route, HTTPRoute):
                route.route_handler_map = _PreparedOnUse(self, route)
        self.asgi_router.construct_routing_trie()


class _PreparedOnUse(dict[Any, tuple[HTTPRouteHandler, Any]]):
    """The handlers of a route by method, with the model of their parameters once one is used.

    Litestar's router lists the handlers; only a request looks one up.
    """

    def __init__(self, app: Litestar, route: HTTPRoute) -> None:
        self._app, self._route = app, route
        super().__init__(
            (method, (handler, None))
            for handler in route.route_handlers
            for method in handler.http_methods
        )

    def __getitem__(self, method: Any) -> tuple[HTTPRouteHandler, Any]:
        handler, model = super().__getitem__(method)
        if model is None:
            handler.on_registration(self._app)
            model = handler.create_kwargs_model(path_parameters=self._route.path_parameters)
            for each in handler.http_methods:
                self[each] = handler, model
        return handler, model
