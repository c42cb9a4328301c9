"""Replies of real small models: the same text and calls, however the reply arrives."""

from __future__ import annotations

import random

import pytest

from evoclaw.providers.http import Http
from tests.providers.reply_corpus import FOLDER, SITUATIONS, RecordedReply, make, read_recording
from tests.support.llm_servers import streamed, whole
from tests.support.weights import MODELS

RECORDINGS = {path.stem: read_recording(path.stem) for path in sorted(FOLDER.glob("*.json"))}
REPLIES = [(model, reply) for model, made in RECORDINGS.items() for reply in made.replies]
NAMES = [f"{model}-{reply.situation}" for model, reply in REPLIES]
WHOLE = [(model, reply) for model, reply in REPLIES if reply.whole]


def test_replies_of_three_models_are_recorded() -> None:
    assert sorted(RECORDINGS) == sorted(MODELS)
    for recording in RECORDINGS.values():
        assert {reply.situation for reply in recording.replies} == SITUATIONS.keys()


@pytest.mark.parametrize(("model", "reply"), REPLIES, ids=NAMES)
async def test_a_streamed_reply_is_read_the_same_at_any_boundary(
    model: str, reply: RecordedReply, http: Http
) -> None:
    raw, chance = reply.streamed.encode(), random.Random(reply.streamed)
    cuts = sorted(chance.sample(range(1, len(raw)), 20))  # a chunk is not empty
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    for delivery in ([raw], pieces, raw.split(b"\n\n")):
        parts = [part + b"\n\n" for part in delivery] if delivery is not pieces else pieces
        shown, made = await make(reply.situation, http, streamed(parts))
        assert made == reply.made
        assert shown.strip() == made.text.strip()


@pytest.mark.parametrize(("model", "reply"), WHOLE)
async def test_a_whole_reply_has_the_same_meaning(
    model: str, reply: RecordedReply, http: Http
) -> None:
    _, made = await make(reply.situation, http, whole(reply.whole))
    assert made == (reply.made_of_whole or reply.made)


@pytest.mark.parametrize(("model", "reply"), REPLIES, ids=NAMES)
def test_a_call_of_an_offered_tool_is_never_left_in_the_text(
    model: str, reply: RecordedReply
) -> None:
    assert "<tool_call>" not in reply.made.text
    # What was cut short is text, even if a call was meant.
    if reply.situation != "a result with a call" and reply.made.finish != "length":
        named = [f'"name": "{tool}"' for tool in SITUATIONS[reply.situation].tools]
        assert not any(name in reply.made.text for name in named)
