"""Lines from a socket, kept in a journal of their own so that they can be read again."""

from penstock.sources.socket.source import SocketSource

__all__ = ["SocketSource"]
