"""`evoclaw policy`: check rules, explain a verdict, compare two rule files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click
import msgspec

from evoclaw.cli import exits
from evoclaw.cli.options import FILE, CommandGroup, json_option
from evoclaw.cli.output import print_out
from evoclaw.cli.terminal_text import clean, one_line
from evoclaw.core.errors import ConfigError
from evoclaw.core.events import Replied
from evoclaw.core.messages import JSON
from evoclaw.core.tools import Call, Tool
from evoclaw.governance.explanations import explain
from evoclaw.governance.rules.command_rules import CommandRules
from evoclaw.governance.rules.document import (
    CallExample,
    programs_that_start_others,
    read_rules,
    shipped_rules,
)
from evoclaw.governance.rules.examples import (
    EXAMPLE_HOME,
    EXAMPLE_WORKSPACE,
    check_examples,
    example_call,
    load_rules,
)
from evoclaw.governance.rules.policy import Judgement, RulePolicy, describe_effects

if TYPE_CHECKING:
    from evoclaw.wiring.local_policies import LocalPolicies

MAX_LINE_CHARS = 240
"""Characters of a printed line."""


@click.group(cls=CommandGroup)
def policy() -> None:
    """Check rules, explain verdicts and compare rule files."""


@policy.command("check", help="Read rules and run their examples")
@click.argument(
    "file", type=FILE, required=False, help="Rules  [default: the configured or shipped ones]"
)
@json_option()
def _check(file: Path | None, *, as_json: bool) -> int:
    return check_rules(_local_policies(), file, as_json=as_json)


@policy.command("explain", help="Show how a call would be judged, and why")
@click.argument(
    "call",
    nargs=-1,
    required=True,
    help="A command; or TOOL NAME=VALUE…; or JSON with `tool` and `arguments`",
)
@json_option()
def _explain(call: tuple[str, ...], *, as_json: bool) -> int:
    return asyncio.run(explain_call(_local_policies(), call, as_json=as_json))


@policy.command("diff", help="Judge recorded calls by two rule files, and show what changes")
@click.argument("old", metavar="OLD", help="A rule file, or `shipped`")
@click.argument("new", metavar="NEW", help="Another rule file, or `shipped`")
@click.option(
    "--runs",
    type=FILE,
    metavar="FOLDER",
    show_default="the recordings of your runs",
    help="Judge the calls of these recordings",
)
@json_option()
def _diff(old: str, new: str, runs: Path | None, *, as_json: bool) -> int:
    return compare_rules(_local_policies(), old, new, runs, as_json=as_json)


def _local_policies() -> LocalPolicies:
    from evoclaw.wiring.local_policies import local_policies

    return local_policies(Path.cwd(), os.environ)


def check_rules(local: LocalPolicies, file: Path | None, *, as_json: bool) -> int:
    """Check a rule file, or the rules in use."""
    path = file or local.rules
    if path is None:
        document = shipped_rules()
        examples = check_examples(document, workspace=EXAMPLE_WORKSPACE, home=EXAMPLE_HOME)
    else:
        document = read_rules(path)
        examples = check_examples(document, workspace=str(local.workspace), home=str(local.home))
    name = str(path) if path else "the shipped rules"
    starting = programs_that_start_others(document)
    if as_json:
        facts = {"file": name, "rules": len(document.rules), "examples": examples}
        print_out({**facts, "start_others": list(starting)})
    else:
        print_out(f"{name}: {len(document.rules)} rules, {examples} examples, all pass")
        if starting:
            print_out(
                f"These allowed programs can start any other: {', '.join(starting)}. The rules do "
                "not judge what they start; the sandbox bounds it."
            )
    return exits.OK


async def explain_call(local: LocalPolicies, words: Sequence[str], *, as_json: bool) -> int:
    """Show how a call would be judged."""
    from evoclaw.wiring.pipelines import local_pipeline

    call = read_call_text(words, local.tools)
    policies = local.policies()
    explained = await explain(policies, call)
    verdicts: list[dict[str, JSON]] = [msgspec.to_builtins(step) for step in explained.steps]
    in_use = next((rule for rule in policies if isinstance(rule, CommandRules)), None)
    if in_use is not None:
        rules = in_use.load()
    else:
        rules = load_rules(local.rules, workspace=str(local.workspace), home=str(local.home))
        unused = (await explain([rules], call)).steps
        verdicts += [
            {**msgspec.to_builtins(step), "policy": "Rules (not in use)"} for step in unused
        ]
    judged = rules.evaluate(call)
    effects = describe_effects(judged.effects)
    if as_json:
        findings = [msgspec.to_builtins(finding) for finding in judged.findings]
        steps = [msgspec.to_builtins(step) for step in local_pipeline().describe()]
        facts = {
            "tool": call.name,
            "policies": verdicts,
            "effects": effects,
            "findings": findings,
        }
        print_out({**facts, "pipeline": steps})
        return exits.OK
    for line in _explanation_lines(verdicts, effects, judged):
        print_out(clean(line).replace("\n", " ")[:MAX_LINE_CHARS])
    print_out("pipeline of a local call:")
    for stage, steps in groupby(local_pipeline().describe(), key=lambda step: step.stage):
        print_out(f"  {stage:<7}{', '.join(step.name for step in steps)}")
    return exits.OK


def _explanation_lines(
    steps: Sequence[dict[str, JSON]], effects: dict[str, JSON], judged: Judgement
) -> Iterator[str]:
    for step in steps:
        code = f" {step['code']}" if step.get("code") else ""
        reason = f": {step['reason']}" if step.get("reason") else ""
        yield f"{step['policy']:<14} {step['verdict']}{code}{reason}"
    for name, found in effects.items():
        if found:
            values = cast("list[str]", found) if isinstance(found, list) else [str(found)]
            yield f"  {name}: {', '.join(values)}"
    for finding in judged.findings:
        yield f"  {finding.then} by {finding.code}: {finding.why}"


def read_call_text(words: Sequence[str], tools: Sequence[Tool]) -> Call:
    """The call that the user typed."""
    known = {name: tool for tool in tools for name in (tool.name, *tool.aliases)}
    first = words[0]
    if first.lstrip().startswith("{"):
        try:
            example = msgspec.json.decode(first, type=CallExample)
        except msgspec.DecodeError as problem:
            raise ConfigError(
                f'cannot read the call: {problem}; write {{"tool": "read", "arguments": {{…}}}}'
            ) from None
    elif first == "bash" or first not in known:
        example = CallExample("bash", {"command": " ".join(words[first == "bash" :])})
    else:
        pairs = [word.partition("=") for word in words[1:]]
        if any(not equals for _, equals, _ in pairs):
            raise ConfigError(f"write the arguments of {first} as NAME=VALUE, or the call as JSON")
        example = CallExample(first, {key: value for key, _, value in pairs})
    return _call(example, known)


def _call(example: CallExample, known: dict[str, Tool]) -> Call:
    call = example_call(example)
    tool = known.get(example.tool)
    return call if tool is None else msgspec.structs.replace(call, tool=tool)


def compare_rules(
    local: LocalPolicies, old_name: str, new_name: str, folder: Path | None, *, as_json: bool
) -> int:
    """Show which recorded calls two rule files judge differently."""
    old, new = (_rules(name, local) for name in (old_name, new_name))
    folder = folder or local.runs
    if not folder.is_dir():
        raise ConfigError(f"there are no recordings in {folder}; name a folder with --runs")
    known = {name: tool for tool in local.tools for name in (tool.name, *tool.aliases)}
    runs = calls = 0
    changed: list[dict[str, JSON]] = []
    for path in sorted(folder.glob("*.jsonl")):
        runs += 1
        for call in recorded_calls(path, known):
            calls += 1
            before, after = _verdict_text(old.evaluate(call)), _verdict_text(new.evaluate(call))
            if before != after:
                changed.append(
                    {"run": path.name, "call": _call_text(call), "old": before, "new": after}
                )
    if as_json:
        print_out({"runs": runs, "calls": calls, "changed": changed})
        return exits.OK
    for row in changed:
        print_out(
            one_line(f"{row['old']} -> {row['new']}; {row['call']} ({row['run']})", MAX_LINE_CHARS)
        )
    print_out(f"{calls} calls of {runs} runs: {len(changed)} would be judged differently")
    return exits.OK


def recorded_calls(path: Path, known: dict[str, Tool]) -> Iterator[Call]:
    """Every call that a model requested in a recorded run, also denied and failed ones."""
    from evoclaw.wiring.record_key import open_recording

    for record in open_recording(path):
        if not isinstance(record.event, Replied):
            continue
        for requested in record.event.reply.calls:
            try:
                arguments = msgspec.json.decode(requested.arguments, type=dict[str, JSON])
            except (msgspec.DecodeError, RecursionError):
                continue  # malformed, so it was never judged
            tool = known.get(requested.name)
            name = requested.name if tool is None else tool.name
            yield _call(CallExample(name, arguments), known)


def _rules(name: str, local: LocalPolicies) -> RulePolicy:
    path = None if name == "shipped" else Path(name)
    return load_rules(path, workspace=str(local.workspace), home=str(local.home))


def _verdict_text(judged: Judgement) -> str:
    finding = judged.decided
    return "allow" if finding is None else f"{finding.then} {finding.code}"


def _call_text(call: Call) -> str:
    command = call.arguments.get("command")
    text = command if isinstance(command, str) else msgspec.json.encode(call.arguments).decode()
    return f"{call.name} {text}"
