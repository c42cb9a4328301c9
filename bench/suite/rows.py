"""The rows of the table: what each measures, who takes part, why somebody may be ahead of us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.suite.subjects import LOOPS

ALONE = "flatness_1000", "flatness_1000_loop"
"""Rows of the loop that are only for us and the floor."""


@dataclass(frozen=True)
class Row:
    """One figure for each subject."""

    name: str
    unit: str
    better: str
    """`lower` or `higher`."""
    kind: str
    """How it is run: `loop`, `import`, `memory`, `schema`, `stored`, `stream`, or the name of the
    part that gives it."""
    how: str
    """One or two sentences for the page."""
    peers: tuple[str, ...] = LOOPS
    figures: tuple[str, str] = ("", "")
    """Of a part's row: under which names the part says ours and the floor; a dot goes deeper."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of a part's row: somebody else, and under which name the part says that."""
    trails: Mapping[str, str] = field(default_factory=dict[str, str])
    """A peer that may be ahead of us, and why."""


LOOP_ROWS = (
    Row(
        "turn",
        "µs/turn",
        "lower",
        "loop",
        "A run of 20 turns with one call each and a final text, divided by 20. Ours parses and"
        " validates the arguments, has two policies judge the call, and encodes every record.",
    ),
    Row(
        "turn_20",
        "µs/turn",
        "lower",
        "loop",
        "The median of turns 15 to 25 of a run of 30: what a turn costs when there is a history,"
        " which the floor encodes anew each time.",
    ),
    Row(
        "parallel_turn",
        "µs/turn",
        "lower",
        "loop",
        "A run of 10 turns with five calls each, divided by 10. The floor is `asyncio.gather`.",
    ),
    Row(
        "concurrent_runs",
        "turns/s",
        "higher",
        "loop",
        "1,000 runs of two turns and a final text at once in one process; the model gives way"
        " before each reply, so all runs are under way together. Who makes less than 1,000"
        " is measured in one round only. A peer that is not async gets a thread for each run.",
    ),
    Row(
        "flatness_100",
        "ratio",
        "lower",
        "loop",
        "In one run of 100 turns, the median cost of the last ten turns over that of turns"
        " 15 to 25: 1.0 means that a long history costs nothing extra.",
        trails={
            "agno": "both are flat, and a ratio flatters whose turn costs more to begin with: what"
            " a turn gains over these eighty is a few µs here, and more of agno's",
            "langgraph": "its turn costs so much to begin with that what it gains is a small part",
            "langchain": "its turn costs so much to begin with that what it gains is a small part",
        },
    ),
    Row(
        "flatness_1000",
        "ratio",
        "lower",
        "loop",
        "The same for the last ten of 1,000 turns, with the bytes of the whole request put"
        " together each turn, as a real provider must; too slow for most peers.",
        peers=(),
    ),
    Row(
        "flatness_1000_loop",
        "ratio",
        "lower",
        "loop",
        "The same without putting ours together: what the loop itself adds as the history grows."
        " The floor is the same as in the row above.",
        peers=(),
    ),
    Row(
        "run_kb",
        "KB/run",
        "lower",
        "memory",
        "The runs of `concurrent_runs` in a fresh process: what its peak of resident memory gained"
        " over the moment when 1,000 agents and models were ready to start, divided by 1,000.",
    ),
    Row(
        "import_s",
        "s",
        "lower",
        "import",
        "A fresh process: seconds to import the package and build one run with a tool and a model."
        " Files are in the page cache and compiled. The floor is `asyncio` and `msgspec`.",
    ),
    Row(
        "import_mb",
        "MB",
        "lower",
        "import",
        "The same process: resident memory it gained over the bare interpreter.",
    ),
    Row(
        "tool_schema",
        "µs/tool",
        "lower",
        "schema",
        "A function with four parameters and a docstring, never seen before, made a tool with its"
        " JSON schema. The floor is a `msgspec` struct of the signature, without the docstring.",
    ),
    Row(
        "stored_turn",
        "µs/turn",
        "lower",
        "stored",
        "The run of `turn`, kept in a file as it goes, with the time for the disk. Ours is a"
        " session in the store of `evoclaw up`: a reply is on the disk before its call begins, a"
        " result before the model is asked again. The floor is one row for each message in a bare"
        " `sqlite3` (WAL, `synchronous=FULL`), one commit a turn. `langgraph` and `langchain` use"
        " their SQLite checkpointer with `durability=sync`; `openai-agents` its `SQLiteSession`,"
        " once a turn when the call is over; `google-adk` its `SqliteSessionService`, each event"
        " when it has happened; `strands-agents` files that are not synced;"
        " `agno` its SQLite database, once, when the run has ended. `smolagents` and"
        " `pydantic-ai-slim` keep nothing by themselves.",
        peers=(
            *("agno", "langchain", "langgraph", "strands-agents", "openai-agents"),
            "google-adk",
        ),
        trails={
            "agno": "it commits when the run has ended, and a crash before that loses all turns;"
            " ours waits for the disk in every turn",
            "strands-agents": "it never waits for the disk; ours does in every turn",
        },
    ),
    Row(
        "stream_500_openai",
        "ms CPU",
        "lower",
        "stream",
        "CPU time of the client's process for one streamed reply of 500 chunks in the OpenAI"
        " dialect, sent in a burst by a local server in another process. The floor is a bare"
        " `aiohttp` client that splits what it reads itself and decodes it into typed structs.",
        peers=("openai",),
    ),
    Row(
        "stream_500_anthropic",
        "ms CPU",
        "lower",
        "stream",
        "The same in the Anthropic dialect.",
        peers=("anthropic",),
    ),
)

JOURNALED = (
    "nothing of its call is kept: one that is cut off may have happened or not. Ours is on the disk"
    " of both sides before it begins and before it is answered, and is begun at most once"
)
BARE = "it only carries bytes: it is a second floor, and no way to call a tool"
PART_ROWS = (
    Row(
        "edge_call",
        "calls/s",
        "higher",
        "roundtrip",
        "A call of a tool that does nothing on an edge in another process, over the embedded"
        " broker, one at a time; on the disk of both sides before it is answered. The floor is a"
        " bare MQTT client (`gmqtt`) that sends 500 bytes and gets them back, QoS 1 both ways;"
        " `aiomqtt` does the same. The official MCP SDK calls such a tool in another process over"
        " HTTP, and keeps nothing.",
        figures=("durable_1_per_s", "bare_1_per_s"),
        others={"aiomqtt": "aiomqtt_1_per_s", "MCP SDK": "mcp_1_per_s"},
        trails={"aiomqtt": BARE, "MCP SDK": JOURNALED},
    ),
    Row(
        "edge_call_64",
        "calls/s",
        "higher",
        "roundtrip",
        "The same with 64 in flight, for the floor as well.",
        figures=("durable_64_per_s", "bare_64_per_s"),
        others={"aiomqtt": "aiomqtt_64_per_s", "MCP SDK": "mcp_64_per_s"},
        trails={"aiomqtt": BARE, "MCP SDK": JOURNALED},
    ),
    Row(
        "edge_call_unsynced",
        "calls/s",
        "higher",
        "roundtrip",
        "One at a time, with stores that are written and not synced: the protocol without the"
        " disk, which the floor does not have either.",
        figures=("fast_1_per_s", "bare_1_per_s"),
        others={"aiomqtt": "aiomqtt_1_per_s", "MCP SDK": "mcp_1_per_s"},
        trails={"aiomqtt": BARE},
    ),
    Row(
        "edge_call_mosquitto",
        "calls/s",
        "higher",
        "mosquitto",
        "`edge_call` over Mosquitto.",
        figures=("durable_1_per_s", "bare_1_per_s"),
    ),
    Row(
        "edge_mb",
        "MB",
        "lower",
        "footprint",
        "Resident memory of an idle `evoclaw edge` with all its tools, rules, audit and receipts,"
        " connected and greeted. The floor is a Python process with a bare MQTT client.",
        figures=("memory_mb", "bare_mb"),
    ),
    Row(
        "edge_start_s",
        "s",
        "lower",
        "footprint",
        "From the start of its process until it is online; the floor's until it has subscribed.",
        figures=("start_s", "bare_start_s"),
    ),
    Row(
        "fan_out_1000",
        "s",
        "lower",
        "many",
        "One `edge_call` to all of 1,000 edges, each with a connection, a journal and a tool of"
        " its own, in two other processes. The floor is 1,000 bare MQTT clients in two processes,"
        " each sent 500 bytes, which it sends back. The best of three, of both.",
        figures=("fan_out_s", "bare_fan_out_s"),
    ),
    Row(
        "append_sqlite",
        "appends/s",
        "higher",
        "sqlite",
        "What a turn with one call leaves: five records, two messages and the run's figures,"
        " appended to a session in one transaction and waited for, one after the other. The floor"
        " puts the same rows into the same tables with a bare `sqlite3`, on the same thread.",
        figures=("ours_1_per_s", "bare_1_per_s"),
    ),
    Row(
        "append_sqlite_64",
        "appends/s",
        "higher",
        "sqlite",
        "The same of 64 sessions at once; ours share commits, the floor commits each.",
        figures=("ours_64_per_s", "bare_1_per_s"),
    ),
    Row(
        "append_postgres",
        "appends/s",
        "higher",
        "postgres",
        "`append_sqlite` on a PostgreSQL of this machine that does not sync its disk, so that the"
        " work counts and not the disk. The floor is a bare `psycopg`, a pipeline a transaction.",
        figures=("ours_1_per_s", "bare_1_per_s"),
    ),
    Row(
        "append_postgres_64",
        "appends/s",
        "higher",
        "postgres",
        "The same of 64 sessions at once, over one connection.",
        figures=("ours_64_per_s", "bare_1_per_s"),
    ),
    Row(
        "verdict_read",
        "µs CPU",
        "lower",
        "policies",
        "All policies of a governed run judge a `read`. The floor is a chain of as many policies"
        " that allow at once.",
        figures=("read/trusted.fresh", "floor"),
    ),
    Row(
        "verdict_shell",
        "µs CPU",
        "lower",
        "policies",
        "The same for a command line of four programs with redirections whose text was never read"
        " before: it is parsed, and what each program does is looked up.",
        figures=("four_programs/trusted.fresh", "floor"),
    ),
    Row(
        "verdict_untrusted",
        "µs CPU",
        "lower",
        "policies",
        "The same for a `webfetch` in a conversation in which pages were read: where each piece of"
        " the address came from is looked up.",
        figures=("webfetch/untrusted.fresh", "floor"),
    ),
    Row(
        "cage_start",
        "ms",
        "lower",
        "sandboxes",
        "`true` run in a sandbox that is there already, with its limits and no network. The"
        " floor is a bare fork and exec, which holds nothing back; `bubblewrap` is the program"
        " itself, started with the same namespaces each time.",
        figures=("warm_ms", "bare_ms"),
        others={"bubblewrap": "cold_bubblewrap_ms"},
    ),
)

ROWS = (*LOOP_ROWS, *PART_ROWS)
