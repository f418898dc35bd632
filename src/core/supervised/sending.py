"""Sends requests to the engines, and those of a lost engine to another one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..errors import EngineStoppedError, OverloadedError, RateLimitedError, TokenmillError
from ..host.routing import GuardedRouter
from ..log import get_logger
from ..shell.home import DRAINING
from .crash_suspects import CrashSuspects, SuspectWaitsError
from .link import LOST, EngineLink
from .replicas import Replicas
from .routing import Routed, view_of
from .stream import RemoteStream

MAX_ENGINES = 2
"""Maximum number of engines that get the same request. A request that was open in two lost engines
may be the cause, and could end all engines one after the other."""
SUSPECTS_SECONDS = 120.0
"""Maximum time that a request of a lost engine waits for the suspects that are tried before it."""
SUSPECTS_POLL_SECONDS = 0.05
log = get_logger("engine")


class RequestSender:
    """Chooses an engine for each request: by the router, among those that serve and have room."""

    def __init__(
        self,
        replicas: Replicas,
        suspects: CrashSuspects,
        *,
        is_ending: Callable[[], bool],
        hashes_prompts: bool,
    ) -> None:
        """`is_ending`: whether no request is sent any more. `hashes_prompts`: whether the router
        gets the hashes of prompts."""
        self.router: GuardedRouter | None = None
        """None if there is only one engine."""
        self._replicas = replicas
        self._suspects = suspects
        self._is_ending = is_ending
        self._hashes_prompts = hashes_prompts
        self._resending: set[asyncio.Task[None]] = set()

    def _choose(
        self, stream: RemoteStream, full: Mapping[EngineLink, OverloadedError]
    ) -> EngineLink:
        """The engine that the router chooses for a request, among those that are not full."""
        if self._is_ending():
            raise EngineStoppedError(DRAINING)
        serving = self._replicas.serving()
        if not serving:
            raise EngineStoppedError(self._replicas.failure or LOST)
        links = {index: link for index, link in serving if link not in full}
        if not links:
            raise next(iter(full.values()))
        if self._suspects:
            links = self._without_suspects(stream, links)
        if self.router is None:
            return links[0]
        info = next(iter(links.values())).ready.result().info
        request = Routed(stream.request, info, is_hashed=self._hashes_prompts)
        return links[self.router.route(request, [view_of(*one) for one in links.items()])]

    def _without_suspects(
        self, stream: RemoteStream, links: dict[int, EngineLink]
    ) -> dict[int, EngineLink]:
        """The engines that may get a request: each has one suspect at a time."""
        suspects = self._suspects
        suspects.check(stream.digest)
        if not suspects.is_suspect(stream.digest):
            return links
        free = {
            index: link
            for index, link in links.items()
            if not any(suspects.is_suspect(one.digest) for one in link.open_requests.values())
        }
        if not free:
            raise SuspectWaitsError(
                "the engine crashed while it computed this prompt and others, and now tries them "
                "one by one; try again later"
            )
        return free

    async def send(self, stream: RemoteStream) -> None:
        """Queue a request. If its engine is lost before it has accepted the request, or has no
        room in its queue, another one gets it."""
        full: dict[EngineLink, OverloadedError] = {}
        while True:
            link = self._choose(stream, full)
            try:
                return await link.submit(stream)
            except RateLimitedError:
                raise
            except OverloadedError as error:
                full[link] = error
            except EngineStoppedError:
                if link.is_ready or stream.num_engines == MAX_ENGINES:
                    raise
                stream.restart()

    def forget(self, index: int) -> None:
        """Report to the router that the prefix cache of an engine is empty: the engine was lost, or
        its cache was reset."""
        if self.router is not None:
            self.router.forget(index)

    def rescue(self, index: int, stream: RemoteStream, error: TokenmillError) -> None:
        """Send a request of a lost engine to another one. It fails instead if its reader has a part
        of the answer, or if it may be the cause of the loss."""
        ends = self._is_ending() or not self._replicas.serving()
        if ends or stream.is_begun or stream.num_engines == MAX_ENGINES:
            self._fail(index, stream, error)
        elif not stream.is_closed:
            stream.restart()
            task = asyncio.create_task(self._send_again(index, stream))
            self._resending.add(task)
            task.add_done_callback(self._resending.discard)

    def _fail(self, index: int, stream: RemoteStream, error: TokenmillError) -> None:
        self._replicas.supervisors[index].num_lost_requests += 1
        stream.fail(error)

    async def _send_again(self, index: int, stream: RemoteStream) -> None:
        log.warning("request_sent_again", request_id=stream.request_id)
        options = replace(stream.request.options, request_id=stream.request_id)
        stream.request = replace(stream.request, options=options)
        try:
            await self._send_when_tried(stream)
        except TokenmillError as error:
            self._fail(index, stream, error)
        else:
            if stream.is_closed:  # its reader has left in the meantime
                stream.end(stream)

    async def _send_when_tried(self, stream: RemoteStream) -> None:
        """Queue a request of a lost engine, once the suspects before it are cleared, unless its
        reader leaves."""
        end = time.monotonic() + SUSPECTS_SECONDS
        while not stream.is_closed:
            try:
                return await self.send(stream)
            except SuspectWaitsError:
                if time.monotonic() >= end:
                    raise
            await asyncio.sleep(SUSPECTS_POLL_SECONDS)
