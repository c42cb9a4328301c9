"""BFCL entries as cases: splits in which no question occurs twice, and runs judged exactly.

A run is one request with the entry's own functions, at temperature 0. Each judged run is stored by
model, genome and entry before the next one counts: an interrupted measurement repeats none of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
from bench.tasks.bfcl import INSTRUCTIONS, MAX_TOKENS, PACKAGES, decoded, tool_name, tools_of
from msgspec import Struct

from evoclaw.core.agent import Agent, LoopSettings
from evoclaw.core.canonical_json import canonical_hash
from evoclaw.core.errors import ProviderError
from evoclaw.core.events import Replied, StopReason
from evoclaw.core.genome import Genome
from evoclaw.core.history import History
from evoclaw.core.messages import Reply, SystemMessage, user
from evoclaw.core.ports import AllowAll, Ports, Provider, Request
from evoclaw.core.state import new_run
from evoclaw.core.tools import Tool
from evoclaw.core.truncate import truncate_middle
from evoclaw.core.tuned_runs import GenomeTools
from evoclaw.evolution.cases import Case, CaseFile, CaseTool, Split
from evoclaw.evolution.checks import AnswerCheck
from evoclaw.evolution.evaluation import Attempt, CaseRun, Evaluation, OpenRun, summed_up
from evoclaw.executors.local import LocalExecutor
from evoclaw.orchestrator.agents.tuning import tune
from evoclaw.providers.scripted import Scripted, says
from evoclaw.providers.text_calls import shipped_tool_prompt
from evoclaw.tools.fake import FakeOps

Entry: TypeAlias = dict[str, Any]
"""An entry of BFCL: `id`, `category`, `question`, `function`, and `answer` if calls are right."""
CATEGORIES = ("simple", "multiple", "parallel", "irrelevance")
SIZES: dict[Split, int] = {Split.TRAIN: 60, Split.VALIDATION: 200, Split.SEALED: 500}
"""Entries of each split, the same number of each category."""
ALL_ENTRIES = 4_000
"""More than the data has: all of it, in the random order of its seed."""
AGENT = Agent("bfcl", "", INSTRUCTIONS)
"""The agent that is evolved, as configured."""
RIGHT = "right"
PROBE = "Say yes."
MAX_DID_CHARS = 800
"""Of what a model did in a run, for the reflecting model."""
PROGRESS_RUNS = 25


class EntryJudge(Protocol):
    """Has the entries, and judges calls exactly."""

    entries: list[Entry]

    def judge(self, entry: Entry, calls: list[dict[str, Any]]) -> tuple[bool, str]:
        """Whether the calls are right, and why not."""
        ...


class JudgedRun(Struct, frozen=True, kw_only=True):
    """One request to a model, judged."""

    right: bool
    why: str
    """Why it is wrong."""
    did: str
    """What the model did, shortened."""
    tokens: int
    """Of the request and the reply."""
    seconds: float


def question_of(entry: Entry) -> str:
    """What the user asks."""
    return "\n".join(message["content"] for message in entry["question"][0])


def split_entries(entries: Sequence[Entry], sizes: Mapping[Split, int]) -> dict[Split, list[Entry]]:
    """The splits; a smaller split is a part of the whole one.

    The data has questions that occur in several entries. Only the first of them is used, so that no
    question of one split is in another one.
    """
    seen: set[str] = set()
    distinct: dict[str, list[Entry]] = {}
    # The rarest category first: it must not lose entries to a larger one.
    counts = Counter(entry["category"] for entry in entries)
    for entry in sorted(entries, key=lambda entry: counts[entry["category"]]):
        question = " ".join(question_of(entry).casefold().split())
        if question not in seen:
            seen.add(question)
            distinct.setdefault(entry["category"], []).append(entry)
    found: dict[Split, list[Entry]] = {}
    first = 0
    for split, whole in SIZES.items():
        wanted = sizes[split]
        if not 1 <= wanted <= whole:
            raise SystemExit(f"--{split} {wanted}: choose a number from 1 to {whole}")
        chosen: list[Entry] = []
        for at, category in enumerate(CATEGORIES):
            room = distinct.get(category, [])[first : first + whole // len(CATEGORIES)]
            share = wanted // len(CATEGORIES) + (at < wanted % len(CATEGORIES))
            if len(room) < share:
                raise SystemExit(f"the data has too few entries of {category} for {split}")
            chosen += room[:share]
        found[split] = chosen
        first += whole // len(CATEGORIES)
    return found


def recurring_tools(entries: Sequence[Entry], count: int) -> list[str]:
    """The functions that most train entries have, always with the same definition."""
    definitions: dict[str, list[str]] = {}
    for entry in entries:
        for function in entry["function"]:
            text = json.dumps(function, sort_keys=True)
            definitions.setdefault(function["name"], []).append(text)
    same = [name for name, texts in definitions.items() if len(texts) > 1 and len({*texts}) == 1]
    return sorted(same, key=lambda name: -len(definitions[name]))[:count]


def case_of(entry: Entry, split: Split, searched: Sequence[str] = ()) -> CaseFile:
    """An entry as a case, whose run answers with the verdict.

    `searched` are the functions whose descriptions a search may change.
    """
    tools = tuple(
        CaseTool(name=tool_name(function["name"]), description=function["description"])
        for function in entry["function"]
        if function["name"] in searched
    )
    check = AnswerCheck(equals=RIGHT)
    case = Case(message=question_of(entry), checks=(check,), split=split, tools=tools)
    return CaseFile(entry["id"], Path(f"{entry['id']}.toml"), case)


class StoredRuns:
    """A file of JSON lines: judged runs, answers of the reflecting model, openings."""

    def __init__(self, path: Path) -> None:
        """Read the file; a line that was cut by a kill is dropped."""
        self._path = path
        self._found: dict[str, Any] = {}
        lines = path.read_bytes().split(b"\n") if path.exists() else []
        self._is_cut = bool(lines and lines[-1])
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:
                continue
            self._found[row["key"]] = row["value"]

    def get(self, *key: str) -> Any:
        """What is stored; None if nothing is."""
        return self._found.get("/".join(key))

    def keys(self, kind: str) -> list[str]:
        """The keys that begin so."""
        return [key for key in self._found if key.startswith(f"{kind}/")]

    def put(self, value: Any, *key: str) -> None:
        """Store a value; it is in the file before this returns."""
        self._found["/".join(key)] = value
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write("\n" if self._is_cut else "")
            file.write(json.dumps({"key": "/".join(key), "value": value}) + "\n")
        self._is_cut = False


class EntryRuns:
    """Runs entries with one model and any genome, each pair once."""

    def __init__(
        self,
        provider: Provider,
        model: str,
        judge: EntryJudge,
        store: StoredRuns,
        parallel: int = 1,
    ) -> None:
        """`model` is the digest of the model's file."""
        self._provider, self._model, self._judge, self._store = provider, model, judge, store
        self._slots = asyncio.Semaphore(parallel)
        self._entries = {entry["id"]: entry for entry in judge.entries}
        self._stopped: ProviderError | None = None
        """The server answers nothing any more: it is not asked again."""
        self.asked = 0
        """Requests for entries that were not stored."""
        self.tool_prompt = shipped_tool_prompt(provider.profile.calls)
        """What tells the model its tools without a genome; empty if its calls are not text."""

    async def run(self, genome: Genome, entry: Entry) -> JudgedRun:
        """The judged run of an entry, stored or new."""
        key = "run", self._model, self._method(genome), entry["id"]
        if (stored := self._store.get(*key)) is not None:
            return msgspec.convert(stored, JudgedRun)
        async with self._slots:
            if self._stopped is not None:
                raise self._stopped
            try:
                found = await self._run(genome, entry)
            except ProviderError as problem:
                self._stopped = problem
                raise
        self._store.put(msgspec.to_builtins(found), *key)
        self.asked += 1
        if self.asked % PROGRESS_RUNS == 0:
            text = f"{self.asked} runs of {self._provider.model}, the last in {found.seconds} s"
            print(text, file=sys.stderr, flush=True)
        return found

    async def run_all(
        self, genomes: Sequence[Genome], entries: Sequence[Entry]
    ) -> list[list[JudgedRun]]:
        """Run entries, some at the same time; the runs of each genome.

        The genomes of an entry run one after the other: where their texts begin alike, the server
        has read the beginning already.
        """

        async def run_each(entry: Entry) -> list[JudgedRun]:
            return [await self.run(genome, entry) for genome in genomes]

        tasks: list[asyncio.Task[list[JudgedRun]]] = []
        try:
            async with asyncio.TaskGroup() as group:
                tasks += [group.create_task(run_each(entry)) for entry in entries]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [list(found) for found in zip(*(task.result() for task in tasks), strict=True)]

    async def evaluate(self, genome: Genome, names: Sequence[str]) -> Evaluation:
        """What a proposer sees of train entries: the functions, the calls, and the right ones."""
        entries = [self._entries[name] for name in names]
        (runs,) = await self.run_all([genome], entries)
        return summed_up(
            [
                Attempt(
                    case=entry["id"], split=Split.TRAIN, passed=run.right,
                    problems=() if run.right else (run.why, right_calls(entry)),
                    stop=StopReason.COMPLETED, turns=1, calls=0, cost=None, coverage=None,
                    transcript=f"functions: {_signatures(entry)}\n{run.did}",
                )
                for entry, run in zip(entries, runs, strict=True)
            ]
        )  # fmt: skip

    def opener(self, genome: Genome) -> OpenRun:
        """Prepares runs for the gate: the run answers with the verdict on the model's calls.

        The request is made before the run starts, so that a server that stopped ends the
        validation instead of failing its cases.
        """
        agent = tune(AGENT, genome)

        @asynccontextmanager
        async def open_run(case: CaseFile, workspace: Path) -> AsyncGenerator[CaseRun]:
            found = await self.run(genome, self._entries[case.name])
            reply = says(RIGHT if found.right else f"wrong: {found.why}")
            ports = Ports(Scripted(reply), LocalExecutor(()), AllowAll())
            state = new_run([SystemMessage(agent.prompt), user(case.case.message)])
            yield CaseRun(state, ports, LoopSettings(), FakeOps(), None)

        return open_run

    async def _run(self, genome: Genome, entry: Entry) -> JudgedRun:
        started = time.monotonic()
        own = tools_of(entry)
        offered = GenomeTools(genome.tools).offer(list(own.values()))
        history = History([SystemMessage(tune(AGENT, genome).prompt), user(question_of(entry))])
        request = Request(
            history, offered, temperature=0.0, max_tokens=MAX_TOKENS,
            tool_prompt=genome.tool_prompt,
        )  # fmt: skip
        try:
            reply = await reply_of(self._provider, request)
        except ProviderError as problem:
            await self._check_server()
            right, why, did, tokens = False, f"no reply: {problem}"[:200], "nothing", 0
        else:
            calls = decoded(reply, own)
            right, why = self._judge.judge(entry, calls)
            did, tokens = _did(calls, reply.text, own), reply.usage.input + reply.usage.output
        seconds = round(time.monotonic() - started, 1)
        return JudgedRun(right=right, why=why, did=did, tokens=tokens, seconds=seconds)

    def _method(self, genome: Genome) -> str:
        """Identifies a genome, and how its runs are made."""
        made: dict[str, Any] = {"prompt": INSTRUCTIONS, "tokens": MAX_TOKENS, "data": PACKAGES[-1]}
        if self.tool_prompt:
            made["tool_prompt"] = self.tool_prompt
        return canonical_hash({**made, "genome": genome.content()})[:16]

    async def _check_server(self) -> None:
        """Raise `ProviderError` if the server answers nothing at all any more."""
        await reply_of(self._provider, Request(History([user(PROBE)]), max_tokens=4))


