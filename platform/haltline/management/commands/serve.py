"""`manage.py serve`: everything on this machine, under one supervisor."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser

from haltline import probes
from haltline.env import Env
from haltline.exclusive import TakenError, home_lock, port_check
from haltline.services_table import engine_command, engine_environment, stages
from haltline.supervisor import Supervisor

INTERRUPTED = 128 + signal.SIGINT


class Command(BaseCommand):
    help = "Start broker, web, tasks and engine on this machine; Ctrl-C ends them in order."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--interrupt-ok",
            action="store_true",
            help=f"end with code 0 instead of {INTERRUPTED} after Ctrl-C: for `make`",
        )

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ARG002 (Django's signature)
        try:
            code = self._alone(settings.ENV)
        except TakenError as problem:
            raise CommandError(str(problem)) from None
        except KeyboardInterrupt:  # before anything ran
            code = INTERRUPTED
        sys.exit(0 if code == INTERRUPTED and options["interrupt_ok"] else code)

    def _alone(self, env: Env) -> int:
        env.prepare_home()
        with home_lock(env.home):
            port_check(env.bind, env.port)
            return engine_settings_check(env) or self._serve(env)

    def _serve(self, env: Env) -> int:
        call_command("pull", stdout=self.stdout)
        supervisor = Supervisor(
            stages(env),
            write=self._write,
            on_ready=lambda: supervisor.say("serve", *welcome(env)),
            settled=probes.page(env, "/health/ready"),
        )
        return supervisor.run()

    def _write(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def engine_settings_check(env: Env) -> int:
    """0 if an engine can start with its settings; else the code, and it has said what is wrong.

    They are the engine's own, and this side of the house may not import it.
    """
    check = engine_command("--check")
    return subprocess.run(check, env=engine_environment(env, 0), check=False).returncode  # noqa: S603


def welcome(env: Env) -> list[str]:
    key_file = env.home.key_file("client")
    key = key_file.read_text(encoding="ascii").strip() if key_file.exists() else ""
    models = probes.served_models(env, key)
    return where_to_look(env, model=models[0] if models else env.model)


def where_to_look(env: Env, *, model: str) -> list[str]:
    site = f"http://{probes.reachable_at(env)}"
    home = _as_typed(env.home.root)
    return [
        f"Ready. Model: {model}",
        f"Console:  {site}/admin/  (user 'admin', password in {home / 'admin.password'})",
        f"Schema:   {site}/schema/  (sign in to the console first)",
        f"Try it:   {_example(site, home / 'client.key', model)}",
        "Ctrl-C ends everything.",
    ]


def _example(site: str, key_file: Path, model: str) -> str:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "stream": True,
    }
    key = shlex.quote(str(key_file))
    return (
        f'curl -sSN {site}/v1/chat/completions -H "Authorization: Bearer $(cat {key})" '
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )


def _as_typed(path: Path) -> Path:
    """Relative to the folder that the operator is in, where that is shorter."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path
