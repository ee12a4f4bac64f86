"""The help of every command: plain text that fits 80 columns, in groups, with examples that can be copied."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    import typer
    from typer._click import Context, HelpFormatter  # type: ignore[import-not-found, unused-ignore]

NAMES = {"help_option_names": ["-h", "--help"]}
GROUPS = {
    "Run a job": ("run", "explain", "check", "drill", "config", "pack"),
    "See jobs": ("list", "show", "logs", "ui"),
    "Steer a running job": ("savepoint", "checkpoint", "stop", "cancel"),
    "Look into what jobs left": ("audit", "transactions"),
    "Develop": ("dev",),
}
_ROOT, _, _LINES = Path(__file__).with_name("usage.txt").read_text("utf-8").partition("---\n")
ROOT, EXAMPLES = f"\b\n{_ROOT}", _LINES.splitlines()  # \b: the lines of a paragraph stay as they are


def _tidy(text: str) -> str:
    """`{JOB}` is a required argument to typer, `[[ID]...]...` an optional one whose name has brackets."""
    return re.sub(r"\[(\[[^\n]*\]\.\.\.)\]\.\.\.", r"\1", re.sub(r"\{([^{}\s]+)\}", r"\1", text))


class Command(TyperCommand):
    """Names are never cut; the type of an argument, which its name says, is left out."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for param in self.params:
            if param.param_type_name == "argument":
                setattr(param, "display_type_rich", lambda ctx: None)  # noqa: B010 - not every version has it

    def get_help(self, ctx: Context) -> str:
        return _tidy(super().get_help(ctx))

    def get_usage(self, ctx: Context) -> str:
        return _tidy(super().get_usage(ctx))


class Group(TyperGroup):
    """The first sentence of each command, whole; of the root in groups."""

    def format_commands(self, ctx: Context, formatter: HelpFormatter) -> None:
        groups = {"Commands": tuple(self.commands)} if ctx.parent else GROUPS
        for title, names in groups.items():
            paragraphs = [inspect.cleandoc(self.commands[name].help or "").partition("\n\n")[0] for name in names]
            sentences = [" ".join(text.split()).partition(". ")[0].rstrip(".") for text in paragraphs]
            with formatter.section(title):
                formatter.write_dl([(name.ljust(12), text) for name, text in zip(names, sentences, strict=True)])


def give_help(app: typer.Typer, path: str = "penstock ") -> None:
    """Give every command of `app` its class and its examples."""
    for command in app.registered_commands:
        name = f"{path}{command.name or getattr(command.callback, '__name__', '')}"
        lines = [f"  {line}" for line in EXAMPLES if f"{line} ".startswith(f"{name} ")]
        command.cls = command.cls if issubclass(command.cls or TyperCommand, Command) else Command
        command.epilog = "\b\n" + "\n".join(["Examples:", *lines])
    for group in app.registered_groups:
        if group.typer_instance is not None:
            give_help(group.typer_instance, f"{path}{group.name} ")
