"""Evolution: candidates are shown and decided, genomes rolled back, evaluations started."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from playwright.async_api import Page, expect

from evoclaw.core.genome import CONFIGURED, Genome
from evoclaw.core.messages import JSON
from evoclaw.evolution.candidates import STAGES, Stage
from evoclaw.evolution.evaluation import wilson
from evoclaw.evolution.lineage import GenomeLineage
from evoclaw.evolution.lineage_entries import LineageEntry
from evoclaw.wiring.evaluation import open_lineage
from tests.page.house import House
from tests.page.looking import PHONE, Looker
from tests.support.up_process import ok, start_run, wait_for_state

pytestmark = [pytest.mark.page, pytest.mark.asyncio(loop_scope="session")]
CASE = """
message = "say it is sunny"
agent = "{agent}"
split = "{split}"
tools = [{{ name = "weather" }}]

[[checks]]
kind = "answer"
contains = "{text}"
"""


EVIDENCE: dict[str, JSON] = {
    "current": msgspec.to_builtins(wilson(10, 20)),
    "candidate": msgspec.to_builtins(wilson(19, 20)) | {"coverage": 0.5, "recorded": 20},
}


@asynccontextmanager
async def lineage_of(house: House) -> AsyncGenerator[GenomeLineage]:
    """The lineages of the service, as its engine writes them."""
    async with open_lineage(house.up.shell.environment) as lineage:
        yield lineage


async def propose(lineage: GenomeLineage, agent: str, prompt: str, **more: Any) -> LineageEntry:
    """A candidate that waits for a person."""
    found = await lineage.propose(agent, {"prompt": prompt}, by="search", **more)
    assert found is not None
    for stage in STAGES[: STAGES.index(Stage.APPROVAL)]:
        after = len(await lineage.history(agent))
        await lineage.add_verdict(
            agent, found, stage, passed=True, after=after, by="gate", evidence=EVIDENCE
        )
    return found


def write_case(house: House, name: str, agent: str, text: str, split: str = "train") -> None:
    folder = house.up.home / "cases"
    folder.mkdir(exist_ok=True, mode=0o700)
    (folder / f"{name}.toml").write_text(CASE.format(agent=agent, text=text, split=split))


async def answer_dialog(page: Page, action: str, reason: str = "") -> None:
    """Confirm what a dialog asks."""
    dialog = page.get_by_role("dialog")
    if reason:
        await dialog.get_by_role("textbox").fill(reason)
    await dialog.get_by_role("button", name=action, exact=True).click()
    await expect(dialog).to_have_count(0)


async def test_a_candidate_is_shown_with_its_diff_and_runs_and_is_approved(looker: Looker) -> None:
    house, page = looker.house, looker.page
    run = await start_run(house.client, "say too much")
    await wait_for_state(house.client, run)
    async with lineage_of(house) as lineage:
        candidate = await propose(
            lineage, "evoclaw", "Be brief.", reason="too long", runs=[run],
            evidence={"fixed": ["tea", "cake"], "broken": ["wine"]},
        )  # fmt: skip
    await looker.enter("evolution")
    await page.get_by_role("link", name=f"{candidate.number} waits for you").click()
    await expect(page.get_by_role("heading", level=2)).to_contain_text("of evoclaw")
    await expect(page.get_by_role("link", name=run)).to_be_visible()
    await expect(page.get_by_text("tea, cake", exact=True)).to_be_visible()
    await expect(page.get_by_text("wine", exact=True)).to_be_visible()
    change = page.get_by_role("region", name="change of prompt")
    await expect(change.locator(".added")).to_have_text("+Be brief.")
    await expect(page.get_by_role("listitem", name="stage safety")).to_contain_text("passed")
    rate = "95.0 % (76.4 % to 99.1 %), coverage 50.0 %, the current genome 50.0 %"
    await expect(page.get_by_text(rate)).to_be_visible()
    assert await looker.barriers() == []

    await looker.button("Approve…").click()
    await answer_dialog(page, "Approve", "it is better")
    await expect(page.get_by_role("listitem", name="stage approval")).to_contain_text(
        "it is better"
    )
    await expect(page.get_by_text("at shadow")).to_be_visible()
    await expect(looker.button("Approve…")).to_have_count(0)


async def test_a_candidate_is_rejected_with_a_reason(looker: Looker) -> None:
    page = looker.page
    async with lineage_of(looker.house) as lineage:
        candidate = await propose(lineage, "evoclaw", "Be loud.", untrusted=True)
    await looker.enter("evolution", "evoclaw", str(candidate.number))
    await expect(page.get_by_text("contains untrusted text")).to_be_visible()
    await looker.button("Reject…").click()
    await answer_dialog(page, "Reject")
    await expect(page.locator(".toast")).to_have_text("A rejection needs a reason.")
    await looker.button("Reject…").click()
    await answer_dialog(page, "Reject", "rude")
    await expect(page.get_by_role("listitem", name="stage approval")).to_contain_text("rude")
    await expect(page.locator(".badge", has_text="rejected")).to_be_visible()


async def test_a_decision_on_what_changed_meanwhile_is_refused_and_shown(looker: Looker) -> None:
    page = looker.page
    async with lineage_of(looker.house) as lineage:
        candidate = await propose(lineage, "evoclaw", "Be odd.")
        await looker.enter("evolution", "evoclaw", str(candidate.number))
        await looker.button("Approve…").click()
        # The dialog is open; meanwhile the gate takes the candidate back.
        after = len(await lineage.history("evoclaw"))
        await lineage.add_verdict(
            "evoclaw", candidate, Stage.SAFETY, passed=False, after=after, by="gate", reason="new"
        )
        await answer_dialog(page, "Approve")
        await expect(page.locator(".toast.bad")).to_contain_text("changed at the same moment")
        await expect(page.locator(".badge", has_text="rejected")).to_be_visible()
    # The browser itself writes refused requests to its console.
    looker.complaints[:] = [text for text in looker.complaints if "409" not in text]


async def test_versions_form_a_tree_and_are_rolled_back(looker: Looker) -> None:
    house, page = looker.house, looker.page
    path = "/v1/genomes/careful/versions"
    for prompt in ("One.", "Two."):
        ok(await house.client.post(path, {"genome": {"prompt": prompt}, "reason": prompt}))
    async with lineage_of(house) as lineage:
        await propose(lineage, "careful", "Three.")
    await looker.enter("evolution", "careful")
    tree = page.get_by_role("list", name="Lineage of careful")
    await expect(tree).to_contain_text("Configuration (version 0)")
    await expect(tree).to_contain_text("Version 2")
    await expect(page.get_by_text("Waiting for your decision")).to_be_visible()
    assert await looker.barriers() == []
    await tree.get_by_role("button", name="Roll back to version 1").click()
    await answer_dialog(page, "Roll back", "two was worse")
    await expect(tree).to_contain_text("Rolled back to it as version 3")
    await expect(tree).to_contain_text("two was worse")
    await expect(page.get_by_role("heading", name="Current genome: version 3")).to_be_visible()
    assert ok(await house.client.get("/v1/genomes/careful"))["genome"] == {"prompt": "One."}
    await looker.button("Roll back…").click()
    await answer_dialog(page, "Roll back", "as configured")
    await expect(page.get_by_role("heading", name="Current genome: version 4")).to_be_visible()


async def test_an_evaluation_is_started_and_its_score_is_shown(looker: Looker) -> None:
    house, page = looker.house, looker.page
    write_case(house, "sunny", "evoclaw", "sunny")
    write_case(house, "rainy", "evoclaw", "rainy", "validation")
    await looker.enter("evolution", "evoclaw")
    cases = page.get_by_role("region", name="cases")
    await expect(cases.get_by_role("row").filter(has_text="rainy")).to_contain_text("validation")
    await page.get_by_label("Runs of each case").fill("2")
    await looker.button("Start the evaluation").click()
    results = page.get_by_role("region", name="results of evaluations")
    await expect(results.get_by_role("row").filter(has_text="2 of 4")).to_be_visible()
    await expect(page.get_by_role("img", name="Scores of the last")).to_be_visible()
    await expect(page.get_by_role("article")).to_contain_text("4 of 4 runs done, 2 passed")
    await page.get_by_text("Why runs failed").click()
    await expect(page.get_by_role("article")).to_contain_text("does not contain 'rainy'")
    assert await looker.barriers() == []
    await page.set_viewport_size({"width": PHONE["width"], "height": PHONE["height"]})
    assert await looker.overflow() <= 0


async def test_an_evaluation_without_the_rates_of_cases_shows_its_total(looker: Looker) -> None:
    async with lineage_of(looker.house) as lineage:
        total = msgspec.to_builtins(wilson(7, 9))
        await lineage.add_evaluation("evoclaw", CONFIGURED, total, by="edge")
    await looker.enter("evolution", "evoclaw")
    results = looker.page.get_by_role("region", name="results of evaluations")
    row = results.get_by_role("row").filter(has_text="7 of 9")
    await expect(row).to_contain_text("–")
    await expect(row).not_to_contain_text("case")


async def test_what_a_proposer_tried_is_not_shown_as_the_score_of_a_version(
    looker: Looker,
) -> None:
    house, page = looker.house, looker.page
    async with lineage_of(house) as lineage:
        await lineage.change("careful", {"prompt": "Tried."}, by="ann", reason="good on train")
        tried = Genome(prompt="Tried.")
        for genome, rate in ((CONFIGURED, wilson(0, 3)), (tried, wilson(6, 6))):
            scores = msgspec.to_builtins(rate)
            await lineage.add_evaluation("careful", genome, scores, by="gepa")
    await looker.enter("evolution", "careful")
    tree = page.get_by_role("list", name="Lineage of careful")
    await expect(tree).to_contain_text("good on train")
    await expect(tree).not_to_contain_text("%")
    results = page.get_by_role("region", name="results of evaluations")
    row = results.get_by_role("row").filter(has_text="by gepa")
    await expect(row.filter(has_text="6 of 6")).to_contain_text("tried by a proposer")
    await looker.go("evolution")
    agents = page.get_by_role("region", name="genomes of agents")
    await expect(agents.get_by_role("row").filter(has_text="careful")).to_contain_text(
        "not evaluated"
    )


async def test_the_list_says_what_the_campaign_of_each_agent_waits_for(looker: Looker) -> None:
    up, page = looker.house.up, looker.page
    config = up.home / "evoclaw.toml"
    before = config.read_text()
    evolving = '[[agents]]\nid = "evolving"\n[agents.evolution]\nproposers = ["numbers"]\n'
    config.write_text(f"{before}\n{evolving}")
    try:
        up.signal(signal.SIGHUP)
        await looker.enter("evolution")
        agents = page.get_by_role("region", name="genomes of agents")
        row = agents.get_by_role("row").filter(has_text="evolving")
        await expect(row).to_contain_text("the proposers have nothing more today")
        await expect(agents.get_by_role("row").filter(has_text="careful")).to_contain_text("off")
    finally:
        config.write_text(before)
        up.signal(signal.SIGHUP)
    await expect(row).to_have_count(0)


async def test_a_score_from_a_record_is_shown_with_its_coverage(looker: Looker) -> None:
    page = looker.page
    async with lineage_of(looker.house) as lineage:
        await lineage.change("evoclaw", {"prompt": "Recorded."}, by="ann")

        async def evaluated(**more: JSON) -> None:
            scores = {**msgspec.to_builtins(wilson(7, 8)), **more}
            await lineage.add_evaluation("evoclaw", Genome(prompt="Recorded."), scores, by="ann")

        await evaluated(coverage=0.5, recorded=8)
        for text, column in (
            ("coverage 50.0 %", "50.0 %"),
            ("coverage no call to answer", "no call to answer"),
        ):
            await looker.enter("evolution")
            agents = page.get_by_role("region", name="genomes of agents")
            row = agents.get_by_role("row").filter(has_text="evoclaw")
            await expect(row).to_contain_text(text)
            await looker.go("evolution", "evoclaw")
            tree = page.get_by_role("list", name="Lineage of evoclaw")
            await expect(tree).to_contain_text(text)
            plot = page.get_by_role("img", name="Scores of the last")
            await expect(plot).to_have_accessible_name(re.compile(re.escape(f", {text}.")))
            await expect(plot.locator("title").last).to_contain_text(text)
            results = page.get_by_role("region", name="results of evaluations")
            cells = results.get_by_role("cell", name=column, exact=True)
            await expect(cells.first).to_be_visible()
            await evaluated(coverage=None, recorded=8)


async def test_a_running_evaluation_shows_its_progress_and_is_cancelled(looker: Looker) -> None:
    house, page = looker.house, looker.page
    house.up.models.scripts["say it is sunny"] = "wait sun 4"
    try:
        write_case(house, "slow", "careful", "sunny")
        await looker.enter("evolution", "careful")
        await page.get_by_text("Choose cases (otherwise all)").click()
        await page.get_by_label("slow (train)").check()
        await looker.button("Start the evaluation").click()
        article = page.get_by_role("article")
        await expect(article.get_by_role("progressbar")).to_be_visible()
        await expect(article).to_contain_text("0 of 1 run done")
        await article.get_by_role("button").click()
        await answer_dialog(page, "Cancel the evaluation")
        await expect(article).to_contain_text("cancelled")
    finally:
        house.up.models.gates["sun"].set()
        del house.up.models.scripts["say it is sunny"]


async def test_a_case_is_made_from_a_run(looker: Looker) -> None:
    house, page = looker.house, looker.page
    call = {"agent_id": "local", "action": "bash", "params": {"command": "echo one"}}
    run = await start_run(house.client, f"call edge_call {json.dumps(call)}\nsay done")
    await wait_for_state(house.client, run)
    await looker.enter("evolution", "evoclaw")
    await page.get_by_label("Run id").fill(run)
    await page.get_by_label("Name").fill("from-a-run")
    await looker.button("Add the case").click()
    cases = page.get_by_role("region", name="cases")
    await expect(cases.get_by_role("row").filter(has_text="from-a-run")).to_contain_text(
        "answered from a record"
    )
