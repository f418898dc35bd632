"""Messages between the engine and a Ray actor, in msgpack: all that actors get and return."""

from __future__ import annotations

import msgspec

from ....core.processes.channels.messages import Message, NotStarted, Stage
from ..workers.messages import Loaded, Rendezvous, StartRank


class Node(Message, frozen=True):
    """The machine on which an actor runs."""

    node_id: str
    address: str
    num_cores: int
    pid: int
    """Process id of the actor."""


class Logged(Message, frozen=True):
    record: bytes


encode = msgspec.msgpack.Encoder().encode
decode_start = msgspec.msgpack.Decoder(StartRank).decode
decode_loaded = msgspec.msgpack.Decoder(Loaded | NotStarted).decode
decode_news = msgspec.msgpack.Decoder(Stage | Logged).decode
decode_node = msgspec.msgpack.Decoder(Node).decode
decode_rendezvous = msgspec.msgpack.Decoder(Rendezvous).decode
