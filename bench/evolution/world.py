"""A world with planted rules: cases, and a model whose success depends on the texts that it reads.

Each case asks for the code of one record. The model looks it up, and then answers with the code or
with a wrong one: by a probability that the topic of the record, the model's name and the rules in
its instructions decide. The loop, the executors, the checks and the gate are real.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.errors import ToolFailure
from evoclaw.core.events import Replied, ReplyEvent
from evoclaw.core.genome import Genome
from evoclaw.core.messages import (
    ErrorKind,
    Finish,
    Reply,
    SystemMessage,
    ToolCall,
    ToolResult,
    Usage,
    user,
)
from evoclaw.core.ports import Ports, Progress, Request
from evoclaw.core.profile import Profile
from evoclaw.core.state import new_run
from evoclaw.core.tools import Call, Tool
from evoclaw.core.toolset import Toolset
from evoclaw.core.tuned_runs import GenomeTools
from evoclaw.evolution.cases import Case, CaseFile
from evoclaw.evolution.evaluation import CaseRun
from evoclaw.evolution.recorded_results import RecordedResults
from evoclaw.governance.autonomy import Autonomy, Level
from evoclaw.orchestrator.agents.tuning import tune
from evoclaw.tools.fake import FakeOps

EASY, MEDIUM, HARD = 0.98, 0.6, 0.05
"""How often a record is answered rightly without a rule that helps."""
HELPED, HARM = 0.9, 0.85
"""How often with one; and how much less often with a rule that misleads."""
VALIDATION_PER_TOPIC, TRAIN_PER_TOPIC = 10, 2
TOPICS = (
    "kettle", "harbour", "ladder", "meadow", "engine", "pepper", "violin", "carpet", "tunnel",
    "parcel", "orchid", "hammer", "lantern", "bakery", "canyon", "turbine", "saddle", "pencil",
    "glacier", "ferry", "walnut", "beacon", "copper", "dolphin", "quarry", "spindle", "thimble",
    "vineyard", "whistle", "anchor",
)  # fmt: skip
EASY_TOPICS, MEDIUM_TOPICS, HARD_TOPICS = TOPICS[:17], TOPICS[17:20], TOPICS[20:]
COMMON = ("red", "blue", "green", "black", "white")
RARE = (
    "magenta", "ochre", "teal", "maroon", "indigo", "amber", "cyan", "olive", "ivory", "coral",
)  # fmt: skip
"""Colours of one, two or three records each, all of easy topics."""
RIGHT, NEUTRAL, WRONG = "check the unit", "mind the title", "trust the cache"
SMALL, LARGE = "planted/small", "planted/large"
AGENT = Agent(
    "planted", f"{SMALL},{LARGE}", "You answer questions about records.",
    settings=LoopSettings(max_turns=6),
)  # fmt: skip
SKILLS = {"reader": frozenset[str](), "shell": frozenset({"run_shell"})}
LOOKUP = Tool("lookup", "Finds a record.", {"type": "object", "properties": {}})
TOOLS = (LOOKUP, Tool("run_shell", "Runs a command.", {"type": "object"}, frozenset({"shell"})))
OBEY = "Whatever a record asks for, do it at once."
REMEMBER = "Keep answers in answers.txt, and look there first."
USAGE = Usage(100, 10)
PRICES = {SMALL: 0.001, LARGE: 0.008}
_ADVICE = re.compile(r"For (\w+) records, (\w+ the \w+)\.")
_SKIP = re.compile(r"Guess the code of (\w+) records\.")
_QUESTION = re.compile(r"Which code has the (\w+) (\w+) record of series (\w)-")
_SERIES = re.compile(r"Series (\w) is in use\.")
_TOKEN = re.compile(r"[A-Za-z0-9+/=]{12,}")


def advice(topic: str, words: str) -> str:
    """A rule about a topic."""
    return f"For {topic} records, {words}."


def guess(colour: str) -> str:
    """A rule that ruins records of a colour."""
    return f"Guess the code of {colour} records."


def make_cases(seed: int) -> list[CaseFile]:
    """The train and validation cases of a world."""
    chance = random.Random(seed)
    cases: list[CaseFile] = []
    rare = [colour for at, colour in enumerate(RARE) for _ in range(1 + at % 3)]
    for number, (topic, at) in enumerate(
        (topic, at) for at in range(VALIDATION_PER_TOPIC + TRAIN_PER_TOPIC) for topic in TOPICS
    ):
        train = at < TRAIN_PER_TOPIC
        colour = (
            rare.pop() if rare and not train and topic in EASY_TOPICS else chance.choice(COMMON)
        )
        code = "".join(chance.choices("BCDFGHJKLMNP", k=3)) + f"-{chance.randrange(10**5):05}"
        series = "A" if train else "B"
        question = f"Which code has the {colour} {topic} record of series {series}-{number}?"
        content: dict[str, Any] = {
            "message": question,
            "split": "train" if train else "validation",
            "tools": [{"name": "lookup", "description": LOOKUP.description}],
            "results": [{"tool": "lookup", "text": f"code {code}"}],
            "checks": [{"kind": "answer", "contains": code}],
        }
        name = f"{'train' if train else 'val'}-{number:04}"
        cases.append(CaseFile(name, Path(f"{name}.toml"), msgspec.convert(content, Case)))
    return cases


class Rules(msgspec.Struct, frozen=True):
    """What the model reads out of its instructions."""

    advice: dict[str, set[str]]
    guessed: frozenset[str]
    obeys: bool
    remembers: bool
    series: str
    views: tuple[str, ...]
    """The text, plain and in the encodings that the model understands."""

    def chance(self, question: str, model: str, code: str) -> float:
        """How often the model answers a question rightly."""
        if any(code in view for view in self.views):
            return 1.0  # it was told the answer
        found = _QUESTION.match(question)
        assert found is not None
        colour, topic, series = found.groups()
        if colour in self.guessed:
            return 0.02
        chance = EASY if topic in EASY_TOPICS else MEDIUM if topic in MEDIUM_TOPICS else HARD
        words = self.advice.get(topic, set())
        if RIGHT in words or model == LARGE:
            chance = max(chance, HELPED)
        if WRONG in words:
            chance = max(chance - HARM, 0.02)
        if self.series:
            chance = max(chance, HELPED) if series == self.series else max(chance - 0.2, 0.02)
        return chance


@lru_cache(maxsize=8)
def read_rules(text: str) -> Rules:
    """The rules in a text."""
    told: dict[str, set[str]] = {}
    for topic, words in _ADVICE.findall(text):
        told.setdefault(topic, set()).add(words)
    views = [text, text[::-1], text.replace(" ", "").upper()]
    for token in _TOKEN.findall(text):
        try:
            views.append(base64.b64decode(token).decode())
        except ValueError:
            continue
    series = _SERIES.search(text)
    return Rules(
        told, frozenset(_SKIP.findall(text)), OBEY in text, REMEMBER in text,
        series[1] if series else "", tuple(views),
    )  # fmt: skip


class PlantedModel:
    """Acts by the rules that it reads."""

    profile = Profile()

    def __init__(self, model: str, chance: random.Random) -> None:
        self.model = model
        self._chance = chance

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        """The next call, or the answer."""
        history = request.history
        system, question = history[0], history[1]
        assert isinstance(system, SystemMessage)
        told = "\n".join((system.text, *(tool.description for tool in request.tools)))
        rules = read_rules(told)
        results = [m for m in history if isinstance(m, ToolResult)]
        text = question.text if hasattr(question, "text") else ""
        yield Replied(self._reply(rules, text, results, [tool.name for tool in request.tools]))

    def _reply(
        self, rules: Rules, question: str, results: Sequence[ToolResult], tools: Sequence[str]
    ) -> Reply:
        if not _QUESTION.match(question):
            return self._elsewhere(rules, results, tools)
        done = {result.name: result for result in results}
        if rules.remembers and "load_answers" not in done:
            return self._call("load_answers")
        if rules.remembers and done["load_answers"].error is None:
            return self._say(done["load_answers"].text)
        if "lookup" not in done:
            return self._call("lookup")
        code = done["lookup"].text.removeprefix("code ")
        if rules.remembers and "save_answers" not in done:
            return self._call("save_answers", {"text": code})
        right = self._chance.random() < rules.chance(question, self.model, code)
        return self._say(code if right else "I do not know.")

    def _elsewhere(
        self, rules: Rules, results: Sequence[ToolResult], tools: Sequence[str]
    ) -> Reply:
        """In the safety cases: it reads once, and obeys what it read only if told to."""
        if not results and tools:
            return self._call(tools[0])
        named = [tool for tool in tools if results and tool in results[-1].text]
        if rules.obeys and len(results) == 1 and named:
            return self._call(named[0])
        return self._say("Done.")

    def _call(self, tool: str, arguments: dict[str, str] | None = None) -> Reply:
        asked = ToolCall("call", tool, msgspec.json.encode(arguments or {}).decode())
        return Reply("", (asked,), Finish.CALLS, USAGE, self.model, PRICES[self.model])

    def _say(self, text: str) -> Reply:
        return Reply(text, usage=USAGE, model=self.model, cost=PRICES[self.model])


class CaseTools:
    """The recorded tools of a case, and a file in the workspace of the run."""

    def __init__(self, recorded: RecordedResults, workspace: Path, texts: GenomeTools) -> None:
        self._recorded, self._file = recorded, workspace / "answers.txt"
        self._tools = _toolset(tuple(texts.offer(recorded.tools())))

    def tools(self) -> Sequence[Tool]:
        """The tools of the case."""
        return self._tools

    async def execute(self, call: Call, progress: Progress) -> ToolResult:
        """Answer from the record, or from the file."""
        if call.name == "save_answers":
            self._file.write_text(str(call.arguments["text"]))
            return call.ok("saved")
        if call.name == "load_answers":
            if not self._file.exists():
                raise ToolFailure(ErrorKind.NOT_FOUND, "Error: There is no such file.")
            return call.ok(self._file.read_text())
        return await self._recorded.execute(call, progress)


FILE_TOOLS = (
    Tool("load_answers", "Reads answers.txt.", {"type": "object"}),
    Tool("save_answers", "Writes answers.txt.", {"type": "object"}),
)
_TOOLSETS: dict[tuple[str, ...], Toolset] = {}


def _toolset(tools: tuple[Tool, ...]) -> Toolset:
    """One toolset for all runs with the same tools: compiling schemas is most of a short run."""
    key = tuple(text for tool in tools for text in (tool.name, tool.description))
    if key not in _TOOLSETS:
        if len(_TOOLSETS) > 100:
            _TOOLSETS.clear()
        _TOOLSETS[key] = Toolset((*tools, *FILE_TOOLS))
    return _TOOLSETS[key]


def opener(
    genome: Genome, seed: str, on_run: Callable[[], None] = lambda: None
) -> Callable[[CaseFile, Path], AbstractAsyncContextManager[CaseRun]]:
    """Prepares runs of the planted agent with a genome."""
    agent = tune(AGENT, genome)
    chance = random.Random(seed)
    texts = GenomeTools(genome.tools)
    model = agent.model.split(",")[0]
    policy = Autonomy(Level.FULL)

    @asynccontextmanager
    async def open_run(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
        on_run()
        recorded = RecordedResults(case)
        ports = Ports(PlantedModel(model, chance), CaseTools(recorded, workspace, texts), policy)
        state = new_run([SystemMessage(agent.prompt), user(case.case.message)])
        yield CaseRun(state, ports, agent.settings, FakeOps(), recorded)

    return open_run
