"""A server over an engine without a model, with few file descriptors.

Program: its argument is the hard limit of descriptors. It logs its address.
"""

from __future__ import annotations

import asyncio
import resource
import sys

from tokenmill.api.http.connections.descriptors import raise_descriptor_limit
from tokenmill.api.listening import Address, listening
from tokenmill.api.server import ServeOptions, configure_logging, make_server
from tokenmill.api.serving.context import ServerSettings
from tokenmill.core.log import get_logger

from .serving import toy_engine

SOFT_LIMIT = 48


async def serve() -> None:
    address = Address(port=0)
    engine = toy_engine()
    with listening(address) as sock:
        async with engine:
            options = ServeOptions(settings=ServerSettings(is_local=True), address=address)
            get_logger("api").info("listening", address=address.url(sock))
            await make_server(engine, options).serve(sockets=[sock])


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_LIMIT, int(sys.argv[1])))
    configure_logging("info", as_json=True)
    raise_descriptor_limit()
    asyncio.run(serve())
