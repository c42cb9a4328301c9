"""The information flow policy: untrusted text can be read, but it cannot trigger an action.

The policy neither interprets texts nor asks a model, so it also holds for a model that obeys
whatever it reads. Once untrusted text is in the context, an acting call is allowed only if the
user's own words ask for the action, and every value in it is the user's own or bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.core.ports import ALLOW, Ask, Policy, Verdict
from evoclaw.core.tools import Call, Tool
from evoclaw.core.truncate import head_and_tail
from evoclaw.governance.flow.asked import Asking, says_one
from evoclaw.governance.flow.atoms import atoms, bare, is_address, is_code, moment, number, plain
from evoclaw.governance.flow.edge import told_by
from evoclaw.governance.flow.flags import reflagged
from evoclaw.governance.flow.schemas import choices, default_of
from evoclaw.governance.flow.seen import Seen, is_id, leaves
from evoclaw.governance.flow.settings import DEFAULT, FlowSettings, Preset

SHOWN = 80
"""Characters of a value that are shown to people."""
SMALL = 100
"""Numbers below this are harmless in text that people read."""
_GLUE = frozenset(
    word
    for line in (
        "a an the this that these those and or but of to in on at by for from with about as into",
        "is are was were be been am do does did has have had i you he she it we they me him her us",
        "them my your his its our their i've you've we've they've i'm you're we're they're there",
        "here hi hello hey dear thanks thank please regards best th st nd rd",
    )
    for word in line.split()
)
"""Words that carry no information of their own."""


class Problem(NamedTuple):
    """A value of a call that neither the user nor the tool's schema gave."""

    parameter: str
    value: JSON
    why: str


class Flow(Policy):
    """Asks about calls that act or send once the model has read untrusted text."""

    def __init__(
        self,
        settings: FlowSettings = DEFAULT,
        tools: Callable[[], Sequence[Tool]] | None = None,
    ) -> None:
        """`tools` lists the executor's tools, to know the effects of a resumed run's calls."""
        self._settings = settings
        self._tools = tools
        self._asking = Asking(settings.words)
        self._known: dict[str, Tool] = {}
        self._prose = frozenset(settings.prose)
        self._key = f"flow {id(self)}"
        """A history keeps one index per policy: another policy may know other tools."""

    async def judge(self, call: Call) -> Verdict:
        """Judge one call."""
        self._known[call.tool.name] = call.tool
        tool = reflagged(call.tool, self._settings)
        preset = self._settings.preset
        if preset is Preset.OFF:
            return ALLOW
        if preset is Preset.RULE_OF_TWO:
            return self._rule_of_two(call, tool)
        if not call.context.label.untrusted or not (tool.presses or tool.sends):
            return ALLOW
        if preset is Preset.STRICT or call.context.history is None:
            leaks = tool.presses or call.context.label.private or call.context.history is None
            return _ask(call, None, "") if leaks else ALLOW
        return self._grounded(call, tool, self._seen(call))

    def _seen(self, call: Call) -> Seen:
        assert call.context.history is not None
        return call.context.history.written(self._key, lambda: Seen(self._look_up, self._asking))

    def _look_up(self, name: str) -> Tool | None:
        if name not in self._known and self._tools is not None:
            self._known.update((tool.name, tool) for tool in self._tools())
        found = self._known.get(name)
        return None if found is None else reflagged(found, self._settings)

    def _rule_of_two(self, call: Call, tool: Tool) -> Verdict:
        label, history = call.context.label, call.context.history
        acted = history is None or self._seen(call).acted
        before = (label.untrusted, label.private, acted)
        acts = tool.presses or tool.sends
        after = (before[0] or tool.outside, before[1] or tool.private, acted or acts)
        if not all(after) or (all(before) and not acts):
            return ALLOW
        sources = told_by(call)
        reason = (
            "untrusted input, private data and acting may not come together in one run without a "
            f"person's approval. Untrusted or private text came through {sources}. "
            "Go on without this call and tell the user what you would have done."
        )
        people = f"{call.name} would be the third of: untrusted input, private data, acting"
        return Ask("rule_of_two", reason, f"{people} (through {sources})")

    def _grounded(self, call: Call, tool: Tool, seen: Seen) -> Verdict:
        if tool.presses:
            if not says_one(self._asking.verbs(tool.name), seen.user_stems):
                return _ask(call, Problem("", tool.name, "the user did not ask for it"), "")
            problem = self._weighed(call, tool, seen)
        elif call.context.label.private:
            problem = _ungrounded(call, seen)
        else:
            problem = _new_address(call.arguments, seen)
        if problem is None:
            return ALLOW
        return _ask(call, problem, seen.source_of(problem.value))

    def _weighed(self, call: Call, tool: Tool, seen: Seen) -> Problem | None:
        check = _Weighing(call, seen, self._prose)
        problem = check.problem()
        kinds = self._asking.kinds(tool.name)
        if (
            problem is None
            and not check.anchored
            and kinds
            and not says_one(kinds, seen.user_stems)
        ):
            # No value of the call is the user's own: then the user must have named its object.
            return Problem("", tool.name, "the user did not speak of such a thing")
        return problem


