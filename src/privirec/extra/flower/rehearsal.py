"""Self-test at start: check that Flower does not run the code of a bundle.

We replace parts of Flower with our own (`allowed_programs.replace`). A release of Flower that
keeps a name but no longer calls it would silently run the code of a bundle. So each of our
processes first passes a test bundle through Flower's own function, with all network access mocked.
The test passes only if our code was called, no code of the bundle was run, and an error reached
the server without the exception's text.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest import mock

from privirec.errors import FederationError
from privirec.extra.flower import allowed_programs

_SECRET = "/a/path/that/stays/here"
_PYPROJECT = """\
[project]
name = "canary"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["canary-dependency-that-nobody-has==1.0"]

[tool.flwr.app]
publisher = "canary"

[tool.flwr.app.components]
serverapp = "canary:app"
clientapp = "canary:app"
"""


class _Over(BaseException):
    """Raised in place of Flower's exit, to end its function."""


def check(rehearse: Callable[[], None]) -> None:
    """Run a rehearsal in a child process, since Flower's functions end theirs.

    Raises FederationError if it fails.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            logging.disable(logging.CRITICAL)
            with contextlib.redirect_stdout(io.StringIO()):
                rehearse()
            code = 0
        except BaseException as error:
            print(f"rehearsal: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        raise FederationError(
            "this Flower does not call what keeps foreign code out, so nothing is started; install "
            "the one that was tried, which the extra 'flower' names"
        )


def client() -> None:
    """Pass a message with a bundle through `flwr-clientapp`'s function. Changes this process."""
    from flwr.app import Message  # noqa: PLC0415 - needs Flower

    from privirec.extra.flower import client_app  # noqa: PLC0415
    from privirec.extra.flower.packing import KIND, pack  # noqa: PLC0415

    flower = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    _programs_are_found_by_name("flwr-clientapp", "CLIENT_APP")
    with _canary() as (fab, mark):
        reached: list[str] = []
        pushed: list[Any] = []

        def ours(message: Any, context: Any) -> NoReturn:
            reached.append(_SECRET)
            raise OSError(_SECRET)

        client_app.app = ours  # type: ignore[assignment]
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
        identity.task_id = identity.run_id = identity.node_id = 1
        question = Message(pack(b""), 1, KIND, ttl=60)
        question.metadata.__dict__["_message_id"] = "0" * 64
        task = (question, SimpleNamespace(), _run(), fab)
        _without_network(
            flower,
            RuntimeHttpClient=mock.MagicMock(),
            pull_task_input=lambda _: task,
            push_message=lambda _, reply, __: pushed.append(reply),
            push_task_output=lambda **_: None,
        )
        with contextlib.suppress(_Over):
            flower.run_clientapp("", "token", True, runtime_dependency_install=True)
        _judge(reached, mark)
        if (mark.parent / "flower" / "apps").exists():
            raise FederationError("a bundle was unpacked")
        if len(pushed) != 1 or not pushed[0].has_error() or _SECRET in str(pushed[0].error):
            raise FederationError("the words of an error leave this machine")


def server() -> None:
    """Pass a run with a bundle through `flwr-serverapp`'s function. Changes this process."""
    from privirec.extra.flower import server_app  # noqa: PLC0415 - needs Flower

    flower = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    _programs_are_found_by_name("flwr-serverapp", "SERVER_APP")
    with _canary() as (fab, mark):
        reached: list[str] = []
        server_app.app = lambda **_: reached.append("")  # type: ignore[assignment]
        run, nothing = _run(), mock.MagicMock()
        _without_network(
            flower,
            HttpGrid=nothing,
            start_log_uploader=nothing,
            context_from_proto=lambda _: SimpleNamespace(run_config={}, state=None),
            run_from_proto=lambda _: run,
            fab_from_proto=lambda _: fab,
        )
        with contextlib.suppress(_Over):
            flower.run_serverapp("", nothing, "token", True, runtime_dependency_install=True)
        _judge(reached, mark)


def _judge(reached: list[str], mark: Path) -> None:
    if mark.exists():
        raise FederationError("code of a bundle was run")
    if len(reached) != 1:
        raise FederationError("our own code was not called")


def _programs_are_found_by_name(name: str, kind: str) -> None:
    """Check that Flower starts a program by its bare name, and so finds ours on its PATH."""
    executor = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
    task_type = importlib.import_module("flwr.supercore.constant").TaskType
    started: list[list[str]] = []
    popen = SimpleNamespace(
        Popen=lambda command, **_: started.append(command), DEVNULL=None, PIPE=None
    )
    allowed_programs.replace(executor, subprocess=popen)
    spec = mock.MagicMock(task_type=getattr(task_type, kind), runtime_dependency_install=False)
    executor.SubprocessExecutor().launch(spec)
    if [command[0] for command in started] != [name]:
        raise FederationError(f"{name} is not what Flower starts")


def _without_network(flower: Any, **parts: Any) -> None:
    def over(*_: object, **__: object) -> NoReturn:
        raise _Over

    quiet = mock.MagicMock()
    allowed_programs.replace(
        flower,
        HeartbeatSender=quiet,
        register_signal_handlers=quiet,
        event=quiet,
        log=quiet,
        flwr_exit=over,
        **parts,
    )


@contextlib.contextmanager
def _canary() -> Iterator[tuple[Any, Path]]:
    """Yield a bundle that creates a file when imported, and that file's path.

    The bundle also declares a dependency.
    """
    from flwr.cli.build import build_fab_from_disk  # noqa: PLC0415 - needs Flower
    from flwr.supercore.fab import Fab  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="privirec-") as folder:
        os.environ["FLWR_HOME"] = str(Path(folder) / "flower")
        app, mark = Path(folder) / "app", Path(folder) / "mark"
        app.mkdir()
        (app / "pyproject.toml").write_text(_PYPROJECT, encoding="utf-8")
        code = f"open({str(mark)!r}, 'w').close()\napp = None\n"
        (app / "canary.py").write_text(code, encoding="utf-8")
        content = build_fab_from_disk(app)
        hashed = hashlib.sha256(content).hexdigest()
        yield Fab(hashed, content, {}), mark


def _run() -> Any:
    return SimpleNamespace(
        run_id=1, fab_id="canary/canary", fab_version="1.0.0", override_config={}
    )
