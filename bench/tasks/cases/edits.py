"""Tasks that change files: by an exact edit, or by a patch."""

from __future__ import annotations

from bench.tasks.checks import (
    every,
    file_has,
    file_is,
    file_lacks,
    json_is,
    lines_are,
    unchanged,
)
from bench.tasks.scripts import call, say, script
from bench.tasks.task import Ending, Task

EDIT, PATCH = ("read", "edit"), ("read", "apply_patch")
INI = "[server]\nhost = localhost\nport = 8000\n\n[log]\nlevel = info\n"
CALC = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a * 2\n"


def patch(*lines: str) -> str:
    """A turn that applies a patch."""
    return call("apply_patch", patch="\n".join(("*** Begin Patch", *lines, "*** End Patch")))


def adds(end: Ending) -> str:
    """Whether `add` of calc.py adds; the text is only read, never run."""
    text = (end.text("calc.py") or "").replace(" ", "")
    if "defdouble(a):\nreturna*2" not in text:
        return "double was changed"
    return "" if "returna+b" in text or "returnb+a" in text else "add does not add"


TASKS = (
    Task(
        "edit/setting",
        ("In config.ini, change the port from 8000 to 9000. Change nothing else.",),
        EDIT,
        file_is("config.ini", INI.replace("8000", "9000")),
        (
            script(
                call("edit", path="config.ini", old_string="port = 8000", new_string="port = 9000"),
                say("The port is 9000 now."),
            ),
        ),
        files={"config.ini": INI},
    ),
    Task(
        "edit/typo",
        ("README.md has the misspelt word recieve. Correct it to receive.",),
        EDIT,
        file_is("README.md", "# Post\n\nYou will receive a letter.\n"),
        (
            script(
                call("edit", path="README.md", old_string="recieve", new_string="receive"),
                say("Corrected."),
            ),
        ),
        files={"README.md": "# Post\n\nYou will recieve a letter.\n"},
    ),
    Task(
        "edit/everywhere",
        ("Replace every colour by color in style.txt.",),
        EDIT,
        every(file_lacks("style.txt", "colour"), file_has("style.txt", "color a", "color b")),
        (
            script(
                call(
                    "edit",
                    path="style.txt",
                    old_string="colour",
                    new_string="color",
                    replace_all=True,
                ),
                say("Done."),
            ),
        ),
        files={"style.txt": "colour a\ncolour b\nthe colour of the sea\n"},
    ),
    Task(
        "edit/bug",
        ("The function add in calc.py subtracts instead of adding. Fix it.",),
        EDIT,
        adds,
        (
            script(
                call("read", path="calc.py"),
                call("edit", path="calc.py", old_string="a - b", new_string="a + b"),
                say("Fixed."),
            ),
        ),
        files={"calc.py": CALC},
    ),
    Task(
        "edit/version",
        ("Change the version in package.json from 1.2.3 to 1.3.0.",),
        EDIT,
        json_is("package.json", lambda found: found == {"name": "x", "version": "1.3.0"}),
        (
            script(
                call("edit", path="package.json", old_string="1.2.3", new_string="1.3.0"),
                say("Done."),
            ),
        ),
        files={"package.json": '{\n  "name": "x",\n  "version": "1.2.3"\n}\n'},
    ),
    Task(
        "edit/remove-line",
        ("Remove the line that says spam from list.txt and keep the others.",),
        EDIT,
        lines_are("list.txt", "eggs", "ham", "beans"),
        (
            script(
                call("edit", path="list.txt", old_string="spam\n", new_string=""),
                say("Removed."),
            ),
        ),
        files={"list.txt": "eggs\nspam\nham\nbeans\n"},
    ),
    Task(
        "edit/two-files",
        ("The company Acme is now called Apex. Change the name in about.txt and in contact.txt.",),
        EDIT,
        every(
            file_is("about.txt", "Apex makes springs."), file_is("contact.txt", "Write to Apex.")
        ),
        (
            script(
                call("edit", path="about.txt", old_string="Acme", new_string="Apex")
                + " && "
                + call("edit", path="contact.txt", old_string="Acme", new_string="Apex"),
                say("Done."),
            ),
        ),
        wrong=script(
            call("edit", path="about.txt", old_string="Acme", new_string="Apex"), say("Done.")
        ),
        files={"about.txt": "Acme makes springs.\n", "contact.txt": "Write to Acme.\n"},
    ),
    Task(
        "patch/one-line",
        ("In timer.py, change the delay from 5 to 15 with a patch.",),
        PATCH,
        file_is("timer.py", "import time\n\ndelay = 15\ntime.sleep(delay)"),
        (
            script(
                patch("*** Update File: timer.py", "@@ import time", "-delay = 5", "+delay = 15"),
                say("Done."),
            ),
        ),
        files={"timer.py": "import time\n\ndelay = 5\ntime.sleep(delay)\n"},
    ),
    Task(
        "patch/new-file",
        ("Use a patch to add a file hello.txt with the single line: hello there",),
        PATCH,
        file_is("hello.txt", "hello there"),
        (script(patch("*** Add File: hello.txt", "+hello there"), say("Added.")),),
    ),
    Task(
        "patch/two-files",
        ("With one patch, change v1 to v2 in both client.txt and server.txt.",),
        PATCH,
        every(file_is("client.txt", "protocol: v2"), file_is("server.txt", "speaks: v2")),
        (
            script(
                patch(
                    "*** Update File: client.txt",
                    "-protocol: v1",
                    "+protocol: v2",
                    "*** Update File: server.txt",
                    "-speaks: v1",
                    "+speaks: v2",
                ),
                say("Done."),
            ),
        ),
        files={"client.txt": "protocol: v1\n", "server.txt": "speaks: v1\n"},
    ),
    Task(
        "patch/given-diff",
        ("fix.diff is a unified diff for menu.txt. Apply it.",),
        PATCH,
        every(lines_are("menu.txt", "soup", "fish", "cake"), unchanged("fix.diff")),
        (
            script(
                call("read", path="fix.diff"),
                call(
                    "apply_patch",
                    patch="--- a/menu.txt\n+++ b/menu.txt\n@@ -1,3 +1,3 @@\n soup\n-meat\n+fish\n"
                    " cake\n",
                ),
                say("Applied."),
            ),
        ),
        files={
            "menu.txt": "soup\nmeat\ncake\n",
            "fix.diff": "--- a/menu.txt\n+++ b/menu.txt\n@@ -1,3 +1,3 @@\n soup\n-meat\n+fish\n"
            " cake\n",
        },
    ),
)
