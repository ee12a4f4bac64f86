"""What table libraries raise, as errors of ours. No message ever holds a secret from the sink's options."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit, urlunsplit

from penstock.errors import AccessDenied, PenstockError, StorageFull, SystemUnavailable
from penstock.secrets import without_secrets
from penstock.storage.storage import is_full

_DENIED = re.compile(r"\b(401|403)\b|unauthori[sz]ed|forbidden|access ?denied|permission denied|authentication", re.I)
_FULL = re.compile(r"no space left|disk quota exceeded|disk is full", re.I)


def public_address(address: str) -> str:
    """An address for people: without user, password and query."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


@contextlib.contextmanager
def translate_errors(where: str, options: Mapping[str, str], kinds: tuple[type[Exception], ...]) -> Iterator[None]:
    """Turns errors of `kinds` and of the operating system into ours; others pass."""
    try:
        yield
    except PenstockError:
        raise
    except Exception as error:
        if not isinstance(error, (*kinds, OSError)):
            raise
        raise fault(error, where, options) from None  # the original may show an address with its password


def fault(error: BaseException, where: str, options: Mapping[str, str]) -> PenstockError:
    text = without_secrets(f"{type(error).__name__}: {error}", options).strip()
    if (isinstance(error, OSError) and is_full(error)) or _FULL.search(text):
        return StorageFull(
            f"No space is left where {where} is: {text}.",
            safe="nothing of an undecided epoch is visible; a decided one is kept until it can be committed.",
            to_do="free space or raise the quota; the job goes on from the same positions.",
        )
    if isinstance(error, PermissionError) or _DENIED.search(text):
        return AccessDenied(
            f"{where} may not be used: {text}.",
            safe="what is committed stays committed; nothing else is visible.",
            to_do="check the credentials, and the right to read, write, list and delete in the table's folder.",
        )
    return SystemUnavailable(
        f"{where} does not answer as it should: {text}.",
        safe="what is committed stays committed; nothing else is visible.",
        to_do="see that the storage or the catalog can be reached; the job tries again by its restart strategy.",
    )
