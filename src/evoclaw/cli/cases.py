"""`evoclaw cases`: list, show and check cases, and make one from a recorded run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click
import msgspec

from evoclaw.cli import exits, service_api
from evoclaw.cli.client import ServiceClient, with_client
from evoclaw.cli.genome import check_person
from evoclaw.cli.options import CommandGroup, json_option
from evoclaw.cli.output import print_err, print_out
from evoclaw.cli.terminal_text import clean, one_line, print_table, text_of
from evoclaw.core.messages import JSON

if TYPE_CHECKING:
    from evoclaw.evolution.cases import CaseFile, CaseFolder


@click.group(cls=CommandGroup, default="list")
def cases() -> None:
    """List, show, check and add cases for evaluations."""


@cases.command("list", help="List the cases (the default)")
@json_option()
def _list(*, as_json: bool) -> int:
    folder = _folder()
    found, problems = folder.read()
    if as_json:
        print_out([_row(case) for case in found])
    else:
        rows = [
            (
                case.name,
                str(case.case.split),
                case.case.agent or "every agent",
                "recorded" if case.case.is_recorded else "executed",
                f"{len(case.case.checks)} checks",
                one_line(case.case.message),
            )
            for case in found
        ]
        print_table(rows, f"no cases in {folder.folder}; add one with `evoclaw cases add`")
    return _report(problems)


@cases.command("show", help="Show a case")
@click.argument("name", help="The name of the case")
@json_option()
def _show(name: str, *, as_json: bool) -> int:
    case = _folder().find(name)
    if as_json:
        print_out(_row(case) | {"case": msgspec.to_builtins(case.case)})
    else:
        print_out(clean(case.path.read_text(encoding="utf-8").rstrip("\n")))
    return exits.OK


@cases.command("check", help="Check the files of all cases")
@json_option()
def _check(*, as_json: bool) -> int:
    found, problems = _folder().read()
    for case in found:
        case.records()  # a recording that cannot be read fails here, not in an evaluation
    if as_json:
        print_out({"cases": len(found), "problems": problems})
        return exits.FAILED if problems else exits.OK
    print_out(f"{len(found)} cases are valid")
    return _report(problems)


@cases.command("add", help="Make a case from a recorded run of the service")
@click.argument("run_id", metavar="RUN", help="Id, as `evoclaw runs` lists it")
@click.option("--name", metavar="NAME", show_default="the id of the run", help="Name the case")
@click.option(
    "--split",
    type=click.Choice(["train", "validation", "sealed"]),
    default="train",
    help="Say who may see it",
)
@json_option()
def _add(run_id: str, name: str | None, split: str, *, as_json: bool) -> int:
    check_person()

    async def add(client: ServiceClient) -> None:
        body: dict[str, JSON] = {"run": run_id, "name": name, "split": split}
        made = service_api.as_object(await client.post(service_api.api_path("cases"), body))
        if as_json:
            print_out(made)
        else:
            path = clean(text_of(made, "path"))
            print_out(f"{path}: its checks expect the calls of the run; edit them if needed")

    return with_client(add)


def _folder() -> CaseFolder:
    from evoclaw.wiring.evaluation import case_folder

    return case_folder(os.environ)


def _row(case: CaseFile) -> dict[str, JSON]:
    found = case.case
    return {
        "name": case.name,
        "split": str(found.split),
        "agent": found.agent,
        "recorded": found.is_recorded,
        "checks": len(found.checks),
        "message": found.message,
        "path": str(case.path),
    }


def _report(problems: list[str]) -> int:
    for problem in problems:
        print_err(clean(problem))
    return exits.FAILED if problems else exits.OK
