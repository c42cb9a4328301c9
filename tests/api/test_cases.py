"""The routes of cases: their texts, and what is wrong with their files."""

from __future__ import annotations

from pathlib import Path

from tests.support.service import running_service

CHECK = '[[checks]]\nkind = "answer"\nequals = "yes"\n'
TRAIN = f'message = "Say yes."\n{CHECK}'
HIDDEN = f'message = "Secret task."\nsplit = "validation"\n{CHECK}'
RECORDED = f'message = "x"\nrecording = "tape.jsonl"\n{CHECK}'


def cases_in(folder: Path) -> Path:
    """Two good cases, one that is no case, and one with a broken recording."""
    cases = folder / "cases"
    cases.mkdir()
    texts = {"train": TRAIN, "hidden": HIDDEN, "wrong": 'message = "x"\n', "taped": RECORDED}
    for name, text in texts.items():
        (cases / f"{name}.toml").write_text(text)
    (cases / "tape.jsonl").write_text("{}\n")
    return cases


async def test_a_case_is_shown_as_text_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    cases_in(tmp_path)
    async with running_service(tmp_path) as up:
        ann = await up.client_with("evolution:read", "human")
        shown = (await ann.get("/v1/cases/train")).json
        assert (shown["text"], shown["problem"]) == (TRAIN, "")
        assert (shown["case"]["name"], shown["case"]["checks"]) == ("train", 1)
        wrong = (await ann.get("/v1/cases/wrong")).json
        assert wrong["case"] is None and "checks" in wrong["problem"]
        taped = (await ann.get("/v1/cases/taped")).json
        assert taped["case"]["recorded"] and "cannot read tape.jsonl" in taped["problem"]
        assert (await ann.get("/v1/cases/none")).status == 404
        assert (await ann.get("/v1/cases/..%2Fx")).status in (404, 422)


async def test_a_check_reads_the_recordings_of_all_cases(tmp_path: Path) -> None:
    cases = cases_in(tmp_path)
    async with running_service(tmp_path) as up:
        ann = await up.client_with("evolution:read")
        listed = (await ann.get("/v1/cases")).json
        assert [one["name"] for one in listed["items"]] == ["hidden", "taped", "train"]
        assert len(listed["problems"]) == 1
        checked = (await ann.get("/v1/cases?check=true")).json
        assert [one["name"] for one in checked["items"]] == ["hidden", "train"]
        wrong, taped = checked["problems"]
        assert "wrong.toml" in wrong
        assert "taped.toml" in taped and "cannot read tape.jsonl" in taped
        for name in ("wrong", "taped"):
            (cases / f"{name}.toml").unlink()
        assert (await ann.get("/v1/cases?check=true")).json["problems"] == []


async def test_only_a_person_sees_cases_that_proposers_must_not_know(tmp_path: Path) -> None:
    cases_in(tmp_path)
    async with running_service(tmp_path) as up:
        program = await up.client_with("evolution:read", "evolution:write")
        person = await up.client_with("evolution:read", "human")
        assert (await program.get("/v1/cases/train")).status == 200
        for name in ("hidden", "wrong"):
            refused = await program.get(f"/v1/cases/{name}")
            assert (refused.status, refused.code) == (403, "forbidden")
            assert (await person.get(f"/v1/cases/{name}")).status == 200
        assert (await up.client("ec_wrong").get("/v1/cases/train")).status == 401
        for client in (
            await up.client_with("runs:read"),
            await up.client_with("*", tenant="acme"),
        ):
            assert (await client.get("/v1/cases/train")).status == 403
