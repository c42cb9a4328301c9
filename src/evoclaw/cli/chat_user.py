"""The user of a chat, who answers approvals and questions of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from evoclaw.cli.approval_card import draw_card
from evoclaw.cli.output import print_err
from evoclaw.cli.service_api import PendingApprovalRow
from evoclaw.cli.terminal_text import clean
from evoclaw.core.errors import ConfigError
from evoclaw.core.messages import JSON, is_object
from evoclaw.core.ports import Approval, Decision
from evoclaw.tools.question import Question, UserAnswer, parse_answer

if TYPE_CHECKING:
    from evoclaw.cli.chat_screen import ChatScreen
    from evoclaw.cli.chat_view import ChatView

MAX_REASON_CHARS = 1_500
"""Characters of a reason; the service takes 2,000."""
_INCOMPLETE_MARKS = ("[redacted:", " characters not shown …]")
"""What the service shows in place of secrets and of the middle of long arguments."""


class ChatUser:
    """Asks the user of a chat at the terminal."""

    def __init__(self, screen: ChatScreen, view: ChatView) -> None:
        self._screen, self._view = screen, view

    async def approve(self, call: PendingApprovalRow) -> Approval:
        """Show the card of a call, and read one key."""
        self._screen.print(draw_card(call, self._view.painter, self._screen.columns))
        edits = _is_editable(call.arguments)
        prompt = "Allow? [y]es, once  [a]lways  [n]o" + ("  [e]dit" if edits else "")
        while True:
            match await self._screen.ask_key(prompt, "yane" if edits else "yan"):
                case "y":
                    return Approval(Decision.ONCE)
                case "a":
                    return Approval(Decision.SESSION)
                case "n":
                    return await self._deny()
                case _:
                    if (approval := await self._edit(call)) is not None:
                        return approval

    async def answer(self, question: Question) -> UserAnswer | None:
        """Show the question and its options; read one line."""
        lines = [clean(question.text)]
        lines += [f"  {number}. {clean(text)}" for number, text in enumerate(question.options, 1)]
        self._screen.print("\n".join(lines) + "\n")
        several = ", several with commas" if question.multiple else ""
        hint = (
            f"A number{several}, or an answer in your own words"
            if question.options
            else "Your answer"
        )
        return parse_answer(question, await self._screen.ask_line(f"{hint}:"))

    async def _deny(self) -> Approval:
        prompt = "Why not? The model will read your reason [Enter: none]:"
        why = (await self._screen.ask_line(prompt, at_once=True)).strip()[:MAX_REASON_CHARS]
        reason = f"the user said: {why}" if why else "the user said no"
        return Approval(Decision.DENY, reason)

    async def _edit(self, call: PendingApprovalRow) -> Approval | None:
        """Let the user edit the call; None if nothing was changed.

        The edited call is checked like any other before it runs.
        """
        command = call.arguments.get("command")
        edits_command = isinstance(command, str)
        before = clean(command if isinstance(command, str) else _as_json(call.arguments))
        prompt = f"Edit the {'command' if edits_command else 'arguments'}, then press Enter:"
        try:
            edited = await self._screen.edit_text(
                prompt, before, suffix=".sh" if edits_command else ".json"
            )
        except ConfigError as problem:
            print_err(str(problem))
            return None
        if not edited.strip() or edited == before:
            print_err("you changed nothing, so the question stays open")
            return None
        if edits_command:
            arguments: JSON = {**call.arguments, "command": edited}
        else:
            try:
                arguments = msgspec.json.decode(edited)
            except msgspec.DecodeError as problem:
                print_err(f"the arguments are not JSON: {problem}")
                return None
            if not is_object(arguments):
                print_err("the arguments must be a JSON object")
                return None
        return Approval(Decision.ONCE, "the user edited the call", arguments)


def _is_editable(arguments: dict[str, JSON]) -> bool:
    """Whether all of the arguments is known here: none is cut or left out as a secret."""
    text = _as_json(arguments)
    return not any(mark in text for mark in _INCOMPLETE_MARKS)


def _as_json(arguments: dict[str, JSON]) -> str:
    return msgspec.json.format(msgspec.json.encode(arguments), indent=2).decode()
