import subprocess
import sys

import pytest

from evoclaw.core.messages import Usage
from evoclaw.providers.prices import TokenRate, price_function


def test_cached_tokens_are_part_of_the_input_and_charged_once() -> None:
    rate = TokenRate(input=10, output=20, cache_read=1, cache_write=12)
    usage = Usage(input=1_000_000, output=500_000, cache_read=400_000, cache_write=100_000)
    assert rate.cost(usage) == pytest.approx(0.5 * 10 + 0.4 * 1 + 0.1 * 12 + 0.5 * 20)


def test_a_rate_without_cache_prices_charges_cached_tokens_as_input() -> None:
    assert TokenRate(2, 4).cost(Usage(1_000_000, 0, 600_000, 100_000)) == pytest.approx(2)


@pytest.mark.parametrize("usage", [Usage(10, 0, 99), Usage(10, 0, 99, 99), Usage(0, 0, 5, 5)])
def test_wrong_usage_counts_never_make_a_cost_negative(usage: Usage) -> None:
    assert TokenRate(3, 15, 0.3, 3.75).cost(usage) >= 0
    assert (price_function("openai/gpt-4o")("gpt-4o", usage) or 0) >= 0


def test_the_price_table_matches_a_manual_calculation() -> None:
    # gpt-4o: 2.50 input, 1.25 cached, 10 output per million
    usage = Usage(input=1_000_000, output=100_000, cache_read=200_000)
    assert price_function("openai/gpt-4o")("gpt-4o-2024-08-06", usage) == pytest.approx(
        2 + 0.25 + 1
    )
    # claude-sonnet-4-0: 3 input, 0.30 read, 3.75 written, 15 output
    usage = Usage(input=100_000, output=10_000, cache_read=50_000, cache_write=20_000)
    cost = 0.03 * 3 + 0.05 * 0.3 + 0.02 * 3.75 + 0.01 * 15
    assert price_function("anthropic/claude-sonnet-4-0")(
        "claude-sonnet-4-0", usage
    ) == pytest.approx(cost)


def test_an_unknown_served_model_is_priced_as_the_requested_model() -> None:
    price = price_function("openai/gpt-4o")
    assert price("my-deployment", Usage(1_000_000)) == pytest.approx(2.5)


@pytest.mark.parametrize("name", ["openai/no-such-model", "nobody/gpt-4o"])
def test_an_unknown_model_has_no_price(name: str) -> None:
    assert price_function(name)(name.partition("/")[2], Usage(100, 100)) is None


@pytest.mark.parametrize(
    "name", ["ollama/llama3.1", "embedded/smollm2-135m", "local/x", "llamacpp/x"]
)
def test_local_models_are_free(name: str) -> None:
    assert price_function(name)("whatever", Usage(10**6, 10**6)) == 0.0


def test_overrides_win_over_the_table_and_follow_dated_names() -> None:
    rates = {"openai/gpt-4o": TokenRate(1, 1), "ollama/big": TokenRate(5, 5)}
    usage = Usage(1_000_000)
    price = price_function("openai/gpt-4o", rates)
    assert price("gpt-4o", usage) == price("gpt-4o-2024-08-06", usage) == price("other", usage) == 1
    assert price_function("openai/gpt-4o-mini", rates)("gpt-4o-mini", usage) == pytest.approx(0.15)
    assert price_function("ollama/big", rates)("big", usage) == 5


def test_other_vendors_are_found_in_the_price_table() -> None:
    for name in ("xai/grok-3", "gemini/gemini-2.0-flash", "openrouter/openai/gpt-4o"):
        assert (price_function(name)(name.partition("/")[2], Usage(10**6)) or 0) > 0


@pytest.mark.process
def test_the_price_table_is_loaded_only_on_first_use() -> None:
    code = (
        "import sys; from evoclaw.core.messages import Usage;"
        "from evoclaw.providers.prices import price_function;"
        "assert price_function('ollama/x')('x', Usage(1)) == 0;"
        "assert not {'pydantic', 'genai_prices'} & set(sys.modules);"
        "sys.modules['genai_prices'] = None;"
        "assert price_function('openai/gpt-4o')('gpt-4o', Usage(1)) is None"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
