"""`penstock ui`: the page, over all runs of this machine, or of one job at its own address."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.jobs import complete, find_running
from penstock.cli.output import Output

DEFAULT_PORT = 8082


def ui(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="JOB", help="Open this running job's own page instead; serve nothing.", autocompletion=complete
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="0 for a free one.")
    ] = DEFAULT_PORT,
    storage: Annotated[
        list[str] | None,
        typer.Option("--storage", metavar="PATH", help="Also show jobs whose checkpoints are in this folder."),
    ] = None,
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open a browser, where there is one.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a sentence.")] = False,
) -> None:
    """Show the jobs of this machine in a browser, running and past. The link works once."""
    output = Output.choose(as_json)

    def tell(link: str) -> None:
        if as_json:
            output.record("Page", {"link": link})
        else:
            output.line(f"Open {link}")
            output.line("The link works once, for ten minutes. Ctrl-C ends this." if job is None else "It works once.")
        sys.stdout.flush()
        if browse:
            _open_browser(link)

    if job is not None:
        tell(find_running(job, None).client.page_link())
        return
    from penstock.config.resolve import resolve
    from penstock.ops.server.app import ui_application
    from penstock.ops.server.connections import Server, uvicorn_config
    from penstock.ops.server.serving import names_of, open_listener, place_of
    from penstock.ops.server.web import Access

    rest = replace(resolve().rest, port=port)
    access = Access(os.environ.get("PENSTOCK_TOKEN", "").strip() or secrets.token_urlsafe(32))
    listener = open_listener(rest)
    app = ui_application(access, storage or [], names_of(listener, rest)).asgi()
    server = Server(uvicorn_config(app, rest, "critical"))
    server.config.timeout_graceful_shutdown = 1  # a page that follows events would hold the end back
    tell(f"{'http' if rest.certificate is None else 'https'}://{place_of(listener, rest)}/#code={access.new_code()}")
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def _open_browser(link: str) -> None:
    """Through a file that redirects: every user of this machine sees the arguments of programs."""
    import webbrowser

    screen = sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.stdout.isatty() and screen:
        with contextlib.suppress(OSError):
            webbrowser.open(_redirect_to(link).as_uri())


def _redirect_to(link: str) -> Path:
    """A page that only its owner can read; it replaces the one before."""
    from penstock.ops.process.registry import home
    from penstock.storage.local import create_own, own_folder

    page = own_folder(home()) / "open.html"
    page.unlink(missing_ok=True)
    with open(create_own(page), "w", encoding="utf-8") as file:
        file.write(f'<!doctype html><title>Penstock</title><meta http-equiv="refresh" content="0;url={link}">\n')
    return page
