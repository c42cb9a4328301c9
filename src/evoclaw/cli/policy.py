"""`evoclaw policy`: check rules, see why a call is judged so, and what new rules would change."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import msgspec

from evoclaw.cli import exits
from evoclaw.cli.clean import clean, one_line
from evoclaw.cli.fleet import show
from evoclaw.cli.needs import Judges
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Replied
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.explaining import explain
from evoclaw.governance.rules.document import CallExample, read_rules, shipped_rules
from evoclaw.governance.rules.effect_views import shown_effects
from evoclaw.governance.rules.examples import (
    SOMEBODY,
    SOMEWHERE,
    check_examples,
    example_call,
    load_rules,
)
from evoclaw.governance.rules.policy import Judgement, Rules
from evoclaw.store.sessions.recordings import read_recording

WIDEST = 240
"""Letters of a line that are shown."""


def policy(options: Namespace, judges: Judges) -> int:
    """Run the command."""
    match options.action:
        case "check":
            return _check(options, judges)
        case "explain":
            return asyncio.run(_explain(options, judges))
        case _:
            return _diff(options, judges)


def _check(options: Namespace, judges: Judges) -> int:
    path = Path(options.file) if options.file else judges.rules
    if path is None:
        document = shipped_rules()
        examples = check_examples(document, workspace=SOMEWHERE, home=SOMEBODY)
    else:
        document = read_rules(path)
        examples = check_examples(document, workspace=str(judges.workspace), home=str(judges.home))
    name = str(path) if path else "the shipped rules"
    if options.json:
        show({"file": name, "rules": len(document.rules), "examples": examples})
    else:
        show(f"{name}: {len(document.rules)} rules, {examples} examples, all of them hold")
    return exits.OK


async def _explain(options: Namespace, judges: Judges) -> int:
    call = read_call_text(options.call, judges.tools)
    explained = await explain(judges.policies, call)
    told: list[dict[str, JSON]] = [msgspec.to_builtins(one) for one in explained.steps]
    rules = next((one for one in judges.policies if isinstance(one, Rules)), None)
    if rules is None:
        rules = load_rules(judges.rules, workspace=str(judges.workspace), home=str(judges.home))
        unused = (await explain([rules], call)).steps
        told += [{**msgspec.to_builtins(step), "policy": "Rules (not in use)"} for step in unused]
    judged = rules.look(call)
    effects = shown_effects(judged.effects)
    if options.json:
        findings = [msgspec.to_builtins(one) for one in judged.findings]
        show({"tool": call.name, "policies": told, "effects": effects, "findings": findings})
        return exits.OK
    for line in _told(told, effects, judged):
        show(clean(line).replace("\n", " ")[:WIDEST])
    return exits.OK


def _told(
    told: Sequence[dict[str, JSON]], effects: dict[str, JSON], judged: Judgement
) -> Iterator[str]:
    for one in told:
        code = f" {one['code']}" if one.get("code") else ""
        reason = f": {one['reason']}" if one.get("reason") else ""
        yield f"{one['policy']:<14} {one['verdict']}{code}{reason}"
    for name, found in effects.items():
        if found:
            several = cast("list[str]", found) if isinstance(found, list) else [str(found)]
            yield f"  {name}: {', '.join(several)}"
    for finding in judged.findings:
        yield f"  {finding.then} by {finding.code}: {finding.why}"


def read_call_text(words: Sequence[str], tools: Sequence[Tool]) -> Call:
    """The call that somebody typed."""
    known = {name: tool for tool in tools for name in (tool.name, *tool.aliases)}
    first = words[0]
    if first.lstrip().startswith("{"):
        try:
            example = msgspec.json.decode(first, type=CallExample)
        except msgspec.DecodeError as problem:
            raise ConfigError(
                f'that is no call: {problem}; say {{"tool": "read", "arguments": {{…}}}}'
            ) from None
    elif first == "bash" or first not in known:
        example = CallExample("bash", {"command": " ".join(words[first == "bash" :])})
    else:
        pairs = [word.partition("=") for word in words[1:]]
        if any(not equals for _, equals, _ in pairs):
            raise ConfigError(f"say the arguments of {first} as NAME=VALUE, or the call as JSON")
        example = CallExample(first, {key: value for key, _, value in pairs})
    return _call(example, known)


def _call(example: CallExample, known: dict[str, Tool]) -> Call:
    call = example_call(example)
    tool = known.get(example.tool)
    return call if tool is None else msgspec.structs.replace(call, tool=tool)


def _diff(options: Namespace, judges: Judges) -> int:
    old, new = (_rules(name, judges) for name in (options.old, options.new))
    folder = Path(options.runs) if options.runs else judges.runs
    if not folder.is_dir():
        raise ConfigError(f"there are no recordings in {folder}; name a folder with --runs")
    known = {name: tool for tool in judges.tools for name in (tool.name, *tool.aliases)}
    runs = calls = 0
    changed: list[dict[str, JSON]] = []
    for path in sorted(folder.glob("*.jsonl")):
        runs += 1
        for call in recorded_calls(path, known):
            calls += 1
            before, after = _said(old.look(call)), _said(new.look(call))
            if before != after:
                changed.append(
                    {"run": path.name, "call": _shown(call), "old": before, "new": after}
                )
    if options.json:
        show({"runs": runs, "calls": calls, "changed": changed})
        return exits.OK
    for one in changed:
        show(one_line(f"{one['old']} -> {one['new']}; {one['call']} ({one['run']})", WIDEST))
    show(f"{calls} calls of {runs} runs: {len(changed)} would be judged differently")
    return exits.OK


def recorded_calls(path: Path, known: dict[str, Tool]) -> Iterator[Call]:
    """Every call that a model asked for in a recorded run, whatever became of it."""
    for record in read_recording(path):
        if not isinstance(record.event, Replied):
            continue
        for asked in record.event.reply.calls:
            try:
                arguments = msgspec.json.decode(asked.arguments, type=dict[str, JSON])
            except (msgspec.DecodeError, RecursionError):
                continue  # it was never judged: the model was told that it is malformed
            tool = known.get(asked.name)
            name = asked.name if tool is None else tool.name
            yield _call(CallExample(name, arguments), known)


def _rules(name: str, judges: Judges) -> Rules:
    path = None if name == "shipped" else Path(name)
    return load_rules(path, workspace=str(judges.workspace), home=str(judges.home))


def _said(judged: Judgement) -> str:
    one = judged.decided
    return "allow" if one is None else f"{one.then} {one.code}"


def _shown(call: Call) -> str:
    command = call.arguments.get("command")
    said = command if isinstance(command, str) else msgspec.json.encode(call.arguments).decode()
    return f"{call.name} {said}"
