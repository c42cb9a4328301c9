"""The rows of the table: what each measures, its peers, and why a peer may be ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.suite.subjects import LOOPS

WITHOUT_PEERS = "flatness_1000", "flatness_1000_loop"
"""Rows of the loop that are measured only for EvoClaw and the floor."""


@dataclass(frozen=True)
class Row:
    """One figure for each subject."""

    name: str
    unit: str
    better: str
    """`lower` or `higher`."""
    kind: str
    """How it is measured: `loop`, `import`, `memory`, `schema`, `stored`, `stream`, or the name of
    a part."""
    description: str
    """One or two sentences for the page."""
    peers: tuple[str, ...] = LOOPS
    figures: tuple[str, str] = ("", "")
    """Only rows of a part: the keys of EvoClaw's and the floor's figure in the part's result; a
    dot separates nested keys."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Only rows of a part: peers, and the key of each peer's figure."""
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    """Peers that may be ahead, and why."""


LOOP_ROWS = (
    Row(
        "turn",
        "µs/turn",
        "lower",
        "loop",
        "A run of 20 turns with one call each and a final text, divided by 20. EvoClaw parses and"
        " validates the arguments, has two policies judge the call, and encodes every record.",
    ),
    Row(
        "turn_20",
        "µs/turn",
        "lower",
        "loop",
        "The median of turns 15 to 25 of a run of 30: the cost of a turn with a history, which the"
        " floor encodes again each turn.",
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
        "1,000 concurrent runs of two turns and a final text in one process; the model yields to"
        " the event loop before each reply, so that the runs interleave. A subject below 1,000"
        " turns/s is measured in one round only. A peer that is not async gets a thread for each"
        " run.",
    ),
    Row(
        "flatness_100",
        "ratio",
        "lower",
        "loop",
        "In one run of 100 turns, the median cost of the last ten turns divided by that of turns"
        " 15 to 25: 1.0 means that a long history costs nothing extra.",
        reasons={
            "agno": "both are flat, and the ratio favors the subject with the higher base cost: a"
            " turn gets a few µs slower over these eighty turns here, and more than that in agno",
            "langgraph": "its base cost per turn is so high that the growth is a small share of it",
            "langchain": "its base cost per turn is so high that the growth is a small share of it",
        },
    ),
    Row(
        "flatness_1000",
        "ratio",
        "lower",
        "loop",
        "The same for the last ten of 1,000 turns, with the bytes of the whole request assembled"
        " each turn, as a real provider must do; too slow for most peers.",
        peers=(),
    ),
    Row(
        "flatness_1000_loop",
        "ratio",
        "lower",
        "loop",
        "The same without assembling EvoClaw's request: the growth of the loop itself. The floor is"
        " the same as in the row above.",
        peers=(),
    ),
    Row(
        "run_kb",
        "KB/run",
        "lower",
        "memory",
        "The runs of `concurrent_runs` in a fresh process: the peak of resident memory minus the"
        " memory when 1,000 agents and models were ready to start, divided by 1,000.",
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
        "The same process: its resident memory minus that of the bare interpreter.",
    ),
    Row(
        "tool_schema",
        "µs/tool",
        "lower",
        "schema",
        "Creating a tool with its JSON schema from a new function with four parameters and a"
        " docstring. The floor is a `msgspec` struct of the signature, without the docstring.",
    ),
    Row(
        "stored_turn",
        "µs/turn",
        "lower",
        "stored",
        "The run of `turn`, stored in a file while it runs, including the time for the disk."
        " EvoClaw uses a session in the store of `evoclaw up`: a reply and the result of its call,"
        " which only reads, are on the disk before the next model request; before a call that does"
        " more, the reply would be. The floor inserts one row for"
        " each message with a bare `sqlite3` (WAL, `synchronous=FULL`), one commit per turn."
        " `langgraph` and `langchain` use their SQLite checkpointer with `durability=sync`;"
        " `openai-agents` uses its `SQLiteSession`, once per turn after the call; `google-adk` its"
        " `SqliteSessionService`, after each event; `strands-agents` files that are not synced;"
        " `agno` its SQLite database, once, after the run. `smolagents` and `pydantic-ai-slim` have"
        " no store of their own.",
        peers=(
            *("agno", "langchain", "langgraph", "strands-agents", "openai-agents"),
            "google-adk",
        ),
        reasons={
            "agno": "it commits once after the run, so a crash before that loses all turns; EvoClaw"
            " waits for the disk in every turn",
            "strands-agents": "it never waits for the disk; EvoClaw does in every turn",
        },
    ),
    Row(
        "stream_500_openai",
        "ms CPU",
        "lower",
        "stream",
        "CPU time of the client process for one streamed reply of 500 chunks in OpenAI's format,"
        " sent in a burst by a local server in another process. The floor is a bare `aiohttp`"
        " client that splits the stream itself and decodes it into typed structs.",
        peers=("openai",),
    ),
    Row(
        "stream_500_anthropic",
        "ms CPU",
        "lower",
        "stream",
        "The same in Anthropic's format.",
        peers=("anthropic",),
    ),
)

