"""Tasks about files: read, write, copy, compute, and say what is missing."""

from __future__ import annotations

from bench.tasks.checks import (
    absent,
    every,
    file_is,
    json_is,
    lines_are,
    reports,
    says,
    says_not,
    unchanged,
)
from bench.tasks.scripts import call, say, script
from bench.tasks.task import Task

READ, WRITE, BOTH = ("read",), ("write",), ("read", "write")

TASKS = (
    Task(
        "files/read-fact",
        ("What is the gate code in note.txt?",),
        READ,
        says("4417"),
        (script(call("read", path="note.txt"), say("The gate code is 4417.")),),
        wrong="say The gate code is 1234.",
        files={"note.txt": "The gate code is 4417.\nThe bins go out on Friday.\n"},
    ),
    Task(
        "files/write-line",
        ("Create the file greeting.txt with the text: hello world",),
        WRITE,
        file_is("greeting.txt", "hello world"),
        (script(call("write", path="greeting.txt", content="hello world\n"), say("Done.")),),
    ),
    Task(
        "files/copy",
        ("Copy the text of original.txt into a new file copy.txt.",),
        BOTH,
        every(file_is("copy.txt", "Violets are blue.\nRoses are red."), unchanged("original.txt")),
        (
            script(
                call("read", path="original.txt"),
                call("write", path="copy.txt", content="Violets are blue.\nRoses are red.\n"),
                say("Done."),
            ),
        ),
        files={"original.txt": "Violets are blue.\nRoses are red.\n"},
    ),
    Task(
        "files/json-value",
        ("Which port is configured in config.json? Answer with the number.",),
        READ,
        says("8081"),
        (script(call("read", path="config.json"), say("8081")),),
        wrong="say 8080",
        files={"config.json": '{\n  "host": "0.0.0.0",\n  "port": 8081,\n  "debug": false\n}\n'},
    ),
    Task(
        "files/new-json",
        ('Write settings.json: a JSON object with "name" set to "demo" and "retries" set to 3.',),
        WRITE,
        json_is("settings.json", lambda found: found == {"name": "demo", "retries": 3}),
        (
            script(
                call("write", path="settings.json", content='{"name": "demo", "retries": 3}'),
                say("Done."),
            ),
        ),
    ),
    Task(
        "files/sum",
        (
            "a.txt and b.txt each hold a number. Read both, add them, and write only the sum to "
            "total.txt.",
        ),
        BOTH,
        file_is("total.txt", "42"),
        (
            script(
                f"{call('read', path='a.txt')} && {call('read', path='b.txt')}",
                call("write", path="total.txt", content="42"),
                say("The sum is 42."),
            ),
        ),
        files={"a.txt": "17\n", "b.txt": "25\n"},
    ),
    Task(
        "files/append",
        ("Add the line milk at the end of shopping.txt and keep the other lines.",),
        BOTH,
        lines_are("shopping.txt", "bread", "apples", "milk"),
        (
            script(
                call("read", path="shopping.txt"),
                call("write", path="shopping.txt", content="bread\napples\nmilk\n"),
                say("Added."),
            ),
        ),
        files={"shopping.txt": "bread\napples\n"},
    ),
    Task(
        "files/count-lines",
        ("How many lines does visitors.txt have? Answer with the number.",),
        READ,
        says(("7", "seven")),
        (script(call("read", path="visitors.txt"), say("It has 7 lines.")),),
        files={"visitors.txt": "Ana\nBo\nCleo\nDan\nEve\nFinn\nGus\n"},
    ),
    Task(
        "files/missing",
        ("What does absent.txt say?",),
        BOTH,
        every(reports(), absent("absent.txt")),
        (script(call("read", path="absent.txt"), say("The file absent.txt does not exist.")),),
        wrong="say It says hello.",
        files={"present.txt": "I am here.\n"},
    ),
    Task(
        "files/longest",
        ("Who is the oldest person in people.csv? Answer with the name.",),
        READ,
        every(says("Marta"), says_not("Ivo", "Nils")),
        (script(call("read", path="people.csv"), say("Marta")),),
        wrong="say Ivo",
        files={"people.csv": "name,age\nIvo,31\nMarta,58\nNils,44\n"},
    ),
)
