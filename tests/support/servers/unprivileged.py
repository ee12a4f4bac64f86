"""A server that refuses to run as root: root starts it as another user."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path
from typing import Any

from tests.support.servers.server import Server


class UnprivilegedServer(Server):
    """What is started by root runs as `account_name`, or else as nobody."""

    account_name: str

    def _account(self) -> pwd.struct_passwd | None:
        """The user to run as; None: the one who starts it."""
        return unprivileged_account(self.account_name)

    def _process_options(self) -> dict[str, Any]:
        account = self._account()
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account is not None else {}


def give(account: pwd.struct_passwd, folder: Path, *places: Path) -> None:
    """Let `account` own these places of a server's `folder`, and nothing beside them: what root writes there cannot be
    turned into links by it. It may pass through the folder, but not list it."""
    for place in places:
        shutil.chown(place, account.pw_uid, account.pw_gid)
    folder.chmod(folder.stat().st_mode | 0o011)


def unprivileged_account(name: str) -> pwd.struct_passwd | None:
    """`name`, or else nobody, where this process is root's."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return pwd.getpwnam("nobody")