NOT_JOURNALED = (
    "it stores nothing about a call, so the outcome of an interrupted call is unknown. EvoClaw"
    " writes the call to disk on both sides before it starts and before it is acknowledged, and"
    " starts it at most once"
)
BYTES_ONLY = "it only transfers bytes: it is a second floor, not a way to call a tool"
PART_ROWS = (
    Row(
        "edge_call",
        "calls/s",
        "higher",
        "roundtrip",
        "A call of a no-op tool on an edge in another process, over the embedded broker, one at a"
        " time; durable on both sides before it is acknowledged. The floor is a bare MQTT client"
        " (`gmqtt`) that sends 500 bytes and gets them back, QoS 1 both ways; `aiomqtt` does the"
        " same. The official MCP SDK calls such a tool in another process over HTTP, and stores"
        " nothing.",
        figures=("durable_1_per_s", "bare_1_per_s"),
        others={"aiomqtt": "aiomqtt_1_per_s", "MCP SDK": "mcp_1_per_s"},
        reasons={"aiomqtt": BYTES_ONLY, "MCP SDK": NOT_JOURNALED},
    ),
    Row(
        "edge_call_64",
        "calls/s",
        "higher",
        "roundtrip",
        "The same with 64 calls in flight, for the floor as well.",
        figures=("durable_64_per_s", "bare_64_per_s"),
        others={"aiomqtt": "aiomqtt_64_per_s", "MCP SDK": "mcp_64_per_s"},
        reasons={"aiomqtt": BYTES_ONLY, "MCP SDK": NOT_JOURNALED},
    ),
    Row(
        "edge_call_unsynced",
        "calls/s",
        "higher",
        "roundtrip",
        "One call at a time, with stores that are written and not synced: the protocol without"
        " waiting for the disk, which the floor does not do either.",
        figures=("fast_1_per_s", "bare_1_per_s"),
        others={"aiomqtt": "aiomqtt_1_per_s", "MCP SDK": "mcp_1_per_s"},
        reasons={"aiomqtt": BYTES_ONLY},
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
        " connected and registered with the orchestrator. The floor is a Python process with a bare"
        " MQTT client.",
        figures=("memory_mb", "bare_mb"),
    ),
    Row(
        "edge_start_s",
        "s",
        "lower",
        "footprint",
        "From the start of the edge's process until it is online; for the floor, until it has"
        " subscribed.",
        figures=("start_s", "bare_start_s"),
    ),
    Row(
        "fan_out_1000",
        "s",
        "lower",
        "many",
        "One `edge_call` to all of 1,000 edges, each with its own connection, journal and tool, in"
        " two other processes. The floor is 1,000 bare MQTT clients in two processes, each of which"
        " receives 500 bytes and sends them back. The best of three for both.",
        figures=("fan_out_s", "bare_fan_out_s"),
    ),
    Row(
        "append_sqlite",
        "appends/s",
        "higher",
        "sqlite",
        "Appending a turn with one call to a session: five records, two messages and the usage of"
        " the run in one transaction, one append after the other. The floor inserts the same rows"
        " into the same tables with a bare `sqlite3`, on the same thread.",
        figures=("ours_1_per_s", "bare_1_per_s"),
    ),
    Row(
        "append_sqlite_64",
        "appends/s",
        "higher",
        "sqlite",
        "The same for 64 concurrent sessions; EvoClaw groups commits, the floor commits each"
        " append.",
        figures=("ours_64_per_s", "bare_1_per_s"),
    ),
    Row(
        "append_postgres",
        "appends/s",
        "higher",
        "postgres",
        "`append_sqlite` on a local PostgreSQL with `fsync` off, so that the work is measured and"
        " not the disk. The floor is a bare `psycopg` with one pipeline per transaction.",
        figures=("ours_1_per_s", "bare_1_per_s"),
    ),
    Row(
        "append_postgres_64",
        "appends/s",
        "higher",
        "postgres",
        "The same for 64 concurrent sessions over one connection.",
        figures=("ours_64_per_s", "bare_1_per_s"),
    ),
    Row(
        "verdict_read",
        "µs CPU",
        "lower",
        "policies",
        "All policies of a governed run judge a `read`. The floor is a chain of as many policies"
        " that allow immediately.",
        figures=("read/trusted.fresh", "floor"),
    ),
    Row(
        "verdict_shell",
        "µs CPU",
        "lower",
        "policies",
        "The same for a new command line of four programs with redirections: it is parsed, and the"
        " effects of each program are looked up.",
        figures=("four_programs/trusted.fresh", "floor"),
    ),
    Row(
        "verdict_untrusted",
        "µs CPU",
        "lower",
        "policies",
        "The same for a `webfetch` in a conversation that contains web pages: the origin of each"
        " part of the URL is looked up.",
        figures=("webfetch/untrusted.fresh", "floor"),
    ),
    Row(
        "sandbox_start",
        "ms",
        "lower",
        "sandboxes",
        "`true` in a warm sandbox, with limits and without network. The floor is a bare fork and"
        " exec without isolation; `bubblewrap` is the program itself, started with the same"
        " namespaces each time.",
        figures=("warm_ms", "bare_ms"),
        others={"bubblewrap": "cold_bubblewrap_ms"},
    ),
)

ROWS = (*LOOP_ROWS, *PART_ROWS)
