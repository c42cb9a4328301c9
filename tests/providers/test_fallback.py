from collections.abc import AsyncGenerator

import pytest

from evoclaw.core.errors import ConfigError, ProviderError, ProviderErrorKind
from evoclaw.core.events import Replied, ReplyEvent, ReplyRetried, TextDelta
from evoclaw.core.history import History
from evoclaw.core.messages import Usage, user
from evoclaw.core.ports import Provider, Request
from evoclaw.core.profile import CallStyle, Profile
from evoclaw.providers.fallback import COOLDOWN_S, Fallback
from evoclaw.providers.scripted import Scripted, ScriptStep, says

ASK = Request(History([user("hello")]))
COUNTED = [
    ProviderErrorKind.RATE_LIMITED,
    ProviderErrorKind.QUOTA_EXHAUSTED,
    ProviderErrorKind.TIMEOUT,
    ProviderErrorKind.SERVER_ERROR,
    ProviderErrorKind.MODEL_NOT_FOUND,
    ProviderErrorKind.AUTH_ERROR,
    ProviderErrorKind.TOOLS_UNSUPPORTED,
]


def failing(kind: ProviderErrorKind = ProviderErrorKind.SERVER_ERROR) -> ProviderError:
    return ProviderError(kind, f"it said {kind}")


def model(name: str, *steps: ScriptStep, window: int = 1000) -> Scripted:
    return Scripted(*steps, model=f"x/{name}", profile=Profile(window))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def ask(provider: Provider, request: Request = ASK) -> list[ReplyEvent]:
    return [piece async for piece in provider.stream(request)]


async def answer(provider: Provider) -> str:
    last = (await ask(provider))[-1]
    assert isinstance(last, Replied)
    return last.reply.text


@pytest.mark.parametrize("kind", COUNTED)
async def test_the_next_model_answers_when_a_model_fails(kind: ProviderErrorKind) -> None:
    events = await ask(Fallback([model("a", failing(kind)), model("b", says("hi"))]))
    assert events == [
        ReplyRetried(str(kind), f"it said {kind}", 1, 0.0),
        TextDelta("hi"),
        Replied(says("hi")),
    ]


async def test_three_failures_in_a_row_cool_down_a_model_for_five_minutes() -> None:
    clock = Clock()
    first = model("a", failing(), failing(), failing(), says("back"))
    fallback = Fallback([first, model("b", *[says("b")] * 9)], clock=clock)
    assert [await answer(fallback) for _ in range(4)] == ["b"] * 4
    assert len(first.requests) == 3

    clock.now = COOLDOWN_S - 1
    assert await answer(fallback) == "b"
    clock.now = COOLDOWN_S
    assert await answer(fallback) == "back"
    assert fallback.health[0].failures == 0


async def test_a_success_resets_the_failure_count() -> None:
    steps = [failing(), failing(), says("a"), failing(), failing(), says("a")]
    fallback = Fallback([model("a", *steps), model("b", *[says("b")] * 9)], clock=Clock())
    assert [await answer(fallback) for _ in steps] == ["b", "b", "a", "b", "b", "a"]


async def test_one_failure_after_a_cool_down_starts_another_cool_down() -> None:
    clock = Clock()
    first = model("a", *[failing()] * 9)
    fallback = Fallback([first, model("b", *[says("b")] * 9)], clock=clock)
    for _ in range(3):
        await answer(fallback)
    clock.now = COOLDOWN_S
    await answer(fallback)
    await answer(fallback)
    assert len(first.requests) == 4


async def test_when_all_models_cool_down_the_first_to_recover_is_tried() -> None:
    clock = Clock()
    first = model("a", *[failing()] * 3, says("a"))
    second = model("b", *[failing()] * 3)
    fallback = Fallback([second, first], clock=clock, failures=3)
    for _ in range(2):
        with pytest.raises(ProviderError):
            await ask(fallback)
    clock.now = 1.0
    with pytest.raises(ProviderError):
        await ask(fallback)
    # Both rest now, until the same moment: the order given decides.
    assert [health.skipped_until for health in fallback.health] == [COOLDOWN_S + 1] * 2
    fallback.health[0].skipped_until += 1
    assert await answer(fallback) == "a"


async def test_context_too_long_falls_back_only_to_a_larger_window_without_a_failure() -> None:
    long = failing(ProviderErrorKind.CONTEXT_TOO_LONG)
    small, same = model("small", *[long] * 4), model("same", says("no"))
    fallback = Fallback([small, same, model("large", *[says("yes")] * 4, window=2000)])
    assert [await answer(fallback) for _ in range(4)] == ["yes"] * 4
    assert same.requests == []
    assert fallback.health[0].failures == 0
    with pytest.raises(ProviderError) as caught:
        await ask(Fallback([model("small", long), same]))
    assert caught.value is long


async def test_an_invalid_request_is_not_retried_elsewhere_and_is_no_failure() -> None:
    wrong, other = failing(ProviderErrorKind.UNKNOWN), model("b", says("no"))
    fallback = Fallback([model("a", wrong), other])
    with pytest.raises(ProviderError) as caught:
        await ask(fallback)
    assert caught.value is wrong
    assert (other.requests, fallback.health[0].failures) == ([], 0)


async def test_when_every_model_fails_the_error_names_all_of_them() -> None:
    first = ProviderError(
        ProviderErrorKind.RATE_LIMITED, "slow down", retry_after=7, usage=Usage(5)
    )
    with pytest.raises(ProviderError, match=r"x/a: slow down; x/b: it said auth_error") as caught:
        await ask(Fallback([model("a", first), model("b", failing(ProviderErrorKind.AUTH_ERROR))]))
    assert caught.value.kind is ProviderErrorKind.AUTH_ERROR
    assert (caught.value.retry_after, caught.value.usage) == (7, Usage(5))


class BreaksOff:
    """Shows some text, then fails, or just stops."""

    model = "x/breaks"
    profile = Profile()

    def __init__(self, error: ProviderError | None) -> None:
        self.error, self.closed = error, False

    async def stream(self, request: Request) -> AsyncGenerator[ReplyEvent, None]:
        try:
            yield TextDelta("half an ans")
            if self.error:
                raise self.error
        finally:
            self.closed = True


@pytest.mark.parametrize("error", [None, failing()])
async def test_deltas_of_an_interrupted_reply_are_discarded(error: ProviderError | None) -> None:
    events = await ask(Fallback([BreaksOff(error), model("b", says("whole"))]))
    assert [type(event) for event in events] == [TextDelta, ReplyRetried, TextDelta, Replied]
    assert sum(isinstance(event, Replied) for event in events) == 1


async def test_closing_the_stream_early_closes_the_provider_and_is_no_failure() -> None:
    inner = BreaksOff(failing())
    fallback = Fallback([inner])
    stream = fallback.stream(ASK)
    await anext(stream)
    await stream.aclose()
    assert inner.closed
    assert fallback.health[0].failures == 0


async def test_the_profile_promises_only_what_every_model_supports() -> None:
    able = Scripted(profile=Profile(200_000, 8_000, CallStyle.NATIVE, images=True))
    humble = Scripted(profile=Profile(8_000, 9_000, CallStyle.TEXT))
    fallback = Fallback([able, humble])
    assert fallback.profile == Profile(8_000, 8_000, CallStyle.TEXT, images=False)
    assert fallback.model == "scripted/model"
    await fallback.aclose()


def test_a_fallback_without_models_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        Fallback([])
