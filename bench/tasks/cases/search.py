"""Tasks about finding things in a folder."""

from __future__ import annotations

from bench.tasks.checks import every, file_is, says, says_not
from bench.tasks.scripts import call, say, script
from bench.tasks.task import Task

FIND, NAMES = ("grep", "read"), ("glob",)
PROJECT = {
    "README.md": "# Tool\n",
    "src/dates.py": "import time\n\n\ndef parse_date(text):\n    return time.strptime(text)\n",
    "src/limits.py": "MAX_RETRIES = 6\nTIMEOUT = 30\n",
    "src/main.py": "from dates import parse_date\n\nprint(parse_date('x'))\n",
    "docs/intro.md": "Welcome.\n",
    "docs/usage.md": "Run it.\n",
    "docs/deep/faq.md": "None yet.\n",
}

TASKS = (
    Task(
        "search/which-file",
        ("Which file in this folder mentions the word apricot?",),
        FIND,
        every(says("pantry.txt"), says_not("fridge.txt", "cellar.txt")),
        (script(call("grep", pattern="apricot"), say("pantry.txt")),),
        files={
            "fridge.txt": "milk, butter\n",
            "pantry.txt": "rice, apricot jam\n",
            "cellar.txt": "potatoes\n",
        },
    ),
    Task(
        "search/count-matches",
        ("How many lines of app.log contain ERROR? Answer with the number.",),
        ("grep",),
        says(("4", "four")),
        (script(call("grep", pattern="ERROR", path="app.log"), say("4 lines contain ERROR.")),),
        files={
            "app.log": "INFO start\nERROR disk\nINFO ok\nERROR net\nERROR net\nWARN slow\n"
            "ERROR disk\nINFO stop\n"
        },
    ),
    Task(
        "search/path-of-file",
        ("Somewhere below this folder is a file named target.txt. What is its path?",),
        NAMES,
        says("a/b/c/target.txt"),
        (script(call("glob", pattern="**/target.txt"), say("It is a/b/c/target.txt.")),),
        files={"a/other.txt": "x", "a/b/c/target.txt": "x", "z/nothing.txt": "x"},
    ),
    Task(
        "search/definition",
        ("In which file is the function parse_date defined?",),
        FIND,
        says(("src/dates.py", "dates.py")),
        (script(call("grep", pattern="def parse_date"), say("In src/dates.py.")),),
        wrong="say It is defined in src/main.py.",
        files=PROJECT,
    ),
    Task(
        "search/constant",
        ("What is the value of MAX_RETRIES in this project?",),
        FIND,
        says("6"),
        (script(call("grep", pattern="MAX_RETRIES"), say("MAX_RETRIES is 6.")),),
        wrong="say MAX_RETRIES is 3.",
        files=PROJECT,
    ),
    Task(
        "search/count-files",
        ("How many Markdown files (ending in .md) are below this folder? Answer with the number.",),
        NAMES,
        says(("4", "four")),
        (script(call("glob", pattern="**/*.md"), say("There are 4.")),),
        files=PROJECT,
    ),
    Task(
        "search/save-result",
        ("Find the file that mentions Lisbon and write its name, and nothing else, to found.txt.",),
        ("grep", "write"),
        file_is("found.txt", "spring.txt"),
        (
            script(
                call("grep", pattern="Lisbon"),
                call("write", path="found.txt", content="spring.txt"),
                say("Done."),
            ),
        ),
        files={
            "winter.txt": "We went to Oslo.\n",
            "spring.txt": "We went to Lisbon.\n",
            "summer.txt": "We stayed at home.\n",
        },
    ),
)
