"""The rows of the table: what each measures, and who takes part."""

from dataclasses import dataclass

from subjects import LOOPS


@dataclass(frozen=True)
class Row:
    """One figure for each subject."""

    name: str
    unit: str
    better: str
    kind: str
    """`loop`, `import` or `stream`: how it is run."""
    how: str
    """One sentence for the page."""
    peers: tuple[str, ...] = LOOPS


ROWS = (
    Row(
        "turn",
        "µs/turn",
        "lower",
        "loop",
        "A run of 20 turns with one call each and a final text, divided by 20. Ours parses and"
        " validates the arguments, has two policies judge the call, and encodes every record.",
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