class _Weighing:
    """Checks the arguments of an acting call: which are the user's own."""

    def __init__(self, call: Call, seen: Seen, prose: frozenset[str]) -> None:
        self._call, self._seen, self._prose = call, seen, prose
        self.anchored = False
        """Whether the user named the target of the call; a number or a date names none."""
        self._found_only = False
        """Whether the target was only found in the user's stores."""
        self._worded: list[tuple[str, str]] = []

    def problem(self) -> Problem | None:
        """The first value that is not grounded."""
        for name, value in self._call.arguments.items():
            if value is not None and value == default_of(self._call.tool, name):
                continue
            problem = self._weigh(name, name, value)
            if problem is not None:
                return problem
        free = self.anchored and not self._found_only
        for name, text in self._worded:
            if (found := _strange(text, self._seen, free=free)) is not None:
                return Problem(name, found, "" if free else "these words are not the user's")
            self.anchored = self.anchored or not free
        return None

    def _weigh(self, name: str, key: str, value: JSON) -> Problem | None:
        if is_object(value):
            parts = [(str(inner), child) for inner, child in value.items()]
        elif is_array(value):
            parts = [(key, child) for child in value]
        else:
            return self._weigh_leaf(name, key, value)
        for inner, child in parts:
            if (problem := self._weigh(name, inner, child)) is not None:
                return problem
        return None

    def _weigh_leaf(self, name: str, key: str, value: JSON) -> Problem | None:
        seen = self._seen
        if value is None or value == "" or isinstance(value, bool):
            return None
        text = plain(str(value)).strip()
        if key in self._prose and isinstance(value, str):
            self._worded.append((name, value))
        elif seen.grounded(value):
            self.anchored = self.anchored or (number(text) is None and moment(text) is None)
        elif is_id(key) and text in seen.named_ids:
            self.anchored = True
        elif is_id(key) and text in seen.stored_ids:
            self._found_only = True
        elif text in seen.stored_values or _as_figure(text) in seen.stored_values:
            self._found_only = self._found_only or isinstance(value, str) or is_id(key)
        elif value not in choices(self._call.tool, name):
            return Problem(name, value, "")
        return None


def _as_figure(text: str) -> str:
    """The other JSON spelling of the same number: `1` for `1.0`, and the reverse."""
    value = number(text)
    if value is None:
        return ""
    return str(int(value)) if "." in text and value.is_integer() else str(value)


def _strange(text: str, seen: Seen, *, free: bool) -> str | None:
    """The first token of a prose value that is not grounded."""
    for token in atoms(plain(text)):
        if token in seen.public_words or (free and token.isalpha()):
            continue
        if is_address(token) or is_code(token):
            return token
        value = number(token)
        if value is not None and (value < SMALL or value in seen.numbers):
            continue
        word = bare(token)
        if free or seen.is_trusted(token) or seen.is_trusted(word) or word in _GLUE:
            continue
        if not _small_ordinal(token):
            return token
    return None


def _small_ordinal(token: str) -> bool:
    digits = token.rstrip("stndrh-")
    return digits.isdigit() and len(digits) < 3


def _ungrounded(call: Call, seen: Seen) -> Problem | None:
    """The first value a call would send out though it is not the user's own."""
    for name, value in call.arguments.items():
        for leaf in leaves(value):
            if not isinstance(leaf, str) or leaf in choices(call.tool, name):
                continue
            if seen.grounded(leaf) or all(_is_said(token, seen) for token in atoms(plain(leaf))):
                continue
            return Problem(name, leaf, "private data was read, and this would carry it out")
    return None


def _is_said(token: str, seen: Seen) -> bool:
    return seen.is_trusted(token) or token in _GLUE


def _new_address(arguments: Mapping[str, JSON], seen: Seen) -> Problem | None:
    """The first address of a reading call that no trusted text names."""
    for name, value in arguments.items():
        for leaf in leaves(value):
            for token in atoms(plain(leaf)) if isinstance(leaf, str) else ():
                if is_address(token) and not seen.is_trusted(token):
                    return Problem(name, leaf, "")
    return None


def _ask(call: Call, problem: Problem | None, source: str) -> Ask:
    sources = source or told_by(call)
    if problem is None:
        what, fix = f"{call.name} acts", "Go on without it"
    elif not problem.parameter:
        what, fix = f"{call.name}: {problem.why}", "Go on without it"
    else:
        shown = head_and_tail(str(problem.value), SHOWN)
        why = f" ({problem.why})" if problem.why else ""
        what = f"{call.name} with {problem.parameter} = {shown!r}, which the user did not give{why}"
        fix = "Use only values the user gave, or go on without it"
    reason = (
        f"text from {sources} is in this conversation, and outsiders may have written it. {what}: "
        f"a person must approve that. {fix}, and tell the user what you would have done."
    )
    return Ask("untrusted", reason, f"{what}; untrusted text came through {sources}")
