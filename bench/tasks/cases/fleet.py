"""Tasks on edges: the right machine must be used, also one that sleeps when it is called."""

from __future__ import annotations

from bench.tasks.checks import absent, called, every, file_is, says, says_not
from bench.tasks.scripts import call, say, script
from bench.tasks.task import Task

CALL, DEVICES = ("edge_call",), ("edge_call", "nodes")
NOTES = {
    "garage": {"note.txt": "the ladder is behind the car\n"},
    "attic": {"note.txt": "the skis are under the window\n"},
}

TASKS = (
    Task(
        "fleet/one-edge",
        ("What does note.txt on this machine say?",),
        ("read",),
        every(called("read", "garage"), says("ladder")),
        (script(call("read", path="note.txt"), say("The ladder is behind the car.")),),
        wrong="say The ladder is there.",
        on="garage",
        edges=NOTES,
    ),
    Task(
        "fleet/right-machine",
        ("What does the file note.txt on the edge attic say? Read it with the action read.",),
        CALL,
        every(called("edge_call", "attic"), says("skis"), says_not("ladder")),
        (
            script(
                call("edge_call", agent_id="attic", action="read", params={"path": "note.txt"}),
                say("The skis are under the window."),
            ),
        ),
        wrong=script(
            call("edge_call", agent_id="garage", action="read", params={"path": "note.txt"}),
            say("The ladder is behind the car."),
        ),
        on="*",
        edges=NOTES,
    ),
    Task(
        "fleet/write-there",
        ("On the edge garage, and only there, write the word closed to door.txt. The action is "
         "write; its params are path and content.",),
        CALL,
        every(file_is("door.txt", "closed", edge="garage"), absent("door.txt", edge="attic")),
        (
            script(
                call(
                    "edge_call",
                    agent_id="garage",
                    action="write",
                    params={"path": "door.txt", "content": "closed"},
                ),
                say("Done."),
            ),
        ),
        wrong=script(
            call(
                "edge_call",
                agent_id="*",
                action="write",
                params={"path": "door.txt", "content": "closed"},
            ),
            say("Done."),
        ),
        on="*",
        edges=NOTES,
    ),
    Task(
        "fleet/which-machine",
        ("One of the edges garage and attic has a file key.txt. Which one? Look with the action "
         "glob and the params pattern.",),
        CALL,
        every(called("edge_call"), says("attic")),
        (
            script(
                call("edge_call", agent_id="*", action="glob", params={"pattern": "key.txt"}),
                say("It is on attic."),
            ),
        ),
        wrong="say It is on attic.",
        on="*",
        edges={"garage": {"a.txt": "a\n"}, "attic": {"key.txt": "k\n"}},
    ),
    Task(
        "fleet/list",
        ("Which devices are online? List them with the tool nodes.",),
        DEVICES,
        every(called("nodes"), says("garage", "attic")),
        (script(call("nodes", action="list"), say("garage and attic are online.")),),
        wrong="say garage and attic.",
        on="*",
        edges=NOTES,
    ),
    Task(
        "fleet/run-there",
        ("Run the command `sh where.sh` on the edge attic with the action bash and tell me what it "
         "prints.",),
        CALL,
        every(called("edge_call", "attic"), says("roof-71"), says_not("floor-17")),
        (
            script(
                call(
                    "edge_call",
                    agent_id="attic",
                    action="bash",
                    params={"command": "sh where.sh"},
                ),
                say("It prints roof-71."),
            ),
        ),
        wrong="say It prints floor-17.",
        on="*",
        edges={"garage": {"where.sh": "echo floor-17\n"}, "attic": {"where.sh": "echo roof-71\n"}},
    ),
    Task(
        "sleeping/edge",
        ("What does note.txt on this machine, which may be asleep, say?",),
        ("read",),
        every(called("read", "garage"), says("ladder")),
        (script(call("read", path="note.txt"), say("The ladder is behind the car.")),),
        wrong="say The machine is asleep, so I answered without it.",
        on="garage",
        edges=NOTES,
        asleep="garage",
    ),
    Task(
        "sleeping/once",
        ("Run the command `echo x >> marks.txt` on this machine exactly once.",),
        ("bash",),
        every(called("bash", "attic"), file_is("marks.txt", "x", edge="attic")),
        (script(call("bash", command="echo x >> marks.txt"), say("Done.")),),
        on="attic",
        edges=NOTES,
        asleep="attic",
    ),
)  # fmt: skip
