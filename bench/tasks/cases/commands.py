"""Tasks for the shell and for git."""

from __future__ import annotations

import tarfile

from bench.tasks.checks import (
    absent,
    every,
    file_is,
    folders,
    git,
    lines_are,
    reports,
    says,
)
from bench.tasks.scripts import call, say, script
from bench.tasks.task import Ending, Task

BASH = ("bash",)
NOTES = (
    ("First notes", {"notes.txt": "buy paint\n", "other.txt": "x\n"}),
    ("Plan the garden", {"garden.txt": "roses\n"}),
)


def archived(end: Ending) -> str:
    """Whether backup.tar.gz has the two files."""
    path = end.folder / "backup.tar.gz"
    try:
        with tarfile.open(path, "r:*") as archive:
            names = {name.removeprefix("./") for name in archive.getnames()}
    except (OSError, tarfile.TarError):
        return "there is no archive backup.tar.gz"
    wanted = {"data/one.txt", "data/two.txt"}
    return "" if wanted <= names else "the archive does not have both files"


TASKS = (
    Task(
        "shell/word-count",
        ("How many words are in essay.txt? Answer with the number.",),
        BASH,
        says("23"),
        (script(call("bash", command="wc -w essay.txt"), say("23 words.")),),
        files={"essay.txt": "one two three four five\n" * 4 + "and three more\n"},
    ),
    Task(
        "shell/sort",
        ("Sort the lines of names.txt alphabetically into a new file sorted.txt.",),
        BASH,
        lines_are("sorted.txt", "Ana", "Bo", "Cleo", "Zoe"),
        (script(call("bash", command="sort names.txt > sorted.txt"), say("Done.")),),
        files={"names.txt": "Zoe\nBo\nAna\nCleo\n"},
    ),
    Task(
        "shell/folders",
        ("Create the folders src, docs and tests.",),
        BASH,
        folders("src", "docs", "tests"),
        (script(call("bash", command="mkdir src docs tests"), say("Created.")),),
    ),
    Task(
        "shell/move",
        ("Move all files ending in .log into a new folder logs.",),
        BASH,
        every(
            file_is("logs/a.log", "a"),
            file_is("logs/b.log", "b"),
            absent("a.log", "b.log"),
            file_is("keep.txt", "k"),
        ),
        (script(call("bash", command="mkdir logs && mv *.log logs/"), say("Moved.")),),
        files={"a.log": "a\n", "b.log": "b\n", "keep.txt": "k\n"},
    ),  # fmt: skip
    Task(
        "shell/run-script",
        ("Run report.sh and tell me the code that it prints.",),
        BASH,
        says("XK-2041"),
        (script(call("bash", command="sh report.sh"), say("It prints XK-2041.")),),
        files={"report.sh": 'printf "code: XK-%s\\n" "$((2000 + 41))"\n'},
    ),
    Task(
        "shell/archive",
        ("Pack the folder data into backup.tar.gz.",),
        BASH,
        archived,
        (script(call("bash", command="tar czf backup.tar.gz data"), say("Packed.")),),
        files={"data/one.txt": "1\n", "data/two.txt": "2\n"},
    ),
    Task(
        "shell/failing",
        ("Run check.sh. Does it succeed? If not, say why.",),
        BASH,
        every(reports(), says("disk")),
        (
            script(
                call("bash", command="sh check.sh"), say("It failed with exit code 3: disk full.")
            ),
        ),
        wrong="say check.sh ran well and the disk is fine.",
        files={"check.sh": 'echo "disk full" >&2\nexit 3\n'},
    ),
    Task(
        "shell/distinct",
        ("Write the number of distinct lines of colors.txt, and nothing else, to count.txt.",),
        BASH,
        file_is("count.txt", "3"),
        (script(call("bash", command="sort -u colors.txt | wc -l > count.txt"), say("Done.")),),
        files={"colors.txt": "red\nblue\nred\ngreen\nblue\n"},
    ),
    Task(
        "git/changed-file",
        ("Which file has changes that are not committed yet?",),
        ("git_status",),
        says("notes.txt"),
        (script(call("git_status"), say("notes.txt has changes.")),),
        commits=NOTES,
        files={"notes.txt": "buy paint\nand brushes\n"},
    ),
    Task(
        "git/last-commit",
        ("What is the message of the last commit?",),
        ("git_log",),
        says("Plan the garden"),
        (script(call("git_log"), say("The last commit is: Plan the garden")),),
        wrong="say The last commit is: First notes",
        commits=NOTES,
    ),
    Task(
        "git/diff",
        ("What did I change in limits.txt since the last commit? Say the old and new value.",),
        ("git_diff",),
        says("30", "45"),
        (script(call("git_diff"), say("The timeout went from 30 to 45.")),),
        wrong="say The timeout went from 30 to 40.",
        commits=(("Limits", {"limits.txt": "timeout 30\nretries 2\n"}),),
        files={"limits.txt": "timeout 45\nretries 2\n"},
    ),
    Task(
        "git/commit",
        ("Commit my change of notes.txt with the message: Update notes",),
        ("git_status", "git_commit"),
        every(
            git("log", "-1", "--format=%s", prints="Update notes"),
            git("show", "--name-only", "--format=", "HEAD", prints="notes.txt"),
        ),
        (script(call("git_commit", message="Update notes"), say("Committed.")),),
        commits=NOTES,
        files={"notes.txt": "buy paint\nand brushes\n"},
    ),
    Task(
        "git/branch",
        ("Create a branch named feature-x.",),
        ("git_branch",),
        git("branch", "--format=%(refname:short)", prints="feature-x"),
        (script(call("git_branch", action="create", name="feature-x"), say("Created.")),),
        commits=NOTES,
    ),
    Task(
        "git/fix-and-commit",
        ("In notes.txt replace paint by wallpaper, then commit it with the message: Wallpaper",),
        ("edit", "git_commit"),
        every(
            git("log", "-1", "--format=%s", prints="Wallpaper"),
            git("show", "HEAD:notes.txt", prints="buy wallpaper"),
        ),
        (
            script(
                call("edit", path="notes.txt", old_string="paint", new_string="wallpaper"),
                call("git_commit", message="Wallpaper"),
                say("Committed."),
            ),
        ),
        wrong=script(
            call("edit", path="notes.txt", old_string="paint", new_string="wallpaper"),
            say("Committed."),
        ),
        commits=NOTES,
    ),
)