async def reply_of(provider: Provider, request: Request) -> Reply:
    """The reply to one request."""
    async with aclosing(provider.stream(request)) as pieces:
        async for piece in pieces:
            if isinstance(piece, Replied):
                return piece.reply
    raise AssertionError("a provider ends with a reply")


def digest_of(spec: str, path: Path | None) -> str:
    """Identifies a model in the store: by its file, or by its name if there is none."""
    if path is None or not path.is_file():
        return hashlib.sha256(spec.encode()).hexdigest()[:16]
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def right_calls(entry: Entry) -> str:
    """What would have been right, in words."""
    if not entry.get("answer"):
        return "right: no call, as no function fits"
    calls = [
        {name: first_value(arguments)}
        for call in entry["answer"]
        for name, arguments in call.items()
    ]
    return f"right: {json.dumps(calls, ensure_ascii=False)}"


def first_value(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of the values that are right for each argument, the first; empty: it may be left out."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return first_value(value)
        return [plain(item) for item in value] if isinstance(value, list) else value

    return {
        name: plain(values[0]) for name, values in arguments.items() if values and values[0] != ""
    }


def _signatures(entry: Entry) -> str:
    found = [
        f"{function['name']}({', '.join(function['parameters'].get('properties', {}))})"
        for function in entry["function"]
    ]
    return "; ".join(found)


def _did(calls: Sequence[dict[str, Any]], text: str, own: Mapping[str, Tool]) -> str:
    made = json.dumps(calls) if calls else f"none of the {len(own)} functions"
    return truncate_middle(f"called: {made}\nsaid: {text.strip() or 'nothing'}", MAX_DID_CHARS)
