"""Every transaction of the program, split by what it is about.

One transaction saves a new state and the event that explains it. The functions of
the other files each take a transaction first and are run by
`Store.transact`, `Store.write` or `Store.read`, so that several of them can be one.
"""

from runner.store.connection import Rx, Store, Tx
from runner.store.dialect import sqlite_path, sqlite_url
from runner.store.errors import LostTicket, NothingYet, StoreUnavailable, UnknownRow, UnknownTicket

__all__ = [
    "LostTicket",
    "NothingYet",
    "Rx",
    "Store",
    "StoreUnavailable",
    "Tx",
    "UnknownRow",
    "UnknownTicket",
    "sqlite_path",
    "sqlite_url",
]
